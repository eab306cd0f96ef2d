package transport_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// keyed sends a request with a member's key.
type keyed struct {
	key  string
	base http.RoundTripper
}

func (k keyed) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", k.key)
	return k.base.RoundTrip(req)
}

// keys returns n members of 60 requests a minute each, behind queues, and their buckets.
func keys(n int, api http.RoundTripper) (all []*transport.Transport, buckets []*outbound.Bucket) {
	for i := range n {
		name := fmt.Sprint("key ", i)
		b := outbound.Must(outbound.NewBucket(name, outbound.PerMinute(60)))
		buckets = append(buckets, b)
		all = append(all, &transport.Transport{Limiter: queue.New(b, queue.Config{}), Base: keyed{name, api}})
	}
	return all, buckets
}

// sent sends n requests at the same time, and returns when each was answered, in order.
func sent(t *testing.T, rt http.RoundTripper, n int) []time.Duration {
	t.Helper()
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	start := time.Now()
	for range n {
		wg.Go(func() {
			resp, err := (&http.Client{Transport: rt}).Get("http://api.test/")
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Error(resp.Status)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, time.Since(start))
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all
}

func perKey(n int) *outboundtest.API {
	return &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(float64(n), time.Minute).
		By(func(req *http.Request) string { return req.Header.Get("Authorization") })}}
}

// A pool of five keys sends five times as much as one key, and no key more than its limit.
func TestPool_UsesAllOfEachMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := perKey(60)
		one, _ := keys(1, api)
		alone := sent(t, one[0], 300)
		time.Sleep(time.Hour)
		five, _ := keys(5, api)
		all := sent(t, &transport.Pool{Members: five}, 5*300)
		t.Logf("300 by one key in %v, 1,500 by five in %v", alone[299], all[5*300-1])
		if len(all) != 5*300 || all[5*300-1] > alone[299]+10*time.Millisecond {
			t.Errorf("1,500 requests took %v; one key takes %v for 300", all[len(all)-1], alone[299])
		}
		if r := api.Report(); r.Refused > 0 {
			t.Errorf("%d refused", r.Refused)
		}
	})
}

// Requests that wait at a member which is then held go to the others.
func TestPool_WaitersOfAHeldMemberMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := perKey(60)
		members, buckets := keys(5, api)
		go func() {
			time.Sleep(500 * time.Millisecond)
			if err := buckets[2].Hold(context.Background(), time.Minute); err != nil {
				t.Error(err)
			}
		}()
		all := sent(t, &transport.Pool{Members: members}, 300)
		// Four keys send all but what the fifth sends after the hold: 4 a second, and then 5.
		ideal := make([]time.Duration, 0, 300)
		for k := range 5 {
			for at := time.Duration(0); at < 2*time.Minute; at += time.Minute * 1001 / 60_000 {
				if k != 2 || at == 0 || at > time.Minute+500*time.Millisecond {
					ideal = append(ideal, at)
				}
			}
		}
		slices.Sort(ideal)
		t.Logf("p50 %v, p99 %v; ideal %v, %v", all[150], all[297], ideal[150], ideal[297])
		if all[297] > ideal[297]*11/10 {
			t.Errorf("p99 %v, ideal %v", all[297], ideal[297])
		}
		if r := api.Report(); r.Refused > 0 {
			t.Errorf("%d refused", r.Refused)
		}
	})
}

// far is a store whose replies take a while.
type far struct {
	store.Store
	trip time.Duration
}

func (f far) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	time.Sleep(f.trip / 2)
	r, err := f.Store.Update(ctx, key, op)
	time.Sleep(f.trip / 2)
	return r, err
}

// Pools of two processes over buckets in one store use all members, keep their limits, and move what
// waits at a held one.
func TestPool_SharedBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := perKey(60)
		s := store.NewMemory()
		var buckets []*outbound.Bucket
		process := func() *transport.Pool {
			p := &transport.Pool{}
			for i := range 5 {
				name := fmt.Sprint("key ", i)
				b := outbound.Must(outbound.NewSharedBucket(far{s, 4 * time.Millisecond}, name, outbound.PerMinute(60)))
				buckets = append(buckets, b)
				p.Members = append(p.Members, &transport.Transport{Limiter: queue.New(b, queue.Config{}), Base: keyed{name, api}})
			}
			return p
		}
		pools := []*transport.Pool{process(), process()}
		time.AfterFunc(500*time.Millisecond, func() {
			if err := buckets[2].Hold(context.Background(), time.Minute); err != nil {
				t.Error(err)
			}
		})
		answered := make(chan []time.Duration)
		for _, p := range pools {
			go func() { answered <- sent(t, p, 150) }()
		}
		all := append(<-answered, <-answered...)
		slices.Sort(all)
		// Four members send 4 a second until the hold is over at 60.5 s, and five send 5.
		if ideal := 71 * time.Second; all[297] > ideal*11/10 {
			t.Errorf("p99 %v, ideal %v", all[297], ideal)
		}
		if r := api.Report(); r.Refused > 0 {
			t.Errorf("%d refused", r.Refused)
		}
		time.Sleep(time.Second) // the last requests to the store end
	})
}
