package retry

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// The limiter hears of a refusal by its headers, and the request by all that its body has
// said in time.
func TestARefusalWhoseBodyIsLateHoldsAllBeforeItIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration // for how long the body stalls
		text  string
		wait  time.Duration // until the second attempt
	}{
		"in time":  {time.Second, `{"error":{"retry_after":60}}`, 61 * time.Second},
		"too late": {5 * time.Second, `{"error":{"retry_after":60}}`, 2 * time.Second},
	} {
		for _, judged := range []bool{false, true} {
			if judged && c.wait > 10*time.Second {
				continue // its OnResponse judges the response
			}
			synctest.Test(t, func(t *testing.T) {
				b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 10, LeakRate: 10}))
				var at []time.Time
				start := time.Now()
				rt := &transport.Transport{Limiter: b, Profile: profile.Dropbox, Base: base(func(req *http.Request) (*http.Response, error) {
					if at = append(at, time.Now()); len(at) > 1 {
						return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
					}
					r, w := io.Pipe()
					context.AfterFunc(req.Context(), func() { w.CloseWithError(req.Context().Err()) })
					time.AfterFunc(c.after, func() {
						_, _ = io.WriteString(w, c.text)
						w.Close()
					})
					return &http.Response{StatusCode: 429, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: -1, Body: r, Request: req}, nil
				})}
				if judged {
					rt.OnResponse = func(resp *http.Response, p *outbound.Permit) {
						if resp.StatusCode == 429 {
							p.Refused(time.Second)
						}
					}
				}
				go func() {
					time.Sleep(20 * time.Millisecond)
					s, err := b.State(t.Context())
					if err != nil || s.HeldFor == 0 {
						t.Errorf("%s: held for %v, %v", name, s.HeldFor, err)
					}
				}()
				client := Config{MaxWait: time.Hour}.NewClient(rt)
				resp, err := client.Get(address)
				require.NoError(t, err)
				require.Equal(t, 200, resp.StatusCode)
				require.NoError(t, resp.Body.Close())
				require.Len(t, at, 2)
				require.GreaterOrEqual(t, at[1].Sub(start), c.wait, name)
				require.Less(t, at[1].Sub(start), c.wait+3*time.Second, name)
			})
		}
	}
}
