package outbound

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// link is a process's way to a store, which takes 1 ms and can be cut, and counts its requests.
type link struct {
	to    *FakeStore
	cut   atomic.Bool
	trips atomic.Int64
}

var errCut = fmt.Errorf("%w: the link is cut", store.ErrUnavailable)

func (l *link) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	l.trips.Add(1)
	time.Sleep(time.Millisecond)
	if l.cut.Load() {
		return store.Reply{}, errCut
	}
	return l.to.Update(ctx, key, op)
}

// inFleet runs a scenario with buckets of one key, in as many processes. Its name says what holds.
func inFleet(t *testing.T, name string, processes int, limits []Limit, test func(t *testing.T, links []*link, b []*Bucket)) {
	bubble(t, name, func(t *testing.T) {
		var shared FakeStore
		var links []*link
		var buckets []*Bucket
		for i := range processes {
			links = append(links, &link{to: &shared})
			buckets = append(buckets, Must(NewSharedBucket(links[i], "erp", limits...)))
		}
		test(t, links, buckets)
	})
}

// slot acquires a call, and asks again at each RetryAfter, for at most so long. It reports if the call is not admitted, or
// if it is although there is to be none.
func slot(t *testing.T, b *Bucket, within time.Duration, want bool, words string, args ...any) (p Permit) {
	t.Helper()
	begin, full := time.Now(), (*ThrottledError)(nil)
	p, err := b.Acquire(ctx, Cost{1})
	for ; errors.As(err, &full) && time.Since(begin)+full.RetryAfter <= within; p, err = b.Acquire(ctx, Cost{1}) {
		fatalIf(t, full.RetryAfter <= 0, "refused without a time: %v", err)
		time.Sleep(full.RetryAfter)
	}
	fatalIf(t, err != nil && (!errors.As(err, &full) || full.RetryAfter <= 0), "refused without a time: %v", err)
	equal(t, err == nil, want, "granted after %v, "+words, append([]any{time.Since(begin)}, args...)...)
	return p
}

// A call has a slot of all processes, which each returns when it has no use for it.
func TestInFlight_OfAllProcesses(t *testing.T) {
	inFleet(t, "InFlight alone in a shared bucket counts the calls of all processes, whatever they cost", 3, []Limit{InFlight(3)}, func(t *testing.T, links []*link, b []*Bucket) {
		p := admit(t, b[0], 1)
		admit(t, b[0], 5)
		admit(t, b[1], 0)
		for i := range b {
			if full := refused(t, b[i], Cost{0, 1}); full.Limit != "3 in flight" || full.RetryAfter <= 0 || full.InProgress != 2-i {
				t.Errorf("process %d, a fourth call: %v", i, full)
			}
			if s, err := b[i].State(ctx); err != nil || s.Level != 3 || s.Remaining != 0 || s.Limit != InFlight(3) {
				t.Errorf("process %d: %+v, %v", i, s, err)
			}
			e, err := b[i].Explain(ctx, Cost{1})
			where := []string{"2 in this process, 1 in another", "1 in this process, 2 in another", "0 in this process, 3 in 2 more, at most 2 in one"}[i]
			if err != nil || e.Because != "in flight" || e.Wait >= 0 || len(e.States) != 1 || e.States[0].Where() != where || !strings.HasSuffix(e.String(), "3 of 3 calls in progress ("+where+")") {
				t.Errorf("process %d: %v, %v; want %s", i, e, err, where)
			}
		}
		p.Done()
		slot(t, b[2], 100*time.Millisecond, true, "a slot that is free")
	})
	inFleet(t, "A bucket without calls makes no requests, and its slots are free for others", 2, []Limit{InFlight(2), PerSecond(100)}, func(t *testing.T, links []*link, b []*Bucket) {
		first := admit(t, b[0], 1)
		time.Sleep(20 * time.Millisecond)
		second := admit(t, b[0], 1)
		first.Done()
		second.Done()
		time.Sleep(50 * time.Millisecond)
		was := links[0].trips.Load()
		time.Sleep(time.Hour)
		n := links[0].trips.Load() - was
		errorIf(t, n > 0, "an idle bucket made %d requests", n)
		admit(t, b[1], 1)
		time.Sleep(20 * time.Millisecond)
		admit(t, b[1], 1)
		equal(t, level(t, b[0], 1), 2, "slots in use")
	})
	inFleet(t, "A call that fits only limits which another process has set is admitted", 2, []Limit{PerSecond(100), InFlight(2)}, func(t *testing.T, links []*link, b []*Bucket) {
		must(t, b[1].SetLimits(ctx, PerSecond(100).Burst(5), InFlight(2)))
		admit(t, b[0], 5)
		errorIs(t, errOf(b[0].Acquire(ctx, Cost{6})), ErrTooLarge, "a call that fits none")
	})
	inFleet(t, "SetLimits lowers and raises n for all processes. Calls in flight go on", 2, []Limit{InFlight(2)}, func(t *testing.T, links []*link, b []*Bucket) {
		first, second := admit(t, b[0], 1), admit(t, b[1], 1)
		must(t, b[0].SetLimits(ctx, InFlight(1)))
		first.Done()
		for i := range b {
			slot(t, b[i], time.Second, false, "a second slot of one, to process %d", i)
			l := b[i].Limits()
			errorIf(t, len(l) != 1 || l[0] != InFlight(1), "process %d: limits %v", i, l)
		}
		second.Done()
		third := slot(t, b[0], 10*time.Second, true, "the only slot")
		must(t, b[1].SetLimits(ctx, InFlight(4).Lease(time.Minute)))
		for i := range 3 {
			slot(t, b[1], 10*time.Second, true, "slot %d of four", i+2)
		}
		third.Done()
		slot(t, b[0], 10*time.Second, true, "the slot of the third")
		time.Sleep(5 * time.Second)
		equal(t, b[0].Limits()[0], InFlight(4).Lease(time.Minute), "the limit")
		must(t, b[0].SetLimits(ctx))
		equal(t, b[0].Limits()[0], InFlight(2), "the limit of the program")
		without := Must(NewSharedBucket(links[0], "other", PerSecond(5)))
		errorIs(t, without.SetLimits(ctx, PerSecond(5), InFlight(1)), ErrInvalid, "a bucket without InFlight")
	})
	// One that the rate refuses leaves its slot to the next call, and after 5 ms to other processes.
	inFleet(t, "Next to a rate a call takes a slot first", 2, []Limit{{Capacity: 2, LeakRate: 1}, InFlight(1)}, func(t *testing.T, links []*link, b []*Bucket) {
		p := admit(t, b[0], 1)
		full := refused(t, b[1], Cost{1})
		errorIf(t, full.Limit != "1 in flight", "no slot: %v", full)
		n := level(t, b[1], 0)
		errorIf(t, n < 0.9 || n > 1, "level %v: a call without a slot was charged", n)
		p.Done()
		p = admit(t, b[0], 1)
		p.Done()
		full = refused(t, b[0], Cost{1})
		errorIf(t, full.Limit == "1 in flight", "no units: %v", full)
		time.Sleep(3 * time.Second)
		p = slot(t, b[1], 100*time.Millisecond, true, "the slot of the refused call")
		p.Done()
		must(t, b[0].SetLimits(ctx, PerSecond(9)))
		equal(t, len(b[0].Limits()), 2, "limits that SetLimits without an InFlight leaves")
	})
	inFleet(t, "A store that has lost its data grants nothing for a third of a lease, if a process that holds slots asks first", 3, []Limit{InFlight(2)}, func(t *testing.T, links []*link, b []*Bucket) {
		first, second := admit(t, b[0], 1), admit(t, b[1], 1)
		links[0].to.Lose()
		time.Sleep(5 * time.Second) // the next ask of those that hold slots
		slot(t, b[2], 12*time.Second, false, "a third call of two, after the loss")
		first.Done()
		second.Done()
		slot(t, b[2], 10*time.Second, true, "a free slot")
	})
	inFleet(t, "Two buckets of one key in a process share its slots as two processes do", 1, []Limit{InFlight(1)}, func(t *testing.T, links []*link, b []*Bucket) {
		other := Must(NewSharedBucket(links[0], "erp", InFlight(1)))
		p := admit(t, b[0], 1)
		slot(t, other, time.Second, false, "a second call in one slot")
		p.Done()
		slot(t, other, 100*time.Millisecond, true, "the slot to the other bucket")
	})
	inFleet(t, "A booking whose ctx ends while it asks for a slot returns what it was to return", 1, []Limit{InFlight(1), {Capacity: 9, LeakRate: 1}}, func(t *testing.T, links []*link, b []*Bucket) {
		k := book(t, b[0], BookRequest{Costs: []Cost{{1}}, Wait: time.Minute})
		fatalIf(t, len(k.Tickets) != 1, "%d tickets", len(k.Tickets))
		k.Unused = append(k.Unused, k.Tickets...)
		ends, cancel := context.WithTimeout(ctx, 500*time.Microsecond)
		defer cancel()
		err := b[0].Book(ends, &k)
		errorIf(t, err == nil, "it has ended in time")
		for range 3 {
			p := slot(t, b[0], time.Second, true, "the slot")
			p.Done()
		}
	})
	bubble(t, "A booking waits no longer than its ctx for the slots that it has counted on, and returns its charges", func(t *testing.T) {
		s, slow := new(FakeStore), new(atomic.Bool)
		b := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			if time.Sleep(time.Millisecond); op.Action == store.Allot && slow.Load() {
				time.Sleep(time.Minute)
			}
			return s.Update(ctx, key, op)
		}), "erp", InFlight(9), Limit{Capacity: 99, LeakRate: 1e-3}))
		p := mustAcquire(t, b)
		p.Done()
		time.Sleep(time.Second)
		slow.Store(true)
		ends, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		began, k := time.Now(), BookRequest{Costs: []Cost{{1}, {1}, {1}}, Wait: time.Minute, Horizon: time.Minute}
		if err := b.Book(ends, &k); err == nil || time.Since(began) > 20*time.Millisecond {
			t.Errorf("%d tickets after %v, %v", len(k.Tickets), time.Since(began), err)
		}
		time.Sleep(2 * time.Minute)
		if s := states(t, b); s[0].Level > 1 || s[1].Level != 0 {
			t.Errorf("levels %v and %v; want that of the first call, and 0", s[0].Level, s[1].Level)
		}
	})
	inFleet(t, "Waiting calls are granted slots although other calls have stopped to wait meanwhile", 2, []Limit{InFlight(1)}, func(t *testing.T, links []*link, b []*Bucket) {
		p := admit(t, b[1], 1)
		links[0].cut.Store(true)
		notified := make(chan struct{}, 99)
		notify := func() { notified <- struct{}{} }
		book := func() error { return b[0].Book(ctx, &BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}) }
		for range 5 {
			stop := b[0].Waiting(notify)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = book()
			}()
			time.Sleep(1500 * time.Microsecond)
			stop()
			<-done
		}
		links[0].cut.Store(false)
		defer b[0].Waiting(notify)()
		time.Sleep(2 * time.Second)
		errorIs(t, book(), ErrThrottled, "no slot")
		p.Done()
		time.Sleep(500 * time.Millisecond)
		errorIf(t, len(notified) == 0, "no call was notified of the slot")
	})
}

// A process that is cut off keeps the slots of its calls for a lease, and starts no further calls when
// half of it is over. Then other processes have the slots.
func TestInFlight_ProcessThatIsCutOffLosesItsSlots(t *testing.T) {
	for _, lease := range []time.Duration{3 * time.Second, 30 * time.Second} {
		inFleet(t, lease.String(), 2, []Limit{InFlight(2).Lease(lease)}, func(t *testing.T, links []*link, b []*Bucket) {
			first, second := admit(t, b[0], 1), admit(t, b[0], 1)
			time.Sleep(lease / 20)
			links[0].cut.Store(true)
			slot(t, b[1], lease*2/3, false, "lease %v: another process's slot", lease)
			second.Done()
			errorIf(t, errOf(b[0].Acquire(ctx, Cost{1})) == nil, "lease %v: a call starts without the store", lease)
			p := slot(t, b[1], lease/3+time.Second, true, "lease %v: a slot later", lease)
			time.Sleep(lease / 10)
			links[0].cut.Store(false)
			time.Sleep(lease / 2)
			first.Done() // after the lease
			time.Sleep(50 * time.Millisecond)
			equal(t, level(t, b[1], 0), 1, "lease %v: slots in use, of the other process", lease)
			p.Done()
			slot(t, b[0], time.Second, true, "lease %v: a slot of the process that is back", lease)
		})
	}
}

// A process whose asks for slots are lost, while its bookings arrive, starts no call when half of the
// lease is over, even in a slot that it has: another process may have it soon.
func TestInFlight_LostAsksEndItsSlots(t *testing.T) {
	for _, after := range []float64{0.4, 0.6} {
		synctest.Test(t, func(t *testing.T) {
			const lease = 30 * time.Second
			var to FakeStore
			var lost atomic.Bool
			b := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
				if lost.Load() && op.Action == store.Allot {
					return store.Reply{}, errCut
				}
				return to.Update(ctx, key, op)
			}), "erp", PerSecond(100), InFlight(1).Lease(lease)))
			p := admit(t, b, 1)
			lost.Store(true)
			time.Sleep(time.Duration(after * float64(lease)))
			p.Done() // its slot stays here for a moment
			_, err := b.Acquire(ctx, Cost{1})
			errorIf(t, (err == nil) != (after < 0.5), "after %v leases: %v", after, err)
		})
	}
}

// aloneInFlight are the limits of a bucket whose only limit is an InFlight.
var aloneInFlight = []Limit{InFlight(2)}

// A bucket whose only limit is an InFlight answers by what the store has said.
func TestInFlight_Alone(t *testing.T) {
	// Its real cost changes nothing.
	inFleet(t, "A call that has a slot neither makes a request nor waits for one, as long as its process has a recent reply", 1, aloneInFlight, func(t *testing.T, links []*link, b []*Bucket) {
		admit(t, b[0], 1)
		p := admit(t, b[0], 1)
		began, was := time.Now(), links[0].trips.Load()
		for range 1000 {
			time.Sleep(time.Millisecond)
			p.Settle(Cost{5})
			p.Done()
			p = admit(t, b[0], 1)
		}
		d, n := time.Since(began), links[0].trips.Load()-was
		errorIf(t, d > 1001*time.Millisecond || n > 80, "1,000 calls of 1 ms in a slot took %v and made %d requests", d, n)
	})
	bubble(t, "A late reply from before a hold does not end the hold in this process", func(t *testing.T) {
		var s FakeStore
		b := Must(NewSharedBucket(StoreFunc(func(_ context.Context, key string, op *store.Op) (store.Reply, error) {
			r, err := s.Apply(key, op)
			if op.Action == store.Look && len(op.Reports) == 0 {
				time.Sleep(20 * time.Millisecond)
			}
			return r, err
		}), "k", aloneInFlight...))
		p := admit(t, b, 1)
		go func() { _, _ = b.State(ctx) }()
		time.Sleep(10 * time.Millisecond)
		p.Refused(time.Minute)
		p.Done()
		time.Sleep(15 * time.Millisecond)
		full := refused(t, b, Cost{1})
		errorIf(t, !full.Held, "on hold: %v", full)
	})
	inFleet(t, "A success whose report was lost is reported with the next call. Then a refusal is no second one in sequence", 1, aloneInFlight, func(t *testing.T, links []*link, b []*Bucket) {
		refused, ok := admit(t, b[0], 1), admit(t, b[0], 1)
		refused.Refused(time.Second)
		refused.Done()
		time.Sleep(2 * time.Second)
		p := admit(t, b[0], 1)
		ok.Failed()
		links[0].cut.Store(true)
		p.Done()
		links[0].cut.Store(false)
		next := admit(t, b[0], 1)
		next.Refused(time.Second)
		s := states(t, b[0])
		errorIf(t, s[0].HeldFor > time.Second, "held for %v", s[0].HeldFor)
	})
}

// A pause by one process stops the calls of another 25 ms and a request later, however it got its slots.
// Its own calls stop immediately, and a refusal holds the calls of all processes.
func TestInFlight_AloneHoldReachesAllProcesses(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 4 * time.Second} {
		inFleet(t, every.String(), 2, aloneInFlight, func(t *testing.T, links []*link, b []*Bucket) {
			p, other := admit(t, b[0], 1), admit(t, b[0], 1)
			for range 7 {
				time.Sleep(every)
				p.Done()
				p = admit(t, b[0], 1)
			}
			go func() { errorIs(t, b[1].Pause(ctx, time.Minute), nil, "the error") }()
			time.Sleep(time.Millisecond)
			paused := time.Now()
			for {
				p.Done()
				began := time.Now()
				q, err := b[0].Acquire(ctx, Cost{1})
				if held, ok := errors.AsType[*ThrottledError](err); ok && held.Held {
					break
				}
				if since := began.Sub(paused); err != nil || since > 26*time.Millisecond {
					t.Fatalf("calls each %v: %v after the pause: %v", every, since, err)
				}
				time.Sleep(time.Millisecond)
				p = q
			}
			must(t, b[0].Resume(ctx))
			p = slot(t, b[0], time.Second, true, "a slot after the hold")
			p.Refused(time.Minute)
			p.Done()
			other.Done()
			for i := range b {
				time.Sleep(50 * time.Millisecond) // until process 0 has returned its slots
				full := refused(t, b[i], Cost{1})
				errorIf(t, !full.Held || full.RetryAfter < 59*time.Second, "process %d, after a refusal: %v", i, full)
			}
			time.Sleep(time.Minute)
			p = admit(t, b[1], 1)
			p.Done()
			errorIf(t, b[0].Reservations() != nil, "there are reservations of no limit")
		})
	}
}
