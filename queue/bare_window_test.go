package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// bare are processes that ask a bucket in a store themselves, without a queue.
type bare struct {
	limits []outbound.Limit
	rule   outboundtest.Rule
	ways   []time.Duration // to the store, of each process
	faults bool            // replies that come late, as to a process that was stopped, and lost ones
}

// run lets them call for so long, and returns what a strict API has seen, and the longest that a
// call has waited after its process had heard of the store once.
func (b bare) run(t *testing.T, length time.Duration) (outboundtest.Report, time.Duration) {
	api := &outboundtest.API{Rules: []outboundtest.Rule{b.rule}}
	var longest atomic.Int64
	synctest.Test(t, func(t *testing.T) {
		kept := store.NewMemory()
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		for _, way := range b.ways {
			f := &far{Store: kept, way: way, jitter: 0.05}
			if b.faults {
				f.late = func(int) time.Duration {
					switch n := rand.IntN(300); {
					case n == 0:
						return 3 * time.Second
					case n < 10:
						return rand.N(100 * ms)
					}
					return 0
				}
				f.after = func(*store.Op, *store.Reply) error {
					if rand.IntN(100) == 0 {
						return errAway
					}
					return nil
				}
			}
			k := outbound.Must(outbound.NewSharedBucket(f, "api", b.limits...))
			for range 10 {
				go func() {
					for first := true; ctx.Err() == nil; first = false {
						asked := time.Now()
						p, err := k.Acquire(ctx, one)
						full, _ := errors.AsType[*outbound.ThrottledError](err)
						switch {
						case err == nil:
							if !first {
								longest.Store(max(longest.Load(), int64(time.Since(asked))))
							}
							req, _ := http.NewRequest("GET", "http://api.example.com/", nil)
							res, _ := api.RoundTrip(req)
							res.Body.Close()
							p.Done()
						case full != nil:
							time.Sleep(full.RetryAfter)
						default:
							time.Sleep(100 * ms)
						}
					}
				}()
			}
		}
		<-ctx.Done()
		time.Sleep(10 * time.Second)
	})
	return api.Report(), time.Duration(longest.Load())
}

// A Window in a store needs no queue: at most n calls leave in any of its lengths, however far away
// the store is, and however late replies come. A call waits for one round trip more, and the quota
// is used.
func TestBare_WindowHolds(t *testing.T) {
	const n, w = 40, time.Second
	window, log := outbound.Window(n, w), outboundtest.SlidingLog(n, w)
	for _, way := range []time.Duration{ms / 10, 5 * ms / 2, 10 * ms, 50 * ms} {
		if raced && way != 10*ms {
			continue
		}
		all, mixed := []time.Duration{way, way, way, way}, []time.Duration{ms / 10, way, way}
		for _, b := range []bare{
			{limits: []outbound.Limit{window}, rule: log, ways: all},
			{limits: []outbound.Limit{window}, rule: log, ways: mixed},
			{limits: []outbound.Limit{window}, rule: log, ways: mixed, faults: true},
			{limits: []outbound.Limit{window, outbound.PerSecond(100)}, rule: log, ways: mixed, faults: true},
			{limits: []outbound.Limit{outbound.FixedWindow(n, w)}, rule: outboundtest.FirstCallWindow(n, w), ways: mixed, faults: true},
			{limits: []outbound.Limit{outbound.Hourly(n)}, rule: outboundtest.CalendarWindow(n, outboundtest.Hour, time.UTC), ways: mixed, faults: true},
		} {
			t.Run(fmt.Sprint(b.limits, b.ways, b.faults), func(t *testing.T) {
				length, every := time.Minute, w+10*ms
				if b.limits[0] == outbound.Hourly(n) {
					length, every = 5*time.Hour, time.Hour
				}
				r, longest := b.run(t, length)
				if r.Refused > 0 {
					t.Errorf("%d calls too many", r.Refused)
				}
				part := 0.95 // of what leaves if a round trip separates two windows
				if b.faults {
					part = 0.85
				}
				if want := part * n * float64(length) / float64(every+2*way); float64(r.Admitted) < want {
					t.Errorf("%d calls were admitted, want %.0f", r.Admitted, want)
				}
				most := 4*way + 2*ms
				if len(b.ways) == 3 {
					most = 10*way + 2*ms // it asks again if a call from farther away is booked before it
				}
				if !b.faults && longest > most {
					t.Errorf("a call has waited %v, want %v", longest, most)
				}
			})
		}
	}
}

// A call whose ctx ends while it waits for its time goes back, and nothing stays charged.
func TestBare_EndedCtxReturnsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := shared(t, &far{Store: store.NewMemory(), way: 50 * ms, jitter: 0.5}, outbound.Window(1000, time.Hour))
		admitted, ended := 0., 0
		for i := range 200 {
			ctx, cancel := context.WithTimeout(bg, 60*ms+time.Duration(i)*ms/2)
			switch _, err := k.Acquire(ctx, one); {
			case err == nil:
				admitted++
			case errors.Is(err, context.DeadlineExceeded):
				ended++
			default:
				t.Fatal(err)
			}
			cancel()
		}
		pass(time.Second) // what was given back has arrived
		states, err := k.States(bg)
		if err != nil || states[0].Level != admitted || ended < 20 || admitted < 20 {
			t.Errorf("%v are charged, %v were admitted, %d ended, %v", states, admitted, ended, err)
		}
	})
}
