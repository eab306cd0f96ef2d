package retry

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/transport"
)

// arrivals is an API that fails for a time, and counts its requests until then.
type arrivals struct {
	script http.RoundTripper
	until  time.Time
	n      atomic.Int64 // until then
	later  atomic.Int64
}

func (a *arrivals) RoundTrip(req *http.Request) (*http.Response, error) {
	if time.Now().Before(a.until) {
		a.n.Add(1)
		return a.script.RoundTrip(req)
	}
	a.later.Add(1)
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
}

// An API that fails for 60 s gets at most 1.2 times the fresh requests. Without a budget it gets five
// times as many. After enough successes, requests are sent again as before.
func TestBudget_BoundsTheRetriesOfAStorm(t *testing.T) {
	for name, fails := range map[string]step{"429": status(429), "503": status(503), "reset": reset, "no connection": dial} {
		for _, budget := range []int{500, 0} {
			synctest.Test(t, func(t *testing.T) {
				storm := func(api *arrivals, client *retryablehttp.Client) (all float64) {
					api.until = time.Now().Add(time.Minute)
					api.n.Store(0)
					const fresh = 600
					calls(t, client, fresh, 100*time.Millisecond)
					return float64(api.n.Load()) / fresh
				}
				api := &arrivals{script: play(fails)}
				client := Config{Budget: budget}.NewClient(&transport.Transport{Base: api})
				client.RetryWaitMin, client.RetryWaitMax = time.Second, 2*time.Second
				got := storm(api, client)
				if budget == 0 {
					require.Greater(t, got, 4., name)
					return
				}
				require.LessOrEqual(t, got, 1.2, name)
				require.Greater(t, got, 1.05, "%s: the budget is used", name)
				again := storm(api, client)
				require.LessOrEqual(t, again, 1.01, "%s: no success has returned any", name)
				calls(t, client, 550, 100*time.Millisecond)
				again = storm(api, client)
				require.InDelta(t, got, again, 0.01, "%s: 550 successes have filled the budget", name)
			})
		}
	}
}

// calls makes n fresh requests, one each pause, and waits for all.
func calls(t *testing.T, client *retryablehttp.Client, n int, pause time.Duration) {
	all(t, n, func(i int) {
		time.Sleep(time.Duration(i) * pause)
		_, _ = get(t, client)
	})
}

// A retry that succeeds returns some of what it took, so that rare failures are always sent again.
func TestBudget_RareFailuresAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := []step{}
		for range 200 {
			steps = append(steps, status(503))
			for range 10 { // the retry, and nine others
				steps = append(steps, status(200))
			}
		}
		api := play(steps...)
		client := Config{Budget: 30}.NewClient(&transport.Transport{Base: api})
		for range 2000 {
			resp, err := get(t, client)
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
		}
	})
}
