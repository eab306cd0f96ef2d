// Package members keeps what a Pool knows of its members: the calls on their way to each of them,
// how long calls take there, their failures and rests. It chooses the member of a call, and has
// calls that wait choose again. It knows no limiters: a member is an index.
package members

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	restFirst = time.Second
	probeMost = time.Minute // how long a probe keeps other calls away, if it does not end
	spare     = 50          // a probe that no call needs costs one call in as many
	slow      = 8           // times as long as usual

	// What a call adds to bad. A member rests from resting on, and for 4 s from most on.
	odd     = 1 // it may be the fault of the call
	failure = 5
	resting = 2 * failure
	most    = resting + 2*failure
)

// Set is the members of a Pool. It is safe for concurrent use. Its lock is free while a [Call]
// looks at a member, and while a member admits it.
type Set struct {
	began time.Time // the zero of its clock

	mu      sync.Mutex // protects what follows, and the calls
	members []member
	calls   int // admitted
}

// member is what a Set knows of a member. The times are those of the Set's clock, and 0 is never.
type member struct {
	line   map[*Call]struct{} // the calls on their way into or in the line
	took   time.Duration      // of a call that succeeds, on average
	asked  int                // the calls since the last success that have not ended
	quiet  time.Duration      // since when these are three
	bad    int                // the failures since the last success
	failed time.Duration      // when the last of them was
	rests  time.Duration      // it gets no call until then
	after  int                // a call that could go elsewhere may probe it after so many of the Set
}

// New returns a Set of n members without calls, whose clock begins now.
func New(n int) *Set { return &Set{began: time.Now(), members: make([]member, n)} }

// now is the time of the Set's clock.
func (s *Set) now() time.Duration { return time.Since(s.began) + 1 }

// The caller of the methods that follow holds s.mu.

func (s *Set) rests(m *member) bool { return m.rests > 0 && m.rests > s.now() }

// candidates appends the members that a call may go to, the best one first. If the call has a key,
// they keep the order of left. at is where it waits.
func (s *Set) candidates(among, left []int, keyed bool, at int) []int {
	usual, t := s.usual(), s.now()
	for i := range s.members {
		m := &s.members[i]
		if m.asked >= 3 && usual > 0 && !s.rests(m) && late(t-m.quiet, usual) {
			s.fail(&Call{index: i, sent: max(m.quiet, m.failed)}, resting, false, t)
			m.quiet = t
		}
	}
	for _, i := range left {
		if i == at || !s.rests(&s.members[i]) {
			among = append(among, i)
		}
	}
	// A member that has failed since its last success comes last, or first if it is time to probe it.
	rank := func(m *member) int {
		switch {
		case m.bad == 0:
			return 1
		case !keyed && s.calls >= m.after && t >= m.failed+restFirst:
			return 0
		}
		return 2
	}
	slices.SortStableFunc(among, func(i, j int) int {
		a, b := &s.members[i], &s.members[j]
		if first := rank(a) - rank(b); first != 0 || keyed {
			return first
		}
		return cmp.Or(len(a.line)-len(b.line), cmp.Compare(a.failed, b.failed))
	})
	return among
}

// usual is how long a call takes at the fastest member, or 0 if it is unknown.
func (s *Set) usual() (least time.Duration) {
	for i := range s.members {
		if took := s.members[i].took; took > 0 && (least == 0 || took < least) {
			least = took
		}
	}
	return least
}

func late(took, usual time.Duration) bool { return took > max(time.Second, slow*usual) }

// enter has the call go to a member. It returns false if another call probes that now.
func (s *Set) enter(k *Call, i int) bool {
	m := &s.members[i]
	if s.rests(m) {
		return false
	}
	if k.probes, k.bad = 0, 0; m.bad >= resting {
		m.rests = s.now() + probeMost
		k.probes = m.rests
	}
	if m.bad > 0 {
		if s.calls >= m.after { // it is a probe, too: without success it has the member rest
			k.bad = resting - odd
		}
		m.after = s.calls + spare
	}
	if m.line == nil {
		m.line = map[*Call]struct{}{}
	}
	m.line[k], k.index = struct{}{}, i
	return true
}

// release lets another call probe the member, if this one has not found out how it is.
func (s *Set) release(k *Call) {
	if m := &s.members[k.index]; k.probes > 0 && m.rests == k.probes {
		m.rests = s.now()
	}
}

// fail notes that a call has failed, and whether the program has lost it.
func (s *Set) fail(k *Call, weight int, lost bool, t time.Duration) {
	m := &s.members[k.index]
	if k.sent < m.failed { // it was on its way at the last failure
		s.release(k)
		return
	}
	m.failed = t
	cost := float64(t-k.sent) / float64(cmp.Or(s.usual(), time.Second/slow))
	if lost {
		cost++
	}
	m.after = s.calls + int(min(spare*cost, 1e9))
	if m.bad = max(m.bad, k.bad); m.bad >= resting {
		m.bad = min(m.bad+failure, most)
	} else if m.bad = min(m.bad+weight, resting); m.bad < resting {
		return
	}
	if !s.other(k.index, resting) { // there is nothing to choose
		for j := range s.members {
			s.members[j].bad, s.members[j].rests = min(s.members[j].bad, failure), 0
		}
		return
	}
	m.rests = t + restFirst<<((m.bad-resting)/failure)
	for k := range m.line {
		if k.cancel != nil {
			k.cancel(errMoves)
		}
	}
	time.AfterFunc(m.rests-t, func() { s.wake(k.index) })
}

// other reports whether another member that does not rest has failed less.
func (s *Set) other(than, bad int) bool {
	for i := range s.members {
		if m := &s.members[i]; i != than && m.bad < bad && !s.rests(m) {
			return true
		}
	}
	return false
}

// succeed notes that the call has had success.
func (s *Set) succeed(k *Call, t time.Duration) {
	m, took := &s.members[k.index], t-k.sent
	usual := s.usual()
	for i := range s.members {
		if o := &s.members[i]; o != m && o.took == 0 && o.failed == 0 {
			usual = 0 // it may be faster
		}
	}
	if m.asked = 0; m.took == 0 {
		m.took = max(1, took)
	}
	if m.took += (took - m.took) / 8; late(took, usual) {
		k.lost = true
		s.fail(k, failure, false, t)
		return
	}
	k.succeeded, k.bad = true, m.bad
	if m.bad, m.rests = 0, 0; k.bad >= resting { // its body may break off yet
		m.rests = t + restFirst
		time.AfterFunc(restFirst, func() { s.wake(k.index) })
	}
}

// wake has calls that wait choose again, because a member's rest is over: one of the longest line,
// which may probe it, or all if a probe has had success. It takes s.mu.
func (s *Set) wake(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.members)
	slices.SortFunc(all, func(a, b member) int { return len(b.line) - len(a.line) })
	for _, m := range all {
		for k := range m.line {
			if k.again != nil && k.again.Reset(0) && s.members[i].bad >= resting {
				return
			}
		}
	}
}
