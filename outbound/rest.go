package outbound

import (
	"cmp"
	"context"
	"slices"
	"time"
)

const (
	restFirst = time.Second      // the first rest of a member that fails
	restMost  = 4 * time.Second  // the longest one, so that the member is back within 5 s
	probeMost = time.Minute      // how long a probe keeps other calls away, if it does not end
	oddMost   = 5                // calls without success in a row that are a failure
	oddCost   = time.Second / 10 // what one of them adds to a member's wait
	spare     = 100              // one call in as many may probe
	slow      = 8                // times as long as usual
)

// memberState is what a Pool knows of a member. The times are those of the Pool's clock, and 0 is
// never.
type memberState struct {
	line map[*pooled]struct{} // the calls on their way into or in the line

	took     time.Duration // of a call that succeeds, on average
	answered time.Duration // when the last call did
	asked    int           // the calls since then that have not ended
	quiet    time.Duration // since when these are three

	fine     bool          // the last call has succeeded
	bad, odd int           // failures, and other calls without success, since the last success
	counted  time.Duration // when the last of them was
	failed   time.Duration // when the last call without success was
	cost     time.Duration // how long that has taken
	risk     time.Duration // by how much a call at another member may be later
	late     bool          // it had counted as a success before, so that no program has repeated it
	good     int           // good of the Pool then
	since    int           // and at the first
	busy     time.Duration // busy of the Pool then
	due      time.Duration // when a call may probe the member although it could go elsewhere

	rest  time.Duration // the length of its last rest
	rests time.Duration // until then
	wake  *time.Timer   // at the end of the rest
}

func (p *Pool) now() time.Duration { return time.Since(p.began) + 1 }

// awake reports whether a member does not rest. p.mu is held, as in all that follow.
func (p *Pool) awake(t time.Duration) bool {
	for i := range p.members {
		if p.members[i].rests <= t {
			return true
		}
	}
	return false
}

// candidates appends the members that a call may go to, the best one first. If the call
// has a key, they keep the order of left. at is where it waits.
func (p *Pool) candidates(among, left []int, keyed, probe bool, at int) []int {
	t := p.now()
	p.listen(t)
	awake := p.awake(t)
	for _, i := range left {
		if !awake || i == at || p.members[i].rests <= t {
			among = append(among, i)
		}
	}
	slices.SortStableFunc(among, func(i, j int) int {
		a, b := &p.members[i], &p.members[j]
		switch {
		case !awake:
			return cmp.Compare(a.rests, b.rests)
		case keyed:
			return cmp.Compare(max(1, p.rank(a, t, probe)), max(1, p.rank(b, t, probe)))
		}
		return cmp.Or(p.rank(a, t, probe)-p.rank(b, t, probe), len(a.line)-len(b.line), cmp.Compare(a.failed, b.failed))
	})
	return among
}

// rank is 1 for a member that has not failed since its last success. One that has failed comes
// last, or first if it is time to probe it.
func (p *Pool) rank(m *memberState, t time.Duration, probe bool) int {
	switch {
	case m.bad+m.odd == 0:
		return 1
	case t >= m.due && (probe && !m.late || p.good-m.good >= spare*p.failing()) && p.busy-m.busy >= spare/2*m.cost:
		return 0
	}
	return 2
}

// failing returns how many members have failed since their last success.
func (p *Pool) failing() (n int) {
	for i := range p.members {
		if p.members[i].bad+p.members[i].odd > 0 {
			n++
		}
	}
	return n
}

// listen has the members rest that have left three calls unanswered for too long.
func (p *Pool) listen(t time.Duration) {
	for i := range p.members {
		m := &p.members[i]
		if m.asked < 3 || m.rests > t {
			continue
		}
		if patience, known := p.patience(); known && t-m.quiet > patience {
			m.bad, m.failed, m.counted, m.cost, m.quiet = m.bad+1, t, t, t-m.quiet, t
			m.risk = restFirst
			p.beginRest(i, t)
		}
	}
}

// patience is how long an answer may take. It is a guess if no member has succeeded.
func (p *Pool) patience() (most time.Duration, known bool) {
	for i := range p.members {
		if took := p.members[i].took; took > 0 && (!known || took < most) {
			most, known = took, true
		}
	}
	return max(time.Second, slow*most), known
}

// enter has the call go to a member. It returns false if another call probes that now.
func (p *Pool) enter(k *pooled, i int) bool {
	m, t := &p.members[i], p.now()
	if m.rests > t && p.awake(t) {
		return false
	}
	if m.bad+m.odd > 0 {
		m.due = t + max(restFirst, m.rest)
	}
	if k.probe = m.rest > 0; k.probe {
		m.rests = t + probeMost
	}
	if m.line == nil {
		m.line = map[*pooled]struct{}{}
	}
	m.line[k], k.index, k.probes = struct{}{}, i, m.rests
	return true
}

// leave has the call leave the line of its member: it is admitted or not.
func (p *Pool) leave(k *pooled, admitted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &p.members[k.index]
	if k.again != nil {
		k.again.Stop()
	}
	if delete(m.line, k); !admitted {
		p.release(k)
		return
	}
	k.sent = p.now()
	if m.asked++; m.asked == 3 {
		m.quiet = k.sent
	}
}

// release lets another call probe the member, if this one has not found out how it is.
func (p *Pool) release(k *pooled) {
	if m := &p.members[k.index]; k.probe && m.rests == k.probes {
		m.rests = p.now()
	}
	k.probe = false
}

// fail notes that the call has had no success.
func (p *Pool) fail(k *pooled, hard bool, t time.Duration) {
	i, took := k.index, t-k.sent
	m := &p.members[i]
	m.failed, m.cost, m.good, m.busy, m.late = t, took, p.good, p.busy, k.late
	if m.bad+m.odd == 0 {
		m.since = p.good
	}
	if m.fine && !hard { // the calls differ, and the members need not
		for j := range p.members {
			p.members[j].odd = 0
		}
	}
	m.fine = false
	if k.sent >= m.counted { // what was on its way at the last one is no news
		if m.counted = t; hard {
			m.bad++
		} else {
			m.odd++
		}
		if patience, _ := p.patience(); m.rest > 0 || m.bad >= 2 || hard && took >= patience || m.odd >= oddMost && p.good-m.since >= oddMost {
			p.beginRest(i, t)
		}
	}
	if m.risk = min(took, restFirst); m.rest == 0 {
		m.risk = max(m.risk, min(time.Duration(m.odd)*oddCost, 10*time.Second))
	}
	for other := range m.line { // it may wait for long
		other.chooseAgain()
	}
	m.due = t + max(restFirst, m.rest)
}

// beginRest has a member rest, and all calls that wait there move.
func (p *Pool) beginRest(i int, t time.Duration) {
	m := &p.members[i]
	m.rest = min(max(2*m.rest, restFirst), restMost)
	m.rests = t + m.rest
	for k := range m.line {
		p.move(i, k)
	}
	if m.wake == nil {
		m.wake = time.AfterFunc(m.rest, func() { p.wakeFor(i) })
	} else {
		m.wake.Reset(m.rest)
	}
}

// move ends the wait of a call at a member that rests.
func (p *Pool) move(i int, k *pooled) {
	if t := p.now(); p.members[i].rests > t && p.awake(t) && k.cancel != nil {
		k.cancel(errChoose)
	}
}

// wakeFor has one of the calls that wait elsewhere probe the member, whose rest is over.
func (p *Pool) wakeFor(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := i
	for j := range p.members {
		if len(p.members[j].line) > len(p.members[most].line) {
			most = j
		}
	}
	for k := range p.members[most].line {
		if most != i && k.chooseAgain() {
			break
		}
	}
}

// succeed notes that the call has had success.
func (p *Pool) succeed(k *pooled, t time.Duration) {
	m, took := &p.members[k.index], t-k.sent
	patience, _ := p.patience()
	for i := range p.members {
		if o := &p.members[i]; o != m && o.took == 0 && o.failed == 0 { // it may be faster
			patience = time.Second
		}
	}
	if m.took += (took - m.took) / 8; m.answered == 0 {
		m.took = max(1, took)
	}
	m.answered, m.asked = t, 0
	if took > patience {
		k.grade = gradeOdd
		p.fail(k, false, t)
		return
	}
	p.good++
	p.busy += took
	k.bad, k.rest = m.bad, m.rest
	m.fine, m.bad, m.odd, m.risk, m.rest, m.rests = true, 0, 0, 0, 0, 0
	if k.rest > 0 { // the calls that wait may use it
		for j := range p.members {
			for other := range p.members[j].line {
				other.chooseAgain()
			}
		}
	}
}

// Rests returns for how long a member gets no call because it has failed, or because a call probes
// it. If all members rest, they get calls all the same.
func (p *Pool) Rests(member int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if member < 0 || member >= len(p.members) {
		return 0
	}
	return max(0, p.members[member].rests-p.now())
}

// pooled is a call of a Pool, and the permit of the member that admits it.
type pooled struct {
	guarded
	pool *Pool

	// The Pool's mu protects what follows.
	index  int // of the member, or -1
	cancel context.CancelCauseFunc
	again  *time.Timer // while the call waits: when it chooses again
	probe  bool
	probes time.Duration // rests of the member, as long as the call probes it
	sent   time.Duration // when it was admitted
	grade  grade
	over   bool // it has ended, or has had no success
	unsent bool
	late   bool          // it has had success before
	bad    int           // of the member, before the success of this call
	rest   time.Duration // also
}

// grade is how bad the end of a call is.
type grade uint8

const (
	gradeOdd grade = iota + 1
	gradeBad
)

// chooseAgain has the call choose again if it waits.
func (k *pooled) chooseAgain() bool { return k.again != nil && k.again.Reset(0) }

// Settle notes a call that was never sent. Its end is no success of the member.
func (k *pooled) Settle(used Cost) {
	if used == (Cost{}) {
		k.pool.mu.Lock()
		k.unsent = true
		k.pool.mu.Unlock()
	}
	k.guarded.Settle(used)
}

// Answered notes an answer that is no success.
func (k *pooled) Answered(a Answer) {
	if a.fails() {
		k.fails(a.Kind == AnswerRefused && !k.guarded.TakesAnswers())
	}
	k.guarded.Answered(a)
}

// fails notes that the call has no success. If bad, that is the member's failure.
func (k *pooled) fails(bad bool) {
	p := k.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	m, t := &p.members[k.index], p.now()
	patience, _ := p.patience()
	g := gradeOdd
	if bad || !k.over && t-k.sent >= patience && m.answered < k.sent {
		g = gradeBad
	}
	if k.grade >= g {
		return
	}
	if k.grade == 0 && k.over { // it has counted as a success
		k.late, m.bad, m.rest = true, max(m.bad, k.bad), max(m.rest, k.rest)
	}
	k.end(m)
	k.grade = g
	p.fail(k, g == gradeBad, t)
}

// end notes the end of the call.
func (k *pooled) end(m *memberState) {
	if !k.over {
		k.over = true
		m.asked = max(0, m.asked-1)
	}
}

// Done notes a success, unless the call has had none.
func (k *pooled) Done() {
	k.guarded.Done()
	p := k.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case k.over:
	case k.unsent:
		k.end(&p.members[k.index])
		p.release(k)
	default:
		k.end(&p.members[k.index])
		p.succeed(k, p.now())
	}
}

func (k *pooled) pending() bool {
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	return !k.over || k.guarded.pending()
}

func (k *pooled) member(of *Pool) int {
	if k.pool == of {
		return k.index
	}
	return k.guarded.member(of)
}
