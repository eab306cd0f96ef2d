package transport_test

import (
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// The host that a redirect leads to does not adjust or settle the limiter of the API that was asked,
// unless it is the same host. It adjusts a limiter of its own.
func TestRedirect_HostHoldsNoOther(t *testing.T) {
	const api, evil = "https://api.test", "https://evil.test"
	refusal := []string{"Retry-After", "1800"}
	for name, c := range map[string]struct {
		hops   []string // that the answers lead to, one after the other
		status int      // of the last answer
		header []string
		byHost bool
		bare   bool // Base does not set the response's Request
		gate   bool // Base sends clones to a gateway
		held   bool
	}{
		"refused by the API itself":       {status: 429, header: refusal, held: true},
		"refused by another host":         {hops: []string{evil + "/"}, status: 429, header: refusal},
		"and without a Request":           {hops: []string{evil + "/"}, status: 429, header: refusal, bare: true},
		"down":                            {hops: []string{evil + "/"}, status: 503, header: refusal},
		"nothing remains":                 {hops: []string{evil + "/"}, status: 200, header: []string{"X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1800"}},
		"within another host":             {hops: []string{evil + "/", "/again"}, status: 429, header: refusal},
		"within the API":                  {hops: []string{"/again"}, status: 429, header: refusal, held: true},
		"within the API, no Request":      {hops: []string{"/again"}, status: 429, header: refusal, bare: true, held: true},
		"within the API by a gateway":     {hops: []string{"/again"}, status: 429, header: refusal, gate: true, held: true},
		"refused by another one, gateway": {hops: []string{evil + "/"}, status: 429, header: refusal, gate: true},
		"by another spelling of its host": {hops: []string{"https://API.test:443/"}, status: 429, header: refusal, held: true},
		"away and back":                   {hops: []string{evil + "/", api + "/end"}, status: 429, header: refusal, held: true},
		"each host has a limiter":         {hops: []string{evil + "/"}, status: 429, header: refusal, byHost: true},
	} {
		for _, followed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				hosts := map[string]*outbound.Bucket{"api.test": callsAndTokens(), "evil.test": callsAndTokens()}
				at, signals := 0, 0
				rt := &transport.Transport{
					OnSignal: func(_ *http.Response, s *profile.Signal) { signals++ },
					Used: func(resp *http.Response) (outbound.Cost, bool) {
						return outbound.Cost{50}, resp.StatusCode != http.StatusFound
					},
					Base: roundTripper(func(req *http.Request) (*http.Response, error) {
						if c.gate {
							req = req.Clone(req.Context())
							req.URL.Host = "10.0.0." + strconv.Itoa(at+1) + ":8080"
						}
						status, header := c.status, c.header
						if at < len(c.hops) {
							status, header = http.StatusFound, []string{"Location", c.hops[at]}
							at++
						}
						resp, err := answer(status, http.NoBody, header...)(req)
						if c.bare {
							resp.Request = nil
						}
						return resp, err
					}),
				}
				if followed {
					rt.OnResponse = ignore
				}
				if rt.Limiter = hosts["api.test"]; c.byHost {
					rt.For = transport.ByHost(func(host string) outbound.Limiter { return hosts[host] })
				}
				if err := fetch(t, rt, api+"/"); err != nil {
					t.Fatal(err)
				}
				s := stateOf(t, hosts["api.test"])
				if held := s.HeldFor > 0; held != c.held || signals != len(c.hops)+1 {
					t.Errorf("%s (followed: %v): held for %v, %d signals", name, followed, s.HeldFor, signals)
				}
				if used := float64(len(c.hops)) + 50; c.held && s.Level < used || !c.held && s.Level > 10 {
					t.Errorf("%s (followed: %v): level %v", name, followed, s.Level)
				}
				if s = stateOf(t, hosts["evil.test"]); (s.HeldFor > 0) != c.byHost {
					t.Errorf("%s (followed: %v): the other host is held for %v", name, followed, s.HeldFor)
				}
			})
		}
	}
}

// A Base that follows redirects itself says in the response's Request where they ended.
func TestRedirect_KeepsTheEndOfWhatBaseFollows(t *testing.T) {
	client := &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.URL.Path != "/end" {
			return answer(http.StatusFound, http.NoBody, "Location", "/end")(req)
		}
		return answer(200, nil)(req)
	})}
	rt := &transport.Transport{Base: roundTripper(func(req *http.Request) (*http.Response, error) { return client.Do(req) }), Limiter: bucket(slow)}
	resp := open(t, t.Context(), rt)
	finish(resp)
	if got := resp.Request.URL.Path; got != "/end" {
		t.Errorf("the response is of %q, want /end", got)
	}
}
