package outboundtest_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// reply is an answer, read to its end.
type reply struct {
	status int
	http.Header
	body string
}

// tell calls an API without a network. A length makes a body of so many bytes.
func tell(t *testing.T, api *API, method, path string, length int) reply {
	t.Helper()
	return send(t, api, method, path, length, 1)
}

// send is tell with a header for byHeader.
func send(t *testing.T, api *API, method, path string, length int, cost float64) reply {
	t.Helper()
	req, err := http.NewRequest(method, "http://api.example.com"+path, strings.NewReader(strings.Repeat("x", length)))
	must(t, err)
	req.Header.Set("Cost", fmt.Sprint(cost))
	res, err := api.RoundTrip(req)
	must(t, err)
	body, err := io.ReadAll(res.Body)
	must(t, err)
	return reply{res.StatusCode, res.Header, string(body)}
}

// want checks the status and headers, given as "Name: value"; a name alone must not be
// there, and "body: text" must be in the body.
func (r reply) want(t *testing.T, status int, headers ...string) {
	t.Helper()
	errorIf(t, r.status != status, "status %d, want %d", r.status, status)
	for _, line := range headers {
		name, want, there := strings.Cut(line, ": ")
		switch got := r.Values(name); {
		case name == "body":
			errorIf(t, !strings.Contains(r.body, want), "body %s, want one with %s", r.body, want)
		case there != (len(got) > 0) || there && (len(got) != 1 || got[0] != want):
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// seconds reads a header as a number of seconds. A header that is no number fails the test.
func (r reply) seconds(t *testing.T, name string) time.Duration {
	t.Helper()
	s, err := strconv.ParseFloat(r.Get(name), 64)
	fatalIf(t, err != nil, "%s: %q", name, r.Get(name))
	return time.Duration(s * float64(time.Second))
}

func (r reply) number(t *testing.T, name string) int {
	t.Helper()
	n, err := strconv.Atoi(r.Get(name))
	fatalIf(t, err != nil, "%s: %q", name, r.Get(name))
	return n
}

// until returns the time from the Date of a reply to an instant, and a second more,
// because both may have been cut.
func (r reply) until(t *testing.T, instant time.Time) time.Duration {
	t.Helper()
	date, err := http.ParseTime(r.Get("Date"))
	must(t, err)
	return instant.Sub(date) + time.Second
}

// manner is how a client reads a vendor.
type manner struct {
	name    string
	new     func() *API
	method  string // "": POST
	path    string
	length  int           // of the body
	gap     time.Duration // between calls, for limits that no header tells; 0: as fast as the headers say
	refused func(reply) bool
	heed    func(*testing.T, reply) time.Duration // before the next call, from any reply
}

func (m manner) call(t *testing.T, api *API) reply {
	t.Helper()
	method := m.method
	if method == "" {
		method = "POST"
	}
	return tell(t, api, method, m.path, m.length)
}

func over(status int) func(reply) bool {
	return func(r reply) bool { return r.status == status }
}

// untilReset waits for the reset of a limit of which nothing remains.
func untilReset(remaining string, reset func(*testing.T, reply) time.Duration) func(*testing.T, reply) time.Duration {
	return func(t *testing.T, r reply) time.Duration {
		if r.number(t, remaining) > 0 {
			return 0
		}
		return reset(t, r)
	}
}

var manners = []manner{
	{
		name: "GitHub", new: func() *API { return GitHub() }, method: "GET", path: "/user", gap: 67 * time.Millisecond,
		refused: over(403),
		heed:    untilReset("X-RateLimit-Remaining", gitHubReset),
	},
	{
		name: "GitHub search", new: func() *API { return GitHub() }, path: "/search/code",
		refused: over(403),
		heed:    untilReset("X-RateLimit-Remaining", gitHubReset),
	},
	{
		name: "ShopifyREST", new: func() *API { return ShopifyREST() }, path: "/admin/products.json",
		refused: over(429),
		heed: func(t *testing.T, r reply) time.Duration {
			if r.Get("X-Shopify-Shop-Api-Call-Limit") == "40/40" {
				return time.Second / 2 // no header tells the leak rate, but Shopify publishes it
			}
			return 0
		},
	},
	{
		name: "ShopifyGraphQL", new: func() *API { return ShopifyGraphQL() }, path: "/graphql.json",
		refused: func(r reply) bool { return strings.Contains(r.body, "THROTTLED") },
		heed:    shopifyRoom,
	},
	{
		name: "Discord", new: func() *API { return Discord() }, path: "/api/v10/channels/1/messages", gap: 20 * time.Millisecond,
		refused: over(429),
		heed: untilReset("X-RateLimit-Remaining", func(t *testing.T, r reply) time.Duration {
			return r.seconds(t, "X-RateLimit-Reset-After")
		}),
	},
	{
		name: "OpenAI", new: func() *API { return OpenAI() }, path: "/v1/responses", length: 4000,
		refused: over(429),
		heed: func(t *testing.T, r reply) time.Duration {
			if r.number(t, "X-RateLimit-Remaining-Requests") > 0 && r.number(t, "X-RateLimit-Remaining-Tokens") >= 1000 {
				return 0
			}
			return max(goDuration(t, r, "X-RateLimit-Reset-Requests"), goDuration(t, r, "X-RateLimit-Reset-Tokens"))
		},
	},
	{
		name: "Anthropic", new: func() *API { return Anthropic() }, path: "/v1/messages", length: 400,
		refused: over(429),
		heed: untilReset("Anthropic-RateLimit-Requests-Remaining", func(t *testing.T, r reply) time.Duration {
			reset, err := time.Parse(time.RFC3339, r.Get("Anthropic-RateLimit-Requests-Reset"))
			must(t, err)
			return r.until(t, reset)
		}),
	},
	{
		name: "Stripe", new: func() *API { return Stripe() }, path: "/v1/charges", gap: 40 * time.Millisecond,
		refused: over(429),
		heed:    func(*testing.T, reply) time.Duration { return 0 },
	},
	{
		name: "RateLimitFields", new: func() *API { return RateLimitFields() }, path: "/",
		refused: over(429),
		heed: func(t *testing.T, r reply) (wait time.Duration) {
			for item := range strings.SplitSeq(r.Get("RateLimit"), ", ") {
				var left, reset int
				for parameter := range strings.SplitSeq(item, ";") {
					if n, ok := strings.CutPrefix(parameter, "r="); ok {
						left, _ = strconv.Atoi(n)
					}
					if n, ok := strings.CutPrefix(parameter, "t="); ok {
						reset, _ = strconv.Atoi(n)
					}
				}
				if left == 0 {
					wait = max(wait, time.Duration(reset)*time.Second)
				}
			}
			return wait
		},
	},
}

func gitHubReset(t *testing.T, r reply) time.Duration {
	return r.until(t, time.Unix(int64(r.number(t, "X-RateLimit-Reset")), 0))
}

func shopifyRoom(t *testing.T, r reply) time.Duration {
	var body struct {
		Extensions struct {
			Cost struct {
				RequestedQueryCost float64
				ThrottleStatus     struct{ CurrentlyAvailable, RestoreRate float64 }
			}
		}
	}
	err := json.Unmarshal([]byte(r.body), &body)
	fatalIf(t, err != nil, "%s: %v", r.body, err)
	cost := body.Extensions.Cost
	lack := cost.RequestedQueryCost - cost.ThrottleStatus.CurrentlyAvailable
	return time.Duration(max(0, lack) / cost.ThrottleStatus.RestoreRate * 1e9)
}

func goDuration(t *testing.T, r reply, name string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(r.Get(name))
	must(t, err)
	return d
}

// each runs a test for each vendor, at a time that is not a whole second.
func each(t *testing.T, test func(t *testing.T, m manner, api *API)) {
	for _, m := range manners {
		bubble(t, m.name, func(t *testing.T) {
			time.Sleep(987654321)
			test(t, m, m.new())
		})
	}
}

// An API of each vendor refuses as it says.
func TestVendor(t *testing.T) {
	t.Run("A client that follows the vendor's headers is never refused", func(t *testing.T) {
		each(t, func(t *testing.T, m manner, api *API) {
			waited := false
			calls := 1000
			if m.name == "GitHub" {
				calls = 5500
			}
			for i := range calls {
				r := m.call(t, api)
				fatalIf(t, m.refused(r), "call %d was refused: %+v", i, r)
				wait := m.heed(t, r)
				waited = waited || wait > 0
				time.Sleep(max(wait, m.gap))
			}
			errorIf(t, !waited && m.name != "Stripe", "the limit was never reached, so nothing was tested")
		})
	})
	t.Run("A vendor without rules refuses nothing, and reports no limit", func(t *testing.T) {
		each(t, func(t *testing.T, m manner, api *API) {
			for !m.refused(m.call(t, api)) {
			}
			api.SetRules()
			for range 5 {
				if r := m.call(t, api); m.refused(r) || len(r.Header) > 4 { // Content-Type, Content-Length, Date, Via
					t.Fatalf("refused or limited without a rule: %+v", r)
				}
			}
		})
	})
	t.Run("Concurrent callers that ignore the vendor's headers are refused, and Report counts it", func(t *testing.T) {
		each(t, func(t *testing.T, m manner, api *API) {
			api.Latency, api.Jitter = 50*time.Millisecond, 150*time.Millisecond
			seen := make(chan bool, 20*50)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					for range 50 {
						seen <- m.refused(m.call(t, api))
					}
				})
			}
			for range 50 {
				time.Sleep(30 * time.Millisecond)
				api.SetRules(m.new().Rules...)
			}
			wg.Wait()
			close(seen)
			refused := 0
			for no := range seen {
				if no {
					refused++
				}
			}
			if r := api.Report(); refused == 0 || r.Refused != refused || r.Arrivals != 1000 || r.InProgress != 0 || r.Answered != r.Admitted {
				t.Errorf("%d refusals seen, report %+v", refused, r)
			}
		})
	})
}
