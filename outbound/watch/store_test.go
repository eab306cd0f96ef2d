package watch

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// What a board shows of a store.
func TestAddStore_ShowsTheStore(t *testing.T) {
	question(t, "A board shows the counts and the outages of a store, and no metric has a host", func(t *testing.T, b *Board) {
		c := newStore()
		c.stats = store.StoreStats{Answered: 30, Remembered: 5, Failed: 2, Repeats: 1, Requests: store.Times{
			Count: 10, Time: 50 * time.Millisecond, Within: [len(store.TimeBounds)]uint64{0: 4, 6: 6}}}
		check(t, b.AddStore("redis", c))
		for _, bad := range []any{nil, 5, store.NewMemory(), (*fallback.Store)(nil)} {
			err := b.AddStore("bad", bad)
			errorIf(t, !errors.Is(err, outbound.ErrInvalid), "%T: %v", bad, err)
		}
		s := b.Snapshot(bg, Query{}).Stores
		errorIf(t, len(s) != 1 || s[0].Unavailable || s[0].Stats.Requests.Time != 50*time.Millisecond || s[0].Stats.Answered != 30 || len(s[0].Trouble) != 0,
			"%+v", s)
		for server, want := range map[string]string{"": "The store has not answered for 1 min.", "10.0.0.1:6379": "10.0.0.1:6379 has not answered for 1 min."} {
			c.stats.Outages = []store.Outage{{Server: server, Since: time.Now().Add(-time.Minute)}}
			s := b.Snapshot(bg, Query{}).Stores[0]
			errorIf(t, !s.Unavailable || s.UnavailableFor != time.Minute || len(s.Trouble) != 1 || s.Trouble[0] != want, "%+v", s)
		}
		c.stats.Outages = []store.Outage{{Server: "10.0.0.1:6379", Since: time.Now(), Err: store.ErrUnavailable}}
		if s := b.Snapshot(bg, Query{}).Stores[0]; s.Err == "" || !strings.HasSuffix(s.Trouble[0], ": "+s.Err+".") {
			t.Errorf("%+v", s)
		}
		exports(t, b, `store_unavailable{store="redis"} 1`, `store_requests_total{store="redis"} 10`, `store_operations_total{store="redis"} 30`,
			`store_repeats_total{store="redis"} 1`, `store_failures_total{store="redis"} 2`, `store_request_time_seconds_bucket{store="redis",le="0.001"} 4`,
			`store_request_time_seconds_bucket{store="redis",le="+Inf"} 10`, `store_request_time_seconds_sum{store="redis"} 0.05`)
		lacks(t, b, "10.0.0.1")
	})
	question(t, "A store that counts nothing has no numbers", func(t *testing.T, b *Board) {
		check(t, b.AddStore("plain", &fallback.Store{Store: store.NewMemory()}))
		exports(t, b, `store_unavailable{store="plain"} 0`)
		lacks(t, b, "store_requests_total{", "store_request_time_seconds_count{")
	})
}
