package watch

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// counting is a store that counts.
type counting struct {
	*watchedStore
	stats store.StoreStats
}

func (c *counting) Stats() store.StoreStats { return c.stats }

func TestABoardShowsStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		c := &counting{&watchedStore{Memory: store.NewMemory()}, store.StoreStats{Answered: 30, Remembered: 5, Failed: 2, Repeats: 1, Trips: store.Times{
			Count: 10, Time: 50 * time.Millisecond, Within: [len(store.TimeBounds)]uint64{0: 4, 6: 6}}}}
		if err := b.AddStore("redis", c); err != nil {
			t.Fatal(err)
		}
		for _, bad := range []any{nil, 5, store.NewMemory(), (*fallback.Store)(nil)} {
			if err := b.AddStore("bad", bad); !errors.Is(err, outbound.ErrInvalid) {
				t.Errorf("%T: %v", bad, err)
			}
		}
		s := b.Snapshot(bg, Query{}).Stores
		if len(s) != 1 || s[0].Away || s[0].Stats.Trips.Time != 50*time.Millisecond || s[0].Stats.Answered != 30 || len(s[0].Trouble) != 0 {
			t.Errorf("%+v", s)
		}
		c.stats.Outages = []store.Outage{{Server: "10.0.0.1:6379", Since: time.Now().Add(-time.Minute), Err: store.ErrUnavailable}}
		s = b.Snapshot(bg, Query{}).Stores
		if !s[0].Away || s[0].AwayFor != time.Minute || !strings.HasPrefix(s[0].Trouble[0], "10.0.0.1:6379 has not answered for 1 min: ") {
			t.Errorf("%+v", s)
		}
		text := metricsOf(&b)
		for _, line := range []string{`store_unavailable{store="redis"} 1`, `store_request_time_seconds_bucket{store="redis",le="0.001"} 4`,
			`store_request_time_seconds_bucket{store="redis",le="+Inf"} 10`, `store_request_time_seconds_sum{store="redis"} 0.05`, `store_operations_total{store="redis"} 30`} {
			if !strings.Contains(text, "dripfeed_"+line+"\n") {
				t.Errorf("no %s in\n%s", line, text)
			}
		}
		if strings.Contains(text, "10.0.0.1") {
			t.Error("a metric tells a host")
		}
	})
}

func TestStore_ShowsAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		f := &fallback.Store{Store: broken{}, Share: 0.5}
		if err := b.AddStore("quotas", f); err != nil {
			t.Fatal(err)
		}
		if s := b.Snapshot(bg, Query{}).Stores[0]; s.Away || s.Fallback == nil {
			t.Errorf("%+v", s)
		}
		l := b.Add("api", shared(t, f, "api", outbound.Limit{Capacity: 10, LeakRate: 1}, outbound.Limit{Capacity: 100, LeakRate: 1, Name: "other"}))
		_, _ = l.Acquire(bg, outbound.Cost{1})
		time.Sleep(time.Second)
		s := b.Snapshot(bg, Query{}).Stores[0]
		if !s.Away || s.AwayFor != time.Second || s.Fallback.Outages != 1 || s.Fallback.Keys != 1 || len(s.Trouble) != 2 || !strings.Contains(s.Trouble[1], "1 key alone") {
			t.Errorf("%+v", s)
		}
	})
}

// A store that counts nothing has no numbers, and without an error no words.
func TestAStoreThatCountsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		if err := b.AddStore("plain", &fallback.Store{Store: store.NewMemory()}); err != nil {
			t.Fatal(err)
		}
		text := metricsOf(&b)
		if strings.Contains(text, "store_requests_total{") || strings.Contains(text, "store_request_time_seconds_count{") || !strings.Contains(text, `store_unavailable{store="plain"} 0`) {
			t.Error(text)
		}
		c := &counting{&watchedStore{Memory: store.NewMemory()}, store.StoreStats{Outages: []store.Outage{{Since: time.Now().Add(-time.Minute)}}}}
		if err := b.AddStore("plain", c); err != nil {
			t.Fatal(err)
		}
		if s := b.Snapshot(bg, Query{}).Stores[0]; len(s.Trouble) != 1 || s.Trouble[0] != "The store has not answered for 1 min." {
			t.Errorf("%q", s.Trouble)
		}
	})
}
