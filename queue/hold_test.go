package queue

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls that wait for a window leave when its units return, also if the API asks for a pause of
// nearly so long meanwhile: in all processes, and with a leaky limit next to the window.
func TestHold_WindowAgesInIt(t *testing.T) {
	const n = 10
	window := outbound.Window(n, time.Hour)
	for name, limits := range map[string][]outbound.Limit{"alone": {window}, "next to a leaky limit": {outbound.PerSecond(10), window}} {
		for _, processes := range []int{0, 3} { // 0: in memory
			synctest.Test(t, func(t *testing.T) {
				m, queues := store.NewMemory(), []*Queue{New(bucket(t, limits...), Config{})}
				for i := range processes {
					queues = append(queues[:i], New(shared(t, m, limits...), Config{}))
				}
				begin, permits, all := time.Now(), []outbound.Permit(nil), calls(nil)
				for i := range n {
					permits = append(permits, admitted(t, queues[i%len(queues)], 1))
				}
				for i := range n {
					all = append(all, comeAndUse(bg, queues[i%len(queues)], done, 1))
				}
				time.Sleep(time.Minute)
				permits[0].Refused(55 * time.Minute)
				pass(2 * time.Hour)
				for i, c := range all {
					// A refusal slows the clock: the last four minutes take longer.
					if at := c.ended().left.Sub(begin); c.ended().err != nil || at < time.Hour || at > 62*time.Minute {
						t.Errorf("%s, %d processes: call %d left after %v: %v", name, processes, i, at, c.ended().err)
					}
				}
				for _, q := range queues {
					q.Close()
				}
			})
		}
	}
}

// A pause costs its time only: what leaks in it lets calls go at once afterwards, in their order. A
// reservation in it is not late by this process. 5 of 6 as block_for of shopify/prorate lets go.
func TestHold_PauseLetsTheLimitsLeak(t *testing.T) {
	bothWays(t, []outbound.Limit{{Capacity: 5, LeakRate: 5}}, func(t *testing.T, b *outbound.Bucket) {
		q := New(b, Config{})
		defer q.Close()
		defer b.Observe(func(e outbound.Event) {
			if e.Kind == outbound.EventLate {
				t.Errorf("%+v", e)
			}
		})()
		begin, all := time.Now(), comeAll(8, bg, q, 1) // 3 have reservations in the pause
		time.Sleep(ms)
		must(t, b.Pause(bg, 2*time.Second-ms))
		all = append(all, comeAll(3, bg, q, 1)...)
		pass(3 * time.Second)
		for i, c := range all {
			want := []time.Duration{0, 0, 0, 0, 0, 2000, 2000, 2000, 2000, 2000, 2200}[i] * ms
			if at := c.ended().left.Sub(begin); c.ended().err != nil || at < want || at > want+10*ms {
				t.Errorf("call %d left after %v, %v, want %v", i, at, c.ended().err, want)
			}
		}
		if _, sorted := all.admitted(); !sorted || q.Stats().Late > 0 {
			t.Errorf("in order: %v; %+v", sorted, q.Stats())
		}
	})
}

// The error of a call that waited when a hold began, and is refused for it, has the hold and its reason, as
// that of a new call. So has that of a call which only its deadline keeps from waiting for the end.
func TestHold_RefusalHasItsReason(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.PerMinute(60)}, func(t *testing.T, b *outbound.Bucket) {
		q := New(b, Config{MaxWait: 20 * time.Second})
		defer q.Close()
		permit := admitted(t, q, 1)
		all := append(comeAll(5, bg, q, 1), comeIn(t, 10*time.Second, New(b, Config{}), 1))
		time.Sleep(100 * ms)
		permit.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
		time.Sleep(100 * ms)
		all = append(all, come(bg, q, 1))
		for i, c := range all { // the first has a reservation
			if full := c.refused(); !full.Held || full.Reason != "rate" || full.RetryAfter < 50*time.Second {
				t.Errorf("call %d has %v", i, c.ended().err)
			}
		}
	})
}

// A Resume counts that comes when the bucket has answered and the queue does not listen to it yet.
func TestHold_ResumeDuringTheFirstRequestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory()}
		b := shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 1})
		b.Hold(bg, time.Hour)
		var resumed atomic.Bool
		s.after = func(op *store.Op, _ *store.Reply) error {
			if op.Action != store.Book || resumed.Swap(true) {
				return nil
			}
			return b.Resume(bg)
		}
		c := come(bg, New(b, Config{}), 1)
		if pass(3 * time.Second); !c.admitted() {
			t.Errorf("waits 3 s after the Resume: %v", c.ended().err)
		}
	})
}

// After a Resume the calls book again, in their order.
func TestHold_ResumeBooksAgainInOrder(t *testing.T) {
	for _, rate := range []float64{1, 1000} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: rate})
			all, others := comeAll(50, bg, New(b, Config{}), 1), calls(nil)
			b.Hold(bg, time.Hour)
			pass(10 * time.Second)
			if n, _ := all.admitted(); n != 1 {
				t.Errorf("%d left, want 1", n)
			}
			b.Resume(bg)
			for range 100 { // which the void reservations do not keep from leaving
				others = append(others, come(bg, b, 1))
				time.Sleep(100 * time.Microsecond)
			}
			pass(time.Hour)
			if n, sorted := all.admitted(); n != 50 || !sorted {
				t.Errorf("%d left, in order: %v", n, sorted)
			}
			if err := append(all, others...).history(0).Check(1, rate, 0); err != nil {
				t.Errorf("at %v/s: %v", rate, err)
			}
		})
	}
}

// The queue learns of it when another process ends a hold.
func TestHold_ResumeByAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		limit := outbound.Limit{Capacity: 1, LeakRate: 10}
		other := shared(t, m, limit)
		must(t, other.Hold(bg, time.Hour))
		c := come(bg, New(shared(t, m, limit), Config{}), 1)
		time.Sleep(time.Minute + time.Second)
		must(t, other.Resume(bg))
		if pass(newsCheck + time.Second); !c.admitted() {
			t.Errorf("waits %v after the Resume: %v", newsCheck, c.ended().err)
		}
		pass(time.Hour)
	})
}
