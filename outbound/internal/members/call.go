package members

import (
	"context"
	"errors"
	"slices"
	"time"
)

// margin is how much later than expected a call is that chooses again.
const margin = 20 * time.Millisecond

// ErrNone is the error of a call that no member is left for.
var ErrNone = errors.New("outbound: no member is left for the call")

// errMoves ends the wait of a call at a member.
var errMoves = errors.New("outbound: the call chooses another member")

// Look is how long a call would wait at a member.
type Look struct {
	Wait  time.Duration // until the member admits the call
	Held  time.Duration // how long the member admits no call
	Each  time.Duration // what one more call adds to Wait
	Ahead int           // calls that wait there
}

// Call is a call on its way to a member, and then until its end. Set its exported fields before its
// first method, and do not change them. One goroutine calls Ask until it returns nil. From then on
// the other methods are safe for concurrent use.
type Call struct {
	Set *Set
	Ctx context.Context
	// Look returns how long the call would wait at a member. Two may run at the same time.
	Look func(ctx context.Context, member int) Look
	// Left are the members to choose from, in the order of the call's key if it has one.
	Left []int
	// Within is the longest wait at the first of Left. It is 0 for a call without a key.
	Within time.Duration
	// Repeats is whether the program repeats the call if it fails.
	Repeats bool

	// The Set's mu protects what follows, and Left.
	index  int                     // of the member that the call has chosen
	cancel context.CancelCauseFunc // has the call leave its member's line
	again  *time.Timer             // while the call waits: when it chooses again
	probes time.Duration           // rests of the member, as long as the call probes it
	sent   time.Duration           // when it was admitted
	bad    int                     // what the member's bad is at least if this call fails

	succeeded, lost bool // how the call has ended: a success may be lost yet
}

// Best returns the member that Ask would ask first, or -1, and how long the call would wait there.
func (k *Call) Best() (member int, wait time.Duration) { return k.choose(k.Ctx, -1, false) }

// choose returns the first member of Left that admits the call within Within, or else the one that
// admits it soonest, and how long that takes. The member is -1 if none of Left may be asked. If the
// call waits at a member already, choose returns another one if that is clearly sooner. If enter is
// true, the call then counts at the member.
func (k *Call) choose(ctx context.Context, at int, enter bool) (best int, wait time.Duration) {
	s := k.Set
	var few [8]int
	s.mu.Lock()
	among := s.candidates(few[:0], k.Left, k.Within > 0, at)
	s.mu.Unlock()
	looks := make([]Look, 0, len(among))
	for _, next := range among {
		looks = append(looks, k.Look(ctx, next))
		s.mu.Lock()
		best = -1
		for n, l := range looks { // all, because other calls have chosen meanwhile
			// Calls that have chosen the member and are not in its line yet come before this one.
			w := l.Wait + l.Each*time.Duration(max(0, len(s.members[among[n]].line)-l.Ahead))
			if among[n] == at {
				w = max(0, l.Held-margin, (w-l.Each)/2-margin)
			}
			if best < 0 || w < wait {
				best, wait = among[n], w
			}
			if wait <= k.Within {
				break
			}
		}
		done := wait <= k.Within || len(looks) == len(among)
		again := done && enter && !s.enter(k, best) // another call probes the member now
		s.mu.Unlock()
		switch {
		case again:
			return k.choose(ctx, at, enter)
		case done:
			return best, wait
		}
	}
	return -1, 0
}

// Ask chooses a member, and has acquire admit the call there. It returns acquire's error, or
// [ErrNone] if none of Left may be asked. After an error the next Ask chooses another member. If
// acquire takes longer than expected, and another member is better, or if the member begins to
// rest, acquire's ctx ends and Ask chooses again.
func (k *Call) Ask(acquire func(ctx context.Context, member int) error) error {
	for {
		i, wait := k.choose(k.Ctx, -1, true)
		if i < 0 {
			return ErrNone
		}
		if err := k.ask(i, wait, acquire); err != errMoves {
			return err
		}
	}
}

// ask has a member admit the call, which counts there. It returns errMoves if the call is to choose
// again.
func (k *Call) ask(i int, wait time.Duration, acquire func(ctx context.Context, member int) error) error {
	in, cancel := context.WithCancelCause(k.Ctx)
	defer cancel(nil)
	s, m := k.Set, &k.Set.members[i]
	s.mu.Lock()
	if k.cancel = cancel; len(s.members) > 1 {
		k.again = time.AfterFunc(wait+wait/8+margin, func() { k.reconsider(in, i) })
	}
	if k.probes == 0 && s.rests(m) { // it has begun to rest meanwhile
		cancel(errMoves)
	}
	s.mu.Unlock()
	err := acquire(in, i)
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.again != nil {
		k.again.Stop()
	}
	if delete(m.line, k); err == nil {
		s.calls++
		k.sent = s.now()
		if m.asked++; m.asked == 3 {
			m.quiet = k.sent
		}
		return nil
	}
	s.release(k)
	if context.Cause(in) == errMoves && k.Ctx.Err() == nil {
		return errMoves
	}
	k.Left = slices.DeleteFunc(k.Left, func(j int) bool { return j == i })
	return err
}

// reconsider ends the wait of a call at a member if another one is better, or looks again later.
func (k *Call) reconsider(in context.Context, at int) {
	best, next := k.choose(in, at, false)
	k.Set.mu.Lock()
	defer k.Set.mu.Unlock()
	switch {
	case in.Err() != nil:
	case best != at:
		k.cancel(errMoves)
	default:
		k.again.Reset(next + next/8 + margin)
	}
}

// Member returns the member that has admitted the call.
func (k *Call) Member() int { return k.index }

// Fail notes that the call has no success, even after Done. If bad, that is the member's failure.
func (k *Call) Fail(bad bool) {
	s := k.Set
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.lost {
		return
	}
	m, t := &s.members[k.index], s.now()
	k.lose()
	switch {
	case !k.succeeded && late(t-k.sent, s.usual()):
		s.fail(k, resting, !k.Repeats, t)
	case bad:
		s.fail(k, failure, !k.Repeats || k.succeeded, t)
	case k.Ctx.Err() != nil:
		s.release(k)
	case s.other(k.index, 1):
		s.fail(k, odd, true, t)
	default: // the calls fail at all members
		m.bad, m.failed = max(m.bad, odd), t
		s.release(k)
	}
}

// Done ends the call. It is a success if the call was sent, unless the call has had none.
func (k *Call) Done(sent bool) {
	s := k.Set
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case k.succeeded || k.lost:
	case sent:
		s.succeed(k, s.now())
	default:
		k.lose()
		s.release(k)
	}
}

// lose ends the call without a success.
func (k *Call) lose() {
	if m := &k.Set.members[k.index]; !k.succeeded {
		m.asked = max(0, m.asked-1)
	}
	k.lost = true
}

// Ended reports whether Fail or Done was called.
func (k *Call) Ended() bool {
	k.Set.mu.Lock()
	defer k.Set.mu.Unlock()
	return k.succeeded || k.lost
}
