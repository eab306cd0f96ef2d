package outbound

import (
	"cmp"
	"slices"
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

// memberState is what a Pool knows of a member. The times are those of the Pool's clock, and 0 is
// never.
type memberState struct {
	line   map[*pooled]struct{} // the calls on their way into or in the line
	took   time.Duration        // of a call that succeeds, on average
	asked  int                  // the calls since the last success that have not ended
	quiet  time.Duration        // since when these are three
	bad    int                  // the failures since the last success
	failed time.Duration        // when the last of them was
	rests  time.Duration        // it gets no call until then
	after  int                  // a call that could go elsewhere may probe it after so many of the Pool
}

func (p *Pool) now() time.Duration { return time.Since(p.began) + 1 }

func (p *Pool) rests(m *memberState) bool { return m.rests > 0 && m.rests > p.now() }

// candidates appends the members that a call may go to, the best one first. If the call has a key,
// they keep the order of left. at is where it waits. p.mu is held, as in all that follow.
func (p *Pool) candidates(among, left []int, keyed bool, at int) []int {
	usual := p.usual()
	for i := range p.members {
		m := &p.members[i]
		if m.asked < 3 || usual == 0 || p.rests(m) {
			continue
		}
		if t := p.now(); late(t-m.quiet, usual) {
			p.fail(&pooled{index: i, sent: max(m.quiet, m.failed)}, resting, false, t)
			m.quiet = t
		}
	}
	for _, i := range left {
		if i == at || !p.rests(&p.members[i]) {
			among = append(among, i)
		}
	}
	// A member that has failed since its last success comes last, or first if it is time to probe it.
	rank := func(m *memberState) int {
		switch {
		case m.bad == 0:
			return 1
		case !keyed && p.calls >= m.after && p.now() >= m.failed+restFirst:
			return 0
		}
		return 2
	}
	slices.SortStableFunc(among, func(i, j int) int {
		a, b := &p.members[i], &p.members[j]
		if first := rank(a) - rank(b); first != 0 || keyed {
			return first
		}
		return cmp.Or(len(a.line)-len(b.line), cmp.Compare(a.failed, b.failed))
	})
	return among
}

// usual is how long a call takes at the fastest member, or 0 if it is unknown.
func (p *Pool) usual() (least time.Duration) {
	for i := range p.members {
		if took := p.members[i].took; took > 0 && (least == 0 || took < least) {
			least = took
		}
	}
	return least
}

func late(took, usual time.Duration) bool { return took > max(time.Second, slow*usual) }

// enter has the call go to a member. It returns false if another call probes that now.
func (p *Pool) enter(k *pooled, i int) bool {
	m := &p.members[i]
	if p.rests(m) {
		return false
	}
	if k.probes, k.bad = 0, 0; m.bad >= resting {
		m.rests = p.now() + probeMost
		k.probes = m.rests
	}
	if m.bad > 0 {
		if p.calls >= m.after { // it is a probe, too: without success it has the member rest
			k.bad = resting - odd
		}
		m.after = p.calls + spare
	}
	if m.line == nil {
		m.line = map[*pooled]struct{}{}
	}
	m.line[k], k.index = struct{}{}, i
	return true
}

// release lets another call probe the member, if this one has not found out how it is.
func (p *Pool) release(k *pooled) {
	if m := &p.members[k.index]; k.probes > 0 && m.rests == k.probes {
		m.rests = p.now()
	}
}

// fail notes that a call has failed, and whether the program has lost it.
func (p *Pool) fail(k *pooled, weight int, lost bool, t time.Duration) {
	m := &p.members[k.index]
	if k.sent < m.failed { // it was on its way at the last failure
		p.release(k)
		return
	}
	m.failed = t
	cost := float64(t-k.sent) / float64(cmp.Or(p.usual(), time.Second/slow))
	if lost {
		cost++
	}
	m.after = p.calls + int(min(spare*cost, 1e9))
	if m.bad = max(m.bad, k.bad); m.bad >= resting {
		m.bad = min(m.bad+failure, most)
	} else if m.bad = min(m.bad+weight, resting); m.bad < resting {
		return
	}
	if !p.other(k.index, resting) { // there is nothing to choose
		for j := range p.members {
			p.members[j].bad, p.members[j].rests = min(p.members[j].bad, failure), 0
		}
		return
	}
	rest := restFirst << ((m.bad - resting) / failure)
	m.rests = t + rest
	for k := range m.line {
		p.move(k)
	}
	time.AfterFunc(rest, func() { p.wake(k.index) })
}

// other reports whether another member that does not rest has failed less.
func (p *Pool) other(than, bad int) bool {
	for i := range p.members {
		if m := &p.members[i]; i != than && m.bad < bad && !p.rests(m) {
			return true
		}
	}
	return false
}

// wake has calls that wait choose again, because a member's rest is over: one of the longest line,
// which may probe it, or all if a probe has had success.
func (p *Pool) wake(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.members[i].bad < resting {
		for j := range p.members {
			for k := range p.members[j].line {
				k.chooseAgain()
			}
		}
		return
	}
	longest := i
	for j := range p.members {
		if len(p.members[j].line) > len(p.members[longest].line) {
			longest = j
		}
	}
	for k := range p.members[longest].line {
		if longest != i && k.chooseAgain() {
			break
		}
	}
}

// succeed notes that the call has had success.
func (p *Pool) succeed(k *pooled, t time.Duration) {
	m, took := &p.members[k.index], t-k.sent
	usual := p.usual()
	for i := range p.members {
		if o := &p.members[i]; o != m && o.took == 0 && o.failed == 0 {
			usual = 0 // it may be faster
		}
	}
	if m.asked = 0; m.took == 0 {
		m.took = max(1, took)
	}
	if m.took += (took - m.took) / 8; late(took, usual) {
		k.end = ended
		p.fail(k, failure, false, t)
		return
	}
	k.end, k.bad = succeeded, m.bad
	if m.bad, m.rests = 0, 0; k.bad >= resting { // its body may break off yet
		m.rests = t + restFirst
		time.AfterFunc(restFirst, func() { p.wake(k.index) })
	}
}
