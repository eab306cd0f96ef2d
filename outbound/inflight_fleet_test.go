package outbound

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// link is a process's way to a store, which can be cut, and counts what goes by it.
type link struct {
	to    *atomic.Pointer[store.Memory]
	cut   atomic.Bool
	trips atomic.Int64
}

var errCut = errors.New("the link is cut")

func (l *link) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	l.trips.Add(1)
	time.Sleep(time.Millisecond)
	if l.cut.Load() {
		return store.Reply{}, errors.Join(store.ErrUnavailable, errCut)
	}
	return l.to.Load().Update(ctx, key, op)
}

// inFleet has a test with buckets of one key, in as many processes.
func inFleet(t *testing.T, processes int, limits []Limit, test func(links []*link, buckets []*Bucket)) {
	synctest.Test(t, func(t *testing.T) {
		var shared atomic.Pointer[store.Memory]
		shared.Store(store.NewMemory())
		var links []*link
		var buckets []*Bucket
		for range processes {
			l := &link{to: &shared}
			links = append(links, l)
			buckets = append(buckets, Must(NewSharedBucket(l, "erp", limits...)))
		}
		test(links, buckets)
	})
}

// admitSoon acquires a call, and asks again when it is told to, for at most so long.
func admitSoon(t *testing.T, b *Bucket, within time.Duration) (p Permit, ok bool) {
	t.Helper()
	for end := time.Now().Add(within); ; {
		p, err := b.Acquire(ctx, Cost{1})
		var full *ThrottledError
		switch {
		case err == nil:
			return p, true
		case !errors.As(err, &full) || full.RetryAfter <= 0:
			t.Fatalf("refused without a time: %v", err)
		case time.Now().Add(full.RetryAfter).After(end):
			return p, false
		}
		time.Sleep(full.RetryAfter)
	}
}

// InFlight alone in a shared bucket counts the calls of all processes, whatever they cost.
func TestInFlight_CountsAllProcesses(t *testing.T) {
	inFleet(t, 3, []Limit{InFlight(3)}, func(links []*link, b []*Bucket) {
		p := admit(t, b[0], 1)
		admit(t, b[0], 5)
		admit(t, b[1], 0)
		var full *ThrottledError
		for i := range b {
			if _, err := b[i].Acquire(ctx, Cost{0, 1}); !errors.As(err, &full) || full.Limit != "3 in flight" || full.RetryAfter <= 0 || full.InProgress != 2-i {
				t.Errorf("process %d, a fourth call: %v", i, err)
			}
			if s, err := b[i].State(ctx); err != nil || s.Level != 3 || s.Remaining != 0 || s.Limit != InFlight(3) {
				t.Errorf("process %d: %+v, %v", i, s, err)
			}
			e, err := b[i].Explain(ctx, Cost{1})
			if err != nil || e.Because != "in flight" || e.Wait >= 0 || len(e.States) != 1 {
				t.Errorf("process %d: %v, %v", i, e, err)
			}
		}
		p.Done()
		if _, ok := admitSoon(t, b[2], 100*time.Millisecond); !ok {
			t.Error("a slot that is free is not granted")
		}
	})
}

// A bucket without calls makes no trips, and its slots are free for others.
func TestInFlight_AnIdleBucketMakesNoTrips(t *testing.T) {
	inFleet(t, 2, []Limit{InFlight(2), PerSecond(100)}, func(links []*link, b []*Bucket) {
		first, second := admit(t, b[0], 1), Permit{}
		time.Sleep(20 * time.Millisecond)
		second = admit(t, b[0], 1)
		first.Done()
		second.Done()
		time.Sleep(50 * time.Millisecond)
		was := links[0].trips.Load()
		time.Sleep(time.Hour)
		if n := links[0].trips.Load() - was; n > 0 {
			t.Errorf("an idle bucket made %d trips", n)
		}
		admit(t, b[1], 1)
		time.Sleep(20 * time.Millisecond)
		admit(t, b[1], 1)
		if s := states(t, b[0]); s[1].Level != 2 {
			t.Errorf("%v of 2 slots in use", s[1].Level)
		}
	})
}

// A slot whose call ends is handed on in the process without a trip.
func TestInFlight_ASlotIsHandedOn(t *testing.T) {
	inFleet(t, 1, []Limit{InFlight(1)}, func(links []*link, b []*Bucket) {
		p := admit(t, b[0], 1)
		was := links[0].trips.Load()
		for range 100 {
			p.Done()
			p = admit(t, b[0], 1)
		}
		if n := links[0].trips.Load() - was; n > 100 { // each call looks whether the key is on hold
			t.Errorf("100 calls in one slot made %d trips", n)
		}
	})
}

// A process that is cut off keeps the slots of its calls for a lease, and starts no further calls when
// half of it is over. Then others have the slots.
func TestInFlight_AProcessThatIsCutOffLosesItsSlots(t *testing.T) {
	for _, lease := range []time.Duration{3 * time.Second, 30 * time.Second} {
		inFleet(t, 2, []Limit{InFlight(2).Lease(lease)}, func(links []*link, b []*Bucket) {
			first, second := admit(t, b[0], 1), admit(t, b[0], 1)
			time.Sleep(lease / 20)
			links[0].cut.Store(true)
			cut := time.Now()
			if _, ok := admitSoon(t, b[1], lease*2/3); ok {
				t.Errorf("lease %v: another process has a slot after %v", lease, time.Since(cut))
			}
			second.Done()
			if _, err := b[0].Acquire(ctx, Cost{1}); err == nil {
				t.Errorf("lease %v: a call starts after %v without the store", lease, time.Since(cut))
			}
			p, ok := admitSoon(t, b[1], lease/3+time.Second)
			if !ok {
				t.Fatalf("lease %v: no slot after %v", lease, time.Since(cut))
			}
			time.Sleep(lease / 10)
			links[0].cut.Store(false)
			time.Sleep(lease / 2)
			first.Done() // after the lease
			time.Sleep(50 * time.Millisecond)
			if s := states(t, b[1]); s[0].Level != 1 {
				t.Errorf("lease %v: %v slots in use, want the one of the other process", lease, s[0].Level)
			}
			p.Done()
			if _, ok := admitSoon(t, b[0], time.Second); !ok {
				t.Errorf("lease %v: the process that is back has no slot", lease)
			}
		})
	}
}

// SetLimits lowers and raises n for all processes. Calls in flight go on.
func TestInFlight_SetLimitsCountsForAll(t *testing.T) {
	inFleet(t, 2, []Limit{InFlight(2)}, func(links []*link, b []*Bucket) {
		first, second := admit(t, b[0], 1), admit(t, b[1], 1)
		if err := b[0].SetLimits(ctx, InFlight(1)); err != nil {
			t.Fatal(err)
		}
		first.Done()
		for i := range b {
			if _, ok := admitSoon(t, b[i], time.Second); ok {
				t.Errorf("process %d has a second slot of one", i)
			}
			if l := b[i].Limits(); len(l) != 1 || l[0] != InFlight(1) {
				t.Errorf("process %d: limits %v", i, l)
			}
		}
		second.Done()
		third, ok := admitSoon(t, b[0], 10*time.Second)
		if !ok {
			t.Fatal("the only slot is not granted")
		}
		if err := b[1].SetLimits(ctx, InFlight(4).Lease(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if _, ok := admitSoon(t, b[1], 10*time.Second); !ok {
				t.Errorf("slot %d of four is not granted", i+2)
			}
		}
		third.Done()
		_, ok = admitSoon(t, b[0], 10*time.Second)
		if time.Sleep(5 * time.Second); !ok || b[0].Limits()[0] != InFlight(4).Lease(time.Minute) {
			t.Errorf("granted %v, limits %v", ok, b[0].Limits())
		}
		if err := b[0].SetLimits(ctx); err != nil || b[0].Limits()[0] != InFlight(2) {
			t.Errorf("restored: %v, %v", b[0].Limits(), err)
		}
		without := Must(NewSharedBucket(links[0], "other", PerSecond(5)))
		if err := without.SetLimits(ctx, PerSecond(5), InFlight(1)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a bucket without InFlight: %v", err)
		}
	})
}

// Beside a rate a call takes a slot first. One that the rate refuses leaves its slot to the next call,
// and after 5 ms to other processes.
func TestInFlight_BesideARateTheSlotComesFirst(t *testing.T) {
	inFleet(t, 2, []Limit{{Capacity: 2, LeakRate: 1}, InFlight(1)}, func(links []*link, b []*Bucket) {
		p := admit(t, b[0], 1)
		var full *ThrottledError
		if _, err := b[1].Acquire(ctx, Cost{1}); !errors.As(err, &full) || full.Limit != "1 in flight" {
			t.Errorf("no slot: %v", err)
		}
		if s := states(t, b[1]); s[0].Level < 0.9 || s[0].Level > 1 {
			t.Errorf("level %v: a call without a slot was charged", s[0].Level)
		}
		p.Done()
		p = admit(t, b[0], 1)
		p.Done()
		if _, err := b[0].Acquire(ctx, Cost{1}); !errors.As(err, &full) || full.Limit == "1 in flight" {
			t.Errorf("no units: %v", err)
		}
		time.Sleep(3 * time.Second)
		if q, ok := admitSoon(t, b[1], 100*time.Millisecond); !ok {
			t.Error("the slot of the refused call is not free")
		} else if q.Done(); b[0].SetLimits(ctx, PerSecond(9)) != nil || len(b[0].Limits()) != 2 {
			t.Errorf("SetLimits without an InFlight leaves %v", b[0].Limits())
		}
	})
}

// A hold counts for all processes also where InFlight is the only limit.
func TestInFlight_AloneHoldsCount(t *testing.T) {
	inFleet(t, 2, []Limit{InFlight(5)}, func(links []*link, b []*Bucket) {
		p := admit(t, b[0], 1)
		p.Refused(time.Minute)
		p.Done()
		var held *ThrottledError
		if _, err := b[1].Acquire(ctx, Cost{1}); !errors.As(err, &held) || !held.Held || held.RetryAfter < 59*time.Second {
			t.Errorf("on hold: %v", err)
		}
		time.Sleep(time.Minute)
		p = admit(t, b[1], 1)
		p.Done()
		if b[0].Reservations() != nil {
			t.Error("there are reservations of no limit")
		}
	})
}

// A store that has lost its data grants nothing for a third of a lease, if a process that holds slots
// asks first.
func TestInFlight_LostDataGrantsNothingAtFirst(t *testing.T) {
	inFleet(t, 3, []Limit{InFlight(2)}, func(links []*link, b []*Bucket) {
		first, second := admit(t, b[0], 1), admit(t, b[1], 1)
		links[0].to.Store(store.NewMemory())
		time.Sleep(5 * time.Second) // the next ask of those that hold slots
		lost := time.Now()
		if _, ok := admitSoon(t, b[2], 12*time.Second); ok {
			t.Errorf("a third call of two has started %v after the loss", time.Since(lost))
		}
		first.Done()
		second.Done()
		if _, ok := admitSoon(t, b[2], 10*time.Second); !ok {
			t.Error("a free slot is not granted")
		}
	})
}

// Two buckets of one key in a process are as two processes.
func TestInFlight_TwoBucketsOfAKeyInAProcess(t *testing.T) {
	inFleet(t, 1, []Limit{InFlight(1)}, func(links []*link, b []*Bucket) {
		other := Must(NewSharedBucket(links[0], "erp", InFlight(1)))
		p := admit(t, b[0], 1)
		if _, ok := admitSoon(t, other, time.Second); ok {
			t.Error("two calls in one slot")
		}
		p.Done()
		if _, ok := admitSoon(t, other, 100*time.Millisecond); !ok {
			t.Error("the slot is not handed to the other bucket")
		}
	})
}

// A lease is written and read as part of the limit, and only InFlight has one.
func TestInFlight_Lease(t *testing.T) {
	l := InFlight(50).Lease(90*time.Second).Of(0, "calls")
	if s := l.String(); s != "calls: 50 in flight, 1m30s lease" {
		t.Errorf("%q", s)
	}
	if read, err := ParseLimit(l.String()); err != nil || read != l {
		t.Errorf("%v is read back as %v, %v", l, read, err)
	}
	if InFlight(5).Lease(30*time.Second) != InFlight(5) {
		t.Error("30 s is not the default")
	}
	for _, bad := range []Limit{InFlight(1).Lease(time.Second), InFlight(1).Lease(2 * time.Hour), PerSecond(1).Lease(time.Minute)} {
		if _, err := NewBucket("k", bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	var fromJSON Limit
	if err := fromJSON.UnmarshalJSON([]byte(`{"in_flight": 7, "lease": "1m"}`)); err != nil || fromJSON != InFlight(7).Lease(time.Minute) {
		t.Errorf("%v, %v", fromJSON, err)
	}
}

// A booking whose ctx ends while it asks for a slot gives back what it was to give back.
func TestInFlight_ABookingThatEndsKeepsNoSlot(t *testing.T) {
	inFleet(t, 1, []Limit{InFlight(1), {Capacity: 9, LeakRate: 1}}, func(links []*link, b []*Bucket) {
		k := BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
		if err := b[0].Book(ctx, &k); err != nil || len(k.Tickets) != 1 {
			t.Fatalf("%d tickets, %v", len(k.Tickets), err)
		}
		k.Back = append(k.Back, k.Tickets...)
		ends, cancel := context.WithTimeout(ctx, 500*time.Microsecond)
		defer cancel()
		if err := b[0].Book(ends, &k); err == nil {
			t.Error("it has ended in time")
		}
		for range 3 {
			p, ok := admitSoon(t, b[0], time.Second)
			if !ok {
				t.Fatal("the slot is taken")
			}
			p.Done()
		}
	})
}

// Calls that wait are granted slots although others have stopped to wait meanwhile.
func TestInFlight_WhoStopsToWaitTakesNoTurnAway(t *testing.T) {
	inFleet(t, 2, []Limit{InFlight(1)}, func(links []*link, b []*Bucket) {
		p := admit(t, b[1], 1)
		links[0].cut.Store(true)
		told := make(chan struct{}, 99)
		for range 5 {
			stop := b[0].Waiting(func() { told <- struct{}{} })
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = b[0].Book(ctx, &BookRequest{Costs: []Cost{{1}}, Wait: time.Minute})
			}()
			time.Sleep(1500 * time.Microsecond)
			stop()
			<-done
		}
		links[0].cut.Store(false)
		defer b[0].Waiting(func() { told <- struct{}{} })()
		time.Sleep(2 * time.Second)
		if err := b[0].Book(ctx, &BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}); !errors.Is(err, ErrThrottled) {
			t.Errorf("no slot: %v", err)
		}
		p.Done()
		time.Sleep(500 * time.Millisecond)
		if len(told) == 0 {
			t.Error("nobody learned of the slot")
		}
	})
}
