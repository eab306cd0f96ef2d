package outbound

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
)

// Permit is an admitted call. It settles what the call really cost, reports what the API replied,
// and ends the call:
//
//	permit, err := bucket.Acquire(ctx, outbound.Cost{1})
//	if err != nil {
//		return err
//	}
//	defer permit.Done()
//
// Its methods take no ctx and return no error, because the call's ctx is often over by then. If a
// report fails, the call stays charged. A permit belongs to one call. Do not call its methods
// concurrently. It is a value, which needs no allocation, but do not copy it: settling through a
// copy, too, would return units twice. The methods of the zero Permit have no effect.
//
// Settle and answers count after Done, too. A bucket in memory with several limits or a window
// forgets a call of Cost{1} a thousand calls after its Done. A Settle then adds what the call has
// cost more, and returns nothing. Refusals and holds count as before. It forgets no call of tokens.
type Permit struct {
	call     Call                          // of a Limiter that is no bucket, or nil
	in       core.Permit                   // in a bucket
	pin      *atomic.Int64                 // what counts this permit as one in use
	listener interface{ Answered(Answer) } // is called with each answer, or nil
}

// Limiter admits calls. A [Bucket] admits a call immediately or refuses it, a queue around it
// waits, and [Unlimited] admits everything. Write your own with [NewPermit].
//
// Acquire returns nil and a permit, which the caller ends with Done when the
// call is over, or an error and no charge.
type Limiter interface {
	Acquire(ctx context.Context, c Cost) (Permit, error)
}

// Unlimited is a [Limiter] that admits every call, for tests and for calls without a limit.
type Unlimited struct{}

// Acquire returns a permit with nothing to do, or the error of ctx.
func (Unlimited) Acquire(ctx context.Context, _ Cost) (Permit, error) {
	return Permit{}, ctx.Err()
}

// Idle is true: there is nothing to forget.
func (Unlimited) Idle() bool { return true }

// Call is what ends a call. *Permit is one, so that a Limiter of your own can embed the
// permit that it got and override a method. Refused, Hold and Failed come as Answered.
type Call interface {
	Settle(used Cost)
	Answered(a Answer)
	Done()
}

// NewPermit returns a permit that calls c, for a [Limiter] of your own. A nil
// c makes a permit with nothing to do.
func NewPermit(c Call) Permit { return Permit{call: c} }

// reported is a flag of a permit: its listeners have its real cost.
const reported = core.Own

// Settle sets what the call really cost, in all units: the zero Cost if it was never sent. It
// returns what was charged for a unit that used leaves at 0, so repeat the call's 1 with its
// tokens. A higher cost is added, even above the capacity. A lower cost returns units, except
// those that have leaked meanwhile or that waiting calls have been promised. The first Settle
// counts, even after Done, because the cost is often known only after the call. Until then a queue
// counts the cost as it was acquired: too high an estimate has calls refused early that could have
// left before their deadline. Later ones are ignored, and so is a cost that is NaN, infinite,
// negative or above 1e12.
func (p *Permit) Settle(used Cost) {
	if p != nil && p.listener != nil {
		p.settled(&used)
	}
	switch {
	case p == nil:
	case p.call != nil:
		p.call.Settle(used)
	case used.real():
		p.in.Settle(used.numbers())
	}
}

// Answered reports the API's reply. A call may have several, such as a refusal in the headers and a
// longer wait in the body. Each counts, even after Done, except the zero Answer. A bucket ignores
// unknown kinds, and an AnswerHold with a Wait of zero or less.
func (p *Permit) Answered(a Answer) {
	if p == nil {
		return
	}
	if p.listener != nil {
		p.listener.Answered(a)
	}
	if p.call != nil {
		p.call.Answered(a)
		return
	}
	told := a.told()
	p.in.Answered(&told)
}

// Listen calls l with each answer to the call, before the answer has its effect, for metrics. l
// must not block: the caller of Answered waits for it, and may hold locks. If l has a method
// Done(), the permit's Done calls it, and Pending is true until then. Otherwise a listener leaves
// Pending as it is. If l has a method Settled(Cost), the first Settle of a valid cost calls it,
// even after Done. The first listener allocates nothing. A second one is called after the first.
// Listen ignores a nil l.
func (p *Permit) Listen(l interface{ Answered(Answer) }) {
	if p == nil || l == nil {
		return
	}
	if shared, ok := p.call.(interface {
		listen(l interface{ Answered(Answer) })
	}); ok {
		shared.listen(l)
		return
	}
	if p.listener != nil {
		l = listeners(p.listener, l)
	}
	p.listener = l
}

// both are two listeners of one permit.
type both [2]interface{ Answered(Answer) }

func (b both) Answered(a Answer) {
	b[0].Answered(a)
	b[1].Answered(a)
}

// ender is a listener that is called at the end of its call, too.
type ender interface{ Done() }

// bothEnd are two listeners, and one of them at least is an ender.
type bothEnd struct{ both }

// listeners returns two listeners as one.
func listeners(a, b interface{ Answered(Answer) }) interface{ Answered(Answer) } {
	_, first := a.(ender)
	if _, second := b.(ender); first || second {
		return bothEnd{both{a, b}}
	}
	return both{a, b}
}

func (b bothEnd) Done() {
	for _, l := range b.both {
		if l, ok := l.(ender); ok {
			l.Done()
		}
	}
}

// Refused reports that the API has refused the call, as with 429, and has asked to wait d. The
// [Answer.Reason] is "rate". If d is zero or less, the API named no time. The bucket holds for d,
// or for 1 s if d is 0. From the second consecutive refusal on, the hold is at least 2 s and
// doubles each time, up to an hour or [Answer.MaxWait]. If calls had succeeded since the last such
// pause, the bucket's clock goes on at 0.9 of its speed, 0.7 if that pause ended less than 10 s
// ago, and speeds up by 10 % a minute. It counts even after Done, for a late answer.
//
// The bucket detects refusals that slowing down does not reduce, because they are random or for a
// limit that it does not count. After some 30 to 100 of them the full speed returns immediately,
// and further ones slow down again only if they become clearly more. Then a refusal with a d still
// holds the bucket for d. One without a d does not: the caller waits before its next attempt, as
// package transport/retry does. A loop around Acquire that retries immediately is admitted at the
// bucket's pace. A second such refusal without a success between holds the bucket for 2 s, doubled
// as above. All of this ends an hour after the hold of the last refusal, or by [Bucket.Resume].
func (p *Permit) Refused(d time.Duration) {
	p.Answered(Answer{Kind: AnswerRefused, Wait: d, Reason: "rate"})
}

// Hold reports that the API has accepted the call and asks to wait d before the next one. It
// ignores a d of zero or less. It counts even after Done.
func (p *Permit) Hold(d time.Duration) {
	p.Answered(Answer{Kind: AnswerHold, Wait: d})
}

// State returns the state of the limit nearest its capacity, as [Bucket.State] does, when the
// bucket charged the call: the level includes the call. It is part of the decision, and takes no
// operation. For a call of a queue or a scheduler it is the state at the booking, and for
// [Cost]{Free} that of the look at the hold. A permit without a bucket has a zero State, and so has
// a [Call] of your own without a method State.
func (p *Permit) State() State {
	if p == nil {
		return State{}
	}
	if k, ok := p.call.(interface{ State() State }); ok {
		return k.State()
	}
	n, ok := p.in.State()
	if !ok {
		return State{}
	}
	return nearestOf(&n)
}

// Done ends the call. It is in flight no more, and counts as a success, unless it was refused, had
// no answer or was settled to nothing. Later calls of Done have no effect.
func (p *Permit) Done() {
	if p == nil || p.in.Flags&core.Done != 0 {
		return
	}
	p.in.Flags |= core.Done
	if l, ok := p.listener.(ender); ok {
		l.Done()
	}
	if p.call != nil {
		p.call.Done()
	} else {
		p.in.Done()
	}
	if p.pin != nil {
		p.pin.Add(-1)
	}
}

// Failed ends a call that had no answer, as after an error of the network. It is Done
// after the zero Answer: the call counts neither as a success nor as a refusal. In a [Pool] it is a
// failure of the member.
func (p *Permit) Failed() {
	p.fails(true)
	p.Answered(Answer{})
	p.Done()
}

// fails notes in a Pool that the call has no success, and whether that is the member's failure.
func (p *Permit) fails(bad bool) {
	if p == nil {
		return
	}
	if k, ok := p.call.(interface{ fails(bad bool) }); ok {
		k.fails(bad)
	}
}

// Pending reports whether Done still has something to free: a call in flight, a limiter that is in
// use, or what a [Limiter] of your own frees. If Pending is false, Done only notes a success, and a
// wrapper can call it early.
func (p *Permit) Pending() bool {
	if p == nil || p.in.Flags&core.Done != 0 {
		return false
	}
	if _, ok := p.listener.(ender); ok || p.pin != nil {
		return true
	}
	if k, ok := p.call.(interface{ pending() bool }); ok {
		return k.pending()
	}
	return p.call != nil || p.in.Pending()
}

// TakesAnswers reports whether answers have an effect: on a bucket, or on a [Call] of your own,
// whose method TakesAnswers() bool can deny it. Answers have no effect on [Unlimited], a
// rate.Limiter and a shadow. A listener does not count.
func (p *Permit) TakesAnswers() bool {
	if p == nil {
		return false
	}
	if k, ok := p.call.(interface{ TakesAnswers() bool }); ok {
		return k.TakesAnswers()
	}
	return p.call != nil || p.in.Call != nil || p.in.Core != nil
}

// member is [Pool.Member] of a Pool.
func (p *Permit) member(pool any) int {
	if p != nil {
		if k, ok := p.call.(interface{ member(pool any) int }); ok {
			return k.member(pool)
		}
	}
	return -1
}

// guarded is a permit that several goroutines use.
type guarded struct {
	mu     sync.Mutex
	permit Permit
}

func (g *guarded) Settle(used Cost) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.permit.Settle(used)
}

func (g *guarded) Answered(a Answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.permit.Answered(a)
}

func (g *guarded) Done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.permit.Done()
}

func (g *guarded) State() State       { return read(g, (*Permit).State) }
func (g *guarded) TakesAnswers() bool { return read(g, (*Permit).TakesAnswers) }
func (g *guarded) pending() bool      { return read(g, (*Permit).Pending) }
func (g *guarded) bucket() *core.Core { return read(g, (*Permit).bucket) }
func (g *guarded) member(pool any) int {
	return read(g, func(p *Permit) int { return p.member(pool) })
}

func (g *guarded) fails(bad bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.permit.fails(bad)
}

// read returns what f returns of the permit.
func read[T any](g *guarded, f func(*Permit) T) T {
	g.mu.Lock()
	defer g.mu.Unlock()
	return f(&g.permit)
}
