package outbound

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Answer is what the API said to a call. The zero Answer says that it said nothing.
type Answer struct {
	Kind AnswerKind
	// Wait is how long the API asks to wait, with AnswerRefused and AnswerHold, and the
	// time until the reset, with AnswerLeft.
	Wait time.Duration
	// MaxWait is the longest that refusals in a row double a pause to, with
	// AnswerRefused. 0 or less, or more than an hour: an hour. It does not bound Wait:
	// how long a pause the API may ask for, its caller decides.
	MaxWait time.Duration
	// Reason is why the API asks for a pause: a [ThrottledError] of those who have to
	// wait carries it. Of an AnswerLeft it is always ReasonExhausted.
	Reason Reason
	// Left is what the API says remains of its quota, with AnswerLeft. A number below 0
	// says that it did not tell of that unit.
	Left Cost
}

// AnswerKind is the kind of an [Answer].
type AnswerKind uint8

// The kinds of answers.
const (
	// AnswerNone tells nothing about the pace: there was no answer, as after an error of
	// the network, or one that does not count, out of a cache or of a server that is
	// down. The call counts neither as a success nor as a refusal.
	AnswerNone AnswerKind = iota
	// AnswerRefused is a refusal, as with 429: see [Permit.Refused].
	AnswerRefused
	// AnswerHold is a pause that the API asks for before the next call: see [Permit.Hold].
	AnswerHold
	// AnswerLeft tells what remains of a quota until its reset, in Wait. If those who
	// have left since this call will use that up, all who share the bucket wait until
	// the reset. It never makes anybody faster.
	//
	// A reset in 2 s or less holds nobody: most of those come just before it anyway, and
	// to wait for whole seconds would leave up to two thirds of a short window unused.
	//
	// It is for quotas that come back all at once. One that leaks has room again long
	// before its reset. Most calls cost little: the bucket hears only of what is so
	// little that the calls since could have used it up.
	AnswerLeft
)

// soon is a reset that is not worth a hold. Whoever keeps a short window's limit sees
// at its very end that nothing remains, and a reset in whole seconds then takes up to a
// second, or two, of the next window.
const soon = 2 * time.Second

// Answered says what the API has answered. A call may have several answers, such as a
// refusal in its headers and a longer wait in its body. Each counts, also after Done,
// except that an AnswerNone comes too late then. A bucket ignores an AnswerHold whose
// Wait is not above 0, and a kind that it does not know.
func (p *Permit) Answered(a Answer) { p.answered(a) }

// answered is Answered, and reports whether that has held the bucket, as far as is
// known: a [Call] of somebody else does not tell.
func (p *Permit) answered(a Answer) (held bool) {
	if p == nil {
		return false
	}
	// By their types: whoever embeds a *Permit has its unexported methods, too, and may
	// have an Answered that is to be asked.
	switch k := p.call.(type) {
	case *call:
		return k.answered(a)
	case *observed:
		return k.answered(a)
	case *Permit:
		return k.answered(a)
	case nil:
	default:
		k.Answered(a)
		return false
	}
	b := p.bucket
	if b == nil {
		return false
	}
	if a.fails() {
		p.flags |= flagFailed
	}
	if !a.effective() || a.Kind == AnswerLeft && !a.near(b.unitOf(), b.capacity, b.rate, now()-time.Duration(p.place)) {
		return false
	}
	return b.report(a.report(p.charge()))
}

func (k *call) answered(a Answer) (held bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flags&flagVoid != 0 {
		return false
	}
	if a.fails() {
		k.flags |= flagFailed
	}
	if !a.effective() || a.Kind == AnswerLeft && !k.near(&a) {
		return false
	}
	return k.bucket.report(a.report(&k.charge[0]))
}

func (k *call) near(a *Answer) bool {
	limits, since := k.bucket.ledger().force.Load().own, time.Since(k.admitted)
	for i := range limits {
		if l := &limits[i]; a.near(l.Unit, l.Capacity, l.LeakRate, since) {
			return true
		}
	}
	return false
}

// fails reports whether a call with this answer has not succeeded.
func (a *Answer) fails() bool { return a.Kind == AnswerNone || a.Kind == AnswerRefused }

// effective reports whether a bucket is to hear of the answer, and makes -1 of the
// numbers in Left that tell nothing.
func (a *Answer) effective() bool {
	switch a.Kind {
	case AnswerRefused:
		return true
	case AnswerHold:
		return a.Wait > 0
	case AnswerLeft:
		return a.Wait > soon && a.Left.told()
	}
	return false
}

// near reports whether calls that have left since then could have used up what is left
// of a unit, by a limit of this capacity and rate.
func (a *Answer) near(unit int, capacity, rate float64, since time.Duration) bool {
	n := a.Left[unit]
	return n >= 0 && n <= capacity+rate*since.Seconds()
}

// report returns what the bucket hears of an answer to the call of this charge.
func (a *Answer) report(c *leak.Charge) report {
	r := report{Report: leak.Report{Kind: leak.Held, Charge: c, Wait: max(0, a.Wait), Reason: uint8(a.Reason)}}
	switch a.Kind {
	case AnswerRefused:
		r.Kind, r.MaxWait, r.Epoch = leak.Refused, max(0, a.MaxWait), c.Epoch
	case AnswerLeft:
		r.Kind, r.used, r.Reason = leak.Left, a.Left, uint8(ReasonExhausted)
	}
	return r
}

// hold is when a bucket's hold ends, as was last heard of it.
type hold struct {
	until atomic.Int64 // the store's time; 0: there is none
	born  atomic.Int64 // of the life in which that is so
}

// extends takes in a state, and reports whether its hold has begun since the last one or
// ends later.
func (h *hold) extends(s *leak.State) bool {
	until := int64(0)
	if s.Rem > 0 {
		until = int64(later(s.At, s.Rem))
	} else if h.until.Load() == 0 {
		return false
	}
	was, born := h.until.Swap(until), h.born.Swap(int64(s.Born))
	return until != 0 && (was == 0 || born != int64(s.Born) || until > int64(later(time.Duration(was), moved)))
}

// told reports whether the API has told of any unit, and makes -1 of the numbers that
// tell nothing: below 0, NaN, infinite.
func (c *Cost) told() bool {
	any := false
	for i := range c {
		if c[i] >= 0 && c[i] <= math.MaxFloat64 {
			any = true
		} else {
			c[i] = -1
		}
	}
	return any
}
