package core

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// replies has empty replies: they are large.
var replies = sync.Pool{New: func() any { return new(Reply) }}

// Acquire admits a call of this cost by a step. inJob is true for a further request of a job, which
// needs no slot. The error is that of book.
func (b *Core) Acquire(ctx context.Context, c *reports.Numbers, inJob bool) (*Call, error) {
	k := &Call{core: b, cost: [1]reports.Numbers{*c}}
	var end time.Time
	ahead, wait := b.ahead(), time.Duration(0)
	for again := false; ; again = true {
		asked := time.Now()
		if !again {
			end = asked.Add(patience)
		}
		k.admitted = asked.Sub(key.Start)
		s, r, inTime := Step{Step: key.Step{Op: store.Op{Action: store.Book, Into: k.charge[:0]}, Calls: k.cost[:]}, InJob: inJob}, replies.Get().(*Reply), false
		s.After, s.Wait = ahead, max(wait, ahead+ahead/8) // a slow clock rounds After up
		err := b.book(ctx, &s, r)
		behind := err != nil && r.Refused && !r.NoSlot && r.Limit < 0 && r.State.Rem <= 0 && r.Wait > s.Wait && r.Wait <= 2*store.BookingGrace && b.opens()
		if err == nil {
			k.charge[0] = r.Charges[0]
			k.note(r)
			k.takeSlot(r)
			if inTime = clock.InTime(&r.Reply, asked); b.opens() {
				inTime, ahead = b.punctual(ctx, k, r, asked, ahead)
			}
			inTime = inTime && (k.slot == nil || b.Slots().Holds())
		}
		if wait = 0; behind {
			wait = r.Wait + r.Wait/8 + time.Millisecond
		}
		*r = Reply{}
		replies.Put(r)
		switch {
		case behind && time.Now().Before(end): // of a process that is farther away, which has booked further ahead
			continue
		case err != nil:
			if full, ok := err.(*Refusal); ok && full.Wait > ahead { // the next call asks so much ahead
				full.Wait -= ahead
			}
			return nil, err
		case inTime:
			return k, nil
		}
		k.leave()
		back, late := b.giveBack(k.booking()), failed("book", ErrLate)
		var over <-chan time.Time
		if again {
			over = time.After(time.Until(end))
		}
		select {
		case err := <-back:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-over:
		}
		if again && !time.Now().Before(end) {
			return nil, late
		}
	}
}

// patience is how long after its beginning an Acquire asks again after a late answer, so that late
// answers do not add up to many timeouts of the store. It asks again once at least, for where a
// store's timeout is long, an answer that was lost and is given again takes longer than that.
const patience = store.MaxReplyAge

// ErrLate is the error of a store whose replies are of no use.
var ErrLate = errors.New("replies of the store come too late to be used")

// opens reports whether a window of a bucket in a store frees many units at a time: a call that
// leaves late would leave together with those. Calendars keep a second free for that.
func (b *Core) opens() bool {
	p := b.slow.Load()
	return p != nil && p.Remote() && p.Force().Opens
}

// ahead returns how far ahead to book a call, so that its reply is here by then.
func (b *Core) ahead() time.Duration {
	if !b.opens() {
		return 0
	}
	return time.Duration(b.slow.Load().latency.Load())
}

// punctual waits until the time of a call that was booked so far ahead, and reports whether it is
// not past. If it is, next is how far ahead to book another: not much further for one late reply.
func (b *Core) punctual(ctx context.Context, k *Call, r *Reply, asked time.Time, ahead time.Duration) (ok bool, next time.Duration) {
	c := clock.Of(&r.Reply, asked, time.Now().Add(-r.Slept), true, new(clock.Clock))
	most, back := c.Tolerance(0), c.Back
	if back <= most/2 {
		back = 0 // the call leaves when the reply is here
	}
	b.slow.Load().latency.Store(int64(back))
	due := c.Due(k.charge[0].Place)
	if in := time.Until(due); in > 0 {
		timer := time.NewTimer(in)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false, 0
		}
	}
	now := time.Now()
	return now.Sub(due) <= most, max(back, min(now.Sub(c.At), 2*ahead+spec.Jitter))
}

// TakeHere charges a valid cost to the key in this process directly, if it has no other work. It
// reports whether it has decided, and returns the limits in force.
func (b *Core) TakeHere(c *reports.Numbers, permit *Permit, t *store.Taken) (f *key.Force, done bool) {
	p := b.slow.Load()
	if p == nil || p.slots.Most() > 0 || p.observers.Any() || !p.Direct() {
		return nil, false
	}
	f = p.Force()
	var n store.Units
	if !f.Fit(c, &n) {
		return nil, false
	}
	var k *Call
	p.Take(f, &n, t, func(at time.Duration) *store.Charge {
		k, permit.uses = revive()
		permit.Call, permit.Core, permit.Fill.At = k, b, int64(at) // now: a copy of what is just written stalls
		k.core, k.cost[0], k.admitted = b, *c, at
		return &k.charge[0]
	}, func(s *store.State) {
		permit.Fill.Word = k.charge[0].Epoch
		k.noteState(f, s, nil, 0, &f.Limits, s)
	})
	return f, t.Done
}

// giveBack returns calls that were admitted too late or found no slot, in a request of its own. If
// the caller's ctx ended the request, it would be unknown whether they were returned, and returning
// them twice would admit too much. What the store's own error loses stays charged. The caller need
// not wait for the error.
func (b *Core) giveBack(calls ...key.Booking) <-chan error {
	ended := make(chan error, 1)
	go func() {
		err := b.Do(context.Background(), "give back", &Step{Step: key.Step{Op: store.Op{Action: store.Book}, Back: calls}}, new(Reply))
		b.slowPath().Reports.Changed()
		ended <- err
	}()
	return ended
}

// AcquireFree admits a call without a cost and a slot, also before booked calls. It refuses the
// call while a hold lasts.
func (b *Core) AcquireFree(ctx context.Context, c *reports.Numbers) (*Call, error) {
	k := &Call{core: b, admitted: key.Now()}
	var r Reply
	if err := b.Look(ctx, "look", &Step{}, &r); err != nil {
		return nil, err
	}
	if bad := Fits(&r.Force.Limits, c, 0); bad != nil {
		return nil, bad
	}
	if r.State.Rem > 0 {
		return nil, &Refusal{Wait: r.State.Rem, Held: r.State.Rem, Why: r.State.Why, Limit: -1}
	}
	k.note(&r)
	// This charge is of an unknown life: it returns nothing.
	k.charge[0] = store.Charge{Born: key.Never, Epoch: r.State.Epoch, Number: r.Number}
	return k, nil
}
