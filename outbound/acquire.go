package outbound

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// replies has empty replies: they are large.
var replies = sync.Pool{New: func() any { return new(reply) }}

// acquire is Acquire for a call that the word cannot decide.
func (b *Bucket) acquire(ctx context.Context, c Cost, p *Permit) error {
	if done, err := b.takeHere(&c, p); done {
		return err
	}
	if c.charged() == (Cost{}) && b.slots().Most() == 0 {
		return p.of(b.acquireNothing(ctx, &c))
	}
	return p.of(b.acquireStep(ctx, c))
}

// of makes the permit that of a call.
func (p *Permit) of(k *call, err error) error {
	if err == nil {
		p.call = k
	}
	return err
}

// acquireStep is acquire by a step.
func (b *Bucket) acquireStep(ctx context.Context, c Cost) (*call, error) {
	k := &call{core: &b.core, cost: [1]reports.Numbers{c}}
	var end time.Time
	ahead, wait := b.ahead(), time.Duration(0)
	for again := false; ; again = true {
		asked := time.Now()
		if !again {
			end = asked.Add(patience)
		}
		k.admitted = asked.Sub(start)
		s, r, inTime := step{Step: key.Step{Op: store.Op{Action: store.Book, Into: k.charge[:0]}, Calls: k.cost[:]}, inJob: b.inJob(ctx)}, replies.Get().(*reply), false
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
			inTime = inTime && (k.slot == nil || b.slots().Holds())
		}
		if wait = 0; behind {
			wait = r.Wait + r.Wait/8 + time.Millisecond
		}
		*r = reply{}
		replies.Put(r)
		switch {
		case behind && time.Now().Before(end): // of a process that is farther away, which has booked further ahead
			continue
		case err != nil:
			if ahead > 0 {
				if full, ok := errors.AsType[*ThrottledError](err); ok && full.RetryAfter > ahead { // the next call asks so much ahead
					full.RetryAfter -= ahead
				}
			}
			return nil, err
		case inTime:
			return k, nil
		}
		k.leave()
		back, late := b.giveBack(k.booking()), &StoreError{Op: "book", Key: b.key, Err: errLate}
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

// opens reports whether a window of a bucket in a store frees many units at a time: a call that
// leaves late would leave together with those. Calendars keep a second free for that.
func (b *Bucket) opens() bool {
	p := b.slow.Load()
	return p != nil && p.Remote() && p.Force().Opens
}

// ahead returns how far ahead to book a call, so that its reply is here by then.
func (b *Bucket) ahead() time.Duration {
	if !b.opens() {
		return 0
	}
	return time.Duration(b.slow.Load().latency.Load())
}

// punctual waits until the time of a call that was booked so far ahead, and reports whether it is
// not past. If it is, next is how far ahead to book another: not much further for one late reply.
func (b *Bucket) punctual(ctx context.Context, k *call, r *reply, asked time.Time, ahead time.Duration) (ok bool, next time.Duration) {
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
	return now.Sub(due) <= most, max(back, min(now.Sub(c.At), 2*ahead+jitter))
}

// takeHere charges a call to the key in this process directly, if it has no other work. It
// reports whether it has decided.
func (b *Bucket) takeHere(c *Cost, permit *Permit) (done bool, err error) {
	p := b.slow.Load()
	if p == nil || p.slots.Most() > 0 || p.observers.Any() || !p.Direct() {
		return false, nil
	}
	f := p.Force()
	var n store.Units
	var t store.Taken
	if !c.valid() || !f.Fit(c.numbers(), &n) {
		return false, nil
	}
	var k *call
	p.Take(f, &n, &t, func(at time.Duration) *store.Charge {
		k, permit.uses = revive()
		permit.call, permit.core, permit.fill.At = k, &b.core, int64(at) // now: a copy of what is just written stalls
		k.core, k.cost[0], k.admitted = &b.core, reports.Numbers(*c), at
		return &k.charge[0]
	}, func(s *store.State) {
		permit.fill.Word = k.charge[0].Epoch
		k.noteState(f, s, nil, 0, &f.Limits, s)
	})
	switch {
	case !t.Done:
		return false, nil
	case t.Booked:
		return true, nil
	}
	return true, b.throttled(f, t.Wait, t.Rem, t.Why, t.Limit)
}

// withinKey is the key of a context with which a job's further requests are acquired. Its value is
// the bucket's core.
type withinKey struct{}

// inJob reports whether ctx is that of a job that is in flight, so that its requests are not
// counted.
func (b *Bucket) inJob(ctx context.Context) bool {
	if b.slots().Most() == 0 {
		return false
	}
	within, _ := ctx.Value(withinKey{}).(*core)
	return within == &b.core
}

// giveBack returns calls that were admitted too late or found no slot, in a request of its own. If
// the caller's ctx ended the request, it would be unknown whether they were returned, and returning
// them twice would admit too much. What the store's own error loses stays charged. The caller need
// not wait for the error.
func (b *Bucket) giveBack(calls ...key.Booking) <-chan error {
	ended := make(chan error, 1)
	go func() {
		err := b.do(context.Background(), "give back", &step{Step: key.Step{Op: store.Op{Action: store.Book}, Back: calls}}, new(reply))
		b.slowPath().Reports.Changed()
		ended <- err
	}()
	return ended
}

// acquireNothing is acquire for a call that costs nothing. It is admitted unless a hold lasts, also
// before calls that are booked.
func (b *Bucket) acquireNothing(ctx context.Context, c *Cost) (*call, error) {
	k := &call{core: &b.core, admitted: now()}
	var r reply
	if err := b.look(ctx, "look", &step{}, &r); err != nil {
		return nil, err
	}
	if err := check(&r.Force.Limits, b.key, c, 0); err != nil {
		return nil, err
	}
	if r.State.Rem > 0 {
		return nil, b.throttled(r.Force, r.State.Rem, r.State.Rem, r.State.Why, -1)
	}
	k.note(&r)
	// This charge is of an unknown life: it returns nothing.
	k.charge[0] = store.Charge{Born: never, Epoch: r.State.Epoch, Number: r.Number}
	return k, nil
}

// patience is how long after its beginning an Acquire asks again after a late answer, so that late
// answers do not add up to many timeouts of the store. It asks again once at least, for where a
// store's timeout is long, an answer that was lost and is given again takes longer than that.
const patience = store.MaxReplyAge

var errLate = errors.New("replies of the store come too late to be used")
