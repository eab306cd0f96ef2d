package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls that wait for a window leave when its units come back, also if the API asks for a pause of
// nearly so long meanwhile: in all processes, and with a leaky limit next to the window.
func TestQueue_WindowAgesInHold(t *testing.T) {
	const n = 10
	window := outbound.Window(n, time.Hour)
	for name, limits := range map[string][]outbound.Limit{"alone": {window}, "next to a leaky limit": {outbound.PerSecond(10), window}} {
		for shared, processes := range map[bool]int{false: 1, true: 3} {
			synctest.Test(t, func(t *testing.T) {
				memory := store.NewMemory()
				queues := make([]*Queue, processes)
				for i := range queues {
					b, err := outbound.NewBucket("key", limits...)
					if shared {
						b, err = outbound.NewSharedBucket(memory, "key", limits...)
					}
					if err != nil {
						t.Fatal(err)
					}
					queues[i] = New(b, Config{})
					defer queues[i].Close()
				}
				start := time.Now()
				permits := make([]outbound.Permit, n)
				for i := range permits {
					p, err := queues[i%processes].Acquire(bg, outbound.Cost{1})
					if err != nil {
						t.Fatal(err)
					}
					permits[i] = p
				}
				left := make(chan time.Duration, n)
				for i := range n {
					go func() {
						p, err := queues[i%processes].Acquire(bg, outbound.Cost{1})
						if err != nil {
							t.Error(err)
						}
						left <- time.Since(start)
						p.Done()
					}()
				}
				time.Sleep(time.Minute)
				permits[0].Refused(55 * time.Minute)
				for range n {
					// A refusal slows the clock: the last four minutes take longer.
					if at := <-left; at < time.Hour || at > 62*time.Minute {
						t.Errorf("%s, shared %v: a call left after %v", name, shared, at)
					}
				}
			})
		}
	}
}

// A call that waited when a hold came, and is refused for it, says so, as a new call does.
func TestQueue_RefusalInHold(t *testing.T) {
	for shared := range map[bool]int{false: 0, true: 1} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("key", outbound.PerMinute(60)))
			if shared {
				b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "key", outbound.PerMinute(60)))
			}
			q := New(b, Config{MaxWait: 20 * time.Second})
			defer q.Close()
			permit, err := q.Acquire(bg, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			const n = 5
			errs := make(chan error, n+1)
			for range n {
				go func() {
					_, err := q.Acquire(bg, outbound.Cost{1})
					errs <- err
				}()
			}
			time.Sleep(100 * ms)
			permit.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
			time.Sleep(100 * ms)
			_, err = q.Acquire(bg, outbound.Cost{1})
			errs <- err
			pass(0)
			if len(errs) != n+1 { // the one with a reservation as well
				t.Errorf("shared %v: %d of %d calls are refused in the hold", shared, len(errs), n+1)
			}
			for i := range n + 1 {
				full, ok := errors.AsType[*outbound.ThrottledError](<-errs)
				if !ok || !full.Held || full.Reason != "rate" || full.RetryAfter < 50*time.Second {
					t.Errorf("shared %v: call %d got %+v", shared, i, full)
				}
			}
		})
	}
}

// between is a store that does something once, while a reply is on its way.
type between struct {
	store.Store
	then func()
}

func (s *between) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := s.Store.Update(ctx, key, op)
	if then := s.then; then != nil && op.Action == store.Book {
		s.then = nil
		then()
	}
	return r, err
}

// The bucket has answered, and the queue does not listen to it yet.
func TestHold_ResumeDuringTheFirstRequestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &between{Store: store.NewMemory()}
		b, err := outbound.NewSharedBucket(s, "k", outbound.Limit{Capacity: 1, LeakRate: 1})
		if err != nil {
			t.Fatal(err)
		}
		q := New(b, Config{})
		b.Hold(bg, time.Hour)
		s.then = func() { b.Resume(bg) }
		begin := time.Now()
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil || time.Since(begin) > 3*time.Second {
			t.Errorf("%v after %v, want soon after the Resume", err, time.Since(begin))
		}
	})
}

func TestHold_NoCallLeavesAndThenTheyDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 5, LeakRate: 10})
		l := line{q: New(b, Config{})}
		begin := time.Now()
		for i := range 40 {
			l.arrive(bg, i, outbound.Cost{1}, nil)
		}
		time.Sleep(time.Second)
		if err := b.Hold(bg, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		for i, at := range l.at {
			switch d := at.Sub(begin); {
			case d > time.Second && d < 6*time.Second:
				t.Errorf("call %d went at %v, in the hold", i, d)
			case i > 0 && d > 6*time.Second && at.Sub(l.at[i-1]) < 99*time.Millisecond && l.at[i-1].Sub(begin) >= 6*time.Second:
				t.Errorf("call %d went %v after the one before it, want a drip", i, at.Sub(l.at[i-1]))
			}
		}
		if len(l.at) != 40 || !l.sorted() {
			t.Errorf("order %v", l.order)
		}
	})
}

func TestHold_RefusesCallsThatMissTheirDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
		q := New(b, Config{})
		results := make(chan error, 10)
		for i := range 10 {
			ctx, cancel := context.WithTimeout(bg, time.Duration(i)*time.Second+500*time.Millisecond)
			defer cancel()
			go func() {
				_, err := q.Acquire(ctx, outbound.Cost{1})
				results <- err
			}()
			synctest.Wait()
		}
		if len(results) != 1 {
			t.Fatalf("%d answered, want 1", len(results))
		}
		time.Sleep(time.Millisecond)
		b.Hold(bg, time.Hour)
		synctest.Wait()
		// The second call has a place: the queue refuses it when it looks at the place, or its ctx ends.
		if len(results) < 9 {
			t.Errorf("%d answered at the hold, want all who cannot make it", len(results))
		}
		<-results
		for len(results) > 0 {
			if err := <-results; !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		pass(time.Minute)
	})
}

func TestHold_ResumeBooksAgainInOrder(t *testing.T) {
	for _, rate := range []float64{1, 1000} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: rate})
			l := line{q: New(b, Config{})}
			var h outboundtest.History
			for i := range 50 {
				l.arrive(bg, i, outbound.Cost{1}, func(*outbound.Permit) { h.Add(time.Now(), 1) })
			}
			b.Hold(bg, time.Hour)
			time.Sleep(10 * time.Second)
			if l.went() != 1 {
				t.Errorf("%d went, want 1", l.went())
			}
			b.Resume(bg)
			// Calls that do not wait come as well: the places booked before are void.
			for range 100 {
				if _, err := b.Acquire(bg, outbound.Cost{1}); err == nil {
					h.Add(time.Now(), 1)
				}
				time.Sleep(100 * time.Microsecond)
			}
			pass(time.Hour)
			if len(l.order) != 50 || !l.sorted() {
				t.Errorf("order %v", l.order)
			}
			if err := h.Check(1, rate, 0); err != nil {
				t.Errorf("at %v/s: %v", rate, err)
			}
		})
	}
}

// The queue hears of it when another worker ends a hold.
func TestHold_ResumeByAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		limit := outbound.Limit{Capacity: 1, LeakRate: 10}
		q := New(shared(t, m, limit), Config{})
		other := shared(t, m, limit)
		if err := other.Hold(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		time.AfterFunc(time.Minute+time.Second, func() { _ = other.Resume(bg) })
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil || time.Since(begin) > time.Minute+newsCheck+2*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}
