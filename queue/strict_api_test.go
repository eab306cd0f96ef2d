package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// strict is a strict API, and callers that keep a limit which matches its rule.
type strict struct {
	n       int
	window  time.Duration // or the length of a period
	limit   outbound.Limit
	rule    outboundtest.Rule
	skew    time.Duration // of the API's clock
	workers int           // 1: on a bucket in memory; else each has one in a store
	queued  bool          // calls wait in a queue; else they ask a bare bucket
	random  bool          // calls come at random, at nine tenths of the limit; else there is always a next one
}

func (s strict) String() string {
	return fmt.Sprintf("%v, %v, skew %v, %d workers, queued %v, at random %v", s.limit, s.rule, s.skew, s.workers, s.queued, s.random)
}

// travel is the longest way of a call to the API.
const travel = 5 * ms

// run lets the callers go for so many windows, and returns what the API has seen.
func (s strict) run(t *testing.T, windows int) *outboundtest.API {
	api := &outboundtest.API{Rules: []outboundtest.Rule{s.rule}, Skew: s.skew}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(windows)*s.window)
		defer cancel()
		store := store.NewMemory()
		const callers = 5
		var all sync.WaitGroup
		for w := range s.workers {
			var from outbound.Limiter = outbound.Must(outbound.NewBucket("api", s.limit))
			if s.workers > 1 {
				from = outbound.Must(outbound.NewSharedBucket(store, "api", s.limit))
			}
			if s.queued {
				from = New(from.(*outbound.Bucket), Config{})
			}
			for c := range callers {
				r := rand.New(rand.NewPCG(uint64(w), uint64(c)))
				every := float64(s.window) / float64(s.n) * float64(s.workers*callers) / 0.9
				all.Go(func() {
					for ctx.Err() == nil {
						if s.random {
							time.Sleep(time.Duration(r.ExpFloat64() * every))
						}
						p, err := from.Acquire(ctx, outbound.Cost{1})
						if full, ok := errors.AsType[*outbound.ThrottledError](err); ok && !s.queued {
							if !s.random {
								time.Sleep(full.RetryAfter)
							}
							continue
						}
						if err != nil {
							return // it would not go before the end
						}
						time.Sleep(time.Duration(r.Int64N(int64(travel))))
						req, _ := http.NewRequest("GET", "http://api.example.com/", nil)
						if res, err := api.RoundTrip(req); err == nil {
							res.Body.Close()
						}
						p.Done()
					}
				})
			}
		}
		all.Wait()
	})
	return api
}

// An API with the same limit refuses no call of a queue.
func TestStrictAPI_RefusesNoCallOfTheSameLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	const n, w, s = 20, 10 * time.Second, time.Second
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	var all []strict
	for _, m := range []strict{
		{limit: outbound.Window(n, w), rule: outboundtest.SlidingLog(n, w), window: w},
		{limit: outbound.Window(n, w), rule: outboundtest.FixedWindow(n, w), window: w},
		{limit: outbound.Window(n, w), rule: outboundtest.FirstCallWindow(n, w), window: w},
		{limit: outbound.FixedWindow(n, w), rule: outboundtest.FirstCallWindow(n, w), window: w},
		{limit: outbound.Hourly(n), rule: outboundtest.CalendarWindow(n, outboundtest.Hour, time.UTC), window: time.Hour},
		{limit: outbound.Hourly(n), rule: outboundtest.CalendarWindow(n, outboundtest.Hour, time.UTC), window: time.Hour, skew: s - 2*travel},
		{limit: outbound.Hourly(n), rule: outboundtest.CalendarWindow(n, outboundtest.Hour, time.UTC), window: time.Hour, skew: -s},
		{limit: outbound.Daily(n, berlin), rule: outboundtest.CalendarWindow(n, outboundtest.Day, berlin), window: 24 * time.Hour},
	} {
		for _, m.workers = range []int{1, 10} {
			if m.workers > 1 && m.window > time.Hour {
				continue // a queue asks every ten seconds whether its reservation stands
			}
			for _, m.queued = range []bool{false, true} {
				for _, m.random = range []bool{false, true} {
					m.n = n
					all = append(all, m)
				}
			}
		}
	}
	windows := 12
	if raced {
		windows = 4
	}
	for _, m := range all {
		api := m.run(t, windows)
		report := api.Report()
		if report.Refused > 0 {
			t.Errorf("%v: %d of %d calls refused", m, report.Refused, report.Arrivals)
		}
		if report.Admitted < n*windows/2 {
			t.Errorf("%v: only %d calls of %d", m, report.Admitted, n*windows)
		}
	}
}
