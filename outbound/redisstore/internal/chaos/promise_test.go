//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// spot is a reservation in the bucket time of one life of a bucket.
type spot struct{ born, place time.Duration }

// grant is a call that the store has admitted.
type grant struct {
	spot
	at  time.Duration // the server's time of the reply
	due time.Duration // the server's time at which the call may go

	// Not of a worker in a process of its own: the bucket time of the reply, and between
	// which moments of this machine that was.
	dial            time.Duration
	asked, answered time.Time
}

// record holds the grants and returns of a test's workers.
type record struct {
	mu       sync.Mutex
	grants   []grant
	returned map[spot]int
}

func (r *record) grant(g grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants = append(r.grants, g)
}

func (r *record) offer(spot) {}
func (r *record) keep(spot)  {}

func (r *record) giveBack(s spot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.returned == nil {
		r.returned = map[spot]int{}
	}
	r.returned[s]++
}

// used returns the grants that were not returned.
func (r *record) used() (all []grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := maps.Clone(r.returned)
	for _, g := range r.grants {
		if left[g.spot] > 0 {
			left[g.spot]--
			continue
		}
		all = append(all, g)
	}
	return all
}

// lives returns the used reservations, by the life of the bucket that granted them.
func (r *record) lives() map[time.Duration]*outboundtest.History {
	lives := map[time.Duration]*outboundtest.History{}
	for _, g := range r.used() {
		if lives[g.born] == nil {
			lives[g.born] = &outboundtest.History{}
		}
		lives[g.born].Add(time.Unix(0, 0).Add(g.place), 1)
	}
	return lives
}

// of returns the record of some grants: those of which keep says so.
func (r *record) of(keep func(grant) bool) *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	part := &record{returned: maps.Clone(r.returned)} // queues may still give reservations back
	for _, g := range r.grants {
		if keep(g) {
			part.grants = append(part.grants, g)
		}
	}
	return part
}

// due returns the server's times at which the used reservations of all lives are due.
func (r *record) due() *outboundtest.History {
	h := &outboundtest.History{}
	for _, g := range r.used() {
		h.Add(time.Unix(0, int64(g.due)), 1)
	}
	return h
}

// gained returns by how much bucket time ran ahead of this machine's time at most, between any
// two grants of one life.
func (r *record) gained() (most time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var least time.Duration // how far bucket time was ahead, if the grant was made when it was asked for
	for i, g := range r.grants {
		if i == 0 {
			least = g.dial - g.asked.Sub(r.grants[0].asked)
		}
		most = max(most, g.dial-g.answered.Sub(r.grants[0].asked)-least)
		least = min(least, g.dial-g.asked.Sub(r.grants[0].asked))
	}
	return most
}

// rounding is the cost, in units, of the microseconds in a server's times.
const rounding = 1e-2

// checkReservations fails the test if the reservations of one life of the bucket break a promise by
// more than slack.
func (r *record) checkReservations(t *testing.T, p promise, slack float64) {
	t.Helper()
	worst, calls := 0., 0
	lives := r.lives()
	for _, h := range lives {
		worst = max(worst, p.kept().excess(h))
		calls += h.Len()
	}
	t.Logf("reservations: %d, in %d lives of the bucket; %.3f above %v, %.3f allowed", calls, len(lives), worst, p, slack)
	require.NotZero(t, calls, "nothing was granted")
	require.LessOrEqual(t, worst, slack+rounding, "the store has granted too much")
}

// ledger records what becomes of calls.
type ledger interface {
	grant(grant)
	offer(spot) // a round trip begins that is to give the reservation back
	giveBack(spot)
	keep(spot) // the round trip has not given it back
}

// witness is a store around another one. It records what that store grants under one
// key, and what callers give back.
type witness struct {
	store.Store
	key    string
	ledger ledger
}

func (w witness) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if key != w.key {
		return w.Store.Update(ctx, key, op)
	}
	var offered []spot
	for _, c := range op.Unused {
		offered = append(offered, spot{c.Born, c.Place})
	}
	if op.Move != nil {
		offered = append(offered, spot{op.Move.Born, op.Move.Place})
	}
	for _, s := range offered {
		w.ledger.offer(s)
	}
	asked := time.Now()
	r, err := w.Store.Update(ctx, key, op)
	answered := time.Now()
	n := len(op.Unused) // given back
	if op.Move != nil && len(r.Charges) > 0 {
		n++
	}
	if r.Stale && !r.Reported { // the store has done nothing
		n = 0
	}
	for i, s := range offered {
		if i < n {
			w.ledger.giveBack(s)
		} else {
			w.ledger.keep(s)
		}
	}
	for _, c := range r.Charges {
		in, late := r.State.Due(c.Place)
		w.ledger.grant(grant{spot{c.Born, c.Place}, r.State.At, r.State.At + in - late, r.State.Dial(), asked, answered})
	}
	return r, err
}

// recovery returns how long after from the rate is back: the shortest time after
// which a window has at least rate calls per second. It returns less than 0 if that
// never happens. The times are sorted.
func recovery(times []time.Time, from time.Time, window time.Duration, rate float64) time.Duration {
	want := int(rate * window.Seconds())
	// A window with enough calls begins with one of them, or is part of a longer one.
	first, _ := slices.BinarySearchFunc(times, from, time.Time.Compare)
	for i := first; i+want <= len(times); i++ {
		if want == 0 || times[i+want-1].Sub(times[i]) < window {
			return times[i].Sub(from)
		}
	}
	return -1
}

// promise is what a limit says of calls: in any interval there are at most so many units, and
// rate more for each second of its length. A window says it of half-open intervals of its own
// length, and nothing of longer ones; its rate is 0.
type promise struct {
	units, rate float64
	window      time.Duration // 0: the limit is leaky
}

// promiseOf returns the promise of a limit, as the limit itself writes it.
func promiseOf(t *testing.T, l outbound.Limit) promise {
	t.Helper()
	if _, window, ok := strings.Cut(l.String(), " in any "); ok {
		d, err := time.ParseDuration(window)
		require.NoError(t, err)
		return promise{units: l.Capacity, window: d}
	}
	require.Positive(t, l.LeakRate, "%v: only a leaky limit and a window promise something of any interval", l)
	return promise{units: l.Capacity, rate: l.LeakRate}
}

func (p promise) String() string {
	if p.window > 0 {
		return fmt.Sprintf("%v in any %v", p.units, p.window)
	}
	return fmt.Sprintf("%v + %v/s", p.units, p.rate)
}

// kept is what the reservations of a limit keep. Those of a window keep 10 ms more than it
// promises, so that the network may move arrivals closer together. The server counts in
// microseconds.
func (p promise) kept() promise {
	if p.window > 0 {
		p.window += 10*time.Millisecond - time.Microsecond
	}
	return p
}

// most returns how many units may go between two moments, both included. Of a window they are
// nearer to each other than its length.
func (p promise) most(apart time.Duration) float64 { return p.units + p.rate*apart.Seconds() }

// check returns an error if a history breaks the promise by more than slack units.
func (p promise) check(h *outboundtest.History, slack float64) error {
	if p.window > 0 {
		return h.CheckWindow(p.units+slack, p.window)
	}
	return h.Check(p.units, p.rate, slack)
}

// excess returns by how many units a history breaks the promise at worst.
func (p promise) excess(h *outboundtest.History) float64 {
	var e *outboundtest.Excess
	if errors.As(p.check(h, 0), &e) {
		return e.Over
	}
	return 0
}

// cost is how many units a fault may cost at most, beyond what a limit promises.
type cost func(promise) float64

func nothing(promise) float64 { return 0 }

// A worker uses a reply for up to 25 ms. It books up to 100 ms ahead, and a round trip or
// two more.
const (
	replyUse = 25 * time.Millisecond
	ahead    = 150 * time.Millisecond
)

// emptied is the cost of a bucket that is found empty. Of a leaky limit it is one more capacity,
// and the reservations that workers use before they know of it. Each life of the bucket keeps a
// window by itself, and so do those reservations: in an interval that meets two lives at most twice
// the window's units go.
func emptied(p promise) float64 { return p.units + p.rate*replyUse.Seconds() }

// forgotten is the highest cost of forgetting the last charges: of a leaky limit they are at most
// a full bucket, and the bookings ahead of it. The calls of the server that is lost keep a window,
// and so do those that the new one knows: together they are at most twice the window's units.
func forgotten(p promise) float64 { return p.units + p.rate*ahead.Seconds() }

// leaked is what leaks in a time. A window has no rate: this costs it nothing.
func leaked(d time.Duration) cost { return func(p promise) float64 { return p.rate * d.Seconds() } }

// delay is a time by which a timer was late.
type delay struct{ from, to time.Time }

// watch measures the lateness of this process until done is closed: how late a goroutine
// runs that sleeps a millisecond at a time. It reports delays above 1 ms.
func watch(done <-chan struct{}, report func(delay)) {
	const nap = time.Millisecond
	timer := time.NewTimer(nap)
	defer timer.Stop()
	for {
		due := time.Now().Add(nap)
		timer.Reset(nap)
		select {
		case <-timer.C:
		case <-done:
			return
		}
		if now := time.Now(); now.Sub(due) > time.Millisecond {
			report(delay{due, now})
		}
	}
}

// lateness records when processes were late.
type lateness struct {
	mu      sync.Mutex
	all     []delay
	sorted  bool // delays are sorted by their ends
	longest time.Duration
}

func (l *lateness) add(d delay) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all, l.sorted = append(l.all, d), false
	l.longest = max(l.longest, d.to.Sub(d.from))
}

// measure watches this process until the test ends.
func measure(t *testing.T) *lateness {
	l := &lateness{}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		watch(done, l.add)
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
	})
	return l
}

// hops is how often a call may be late between the moment for which the store has granted
// it and the moment at which the API sees it: on the reply's way, in the queue, in the
// goroutine that waits for it, and in the API.
const hops = 4

// nearby is for how long after a delay another one may have been as long without being measured: a
// busy machine stops one thread and not the one that watches.
const nearby = 250 * time.Millisecond

// of returns how late the machine may have made a call that the API saw at a time.
func (l *lateness) of(at time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sorted {
		slices.SortFunc(l.all, func(a, b delay) int { return a.to.Compare(b.to) })
		l.sorted = true
	}
	worst := time.Millisecond // watch reports no shorter delay
	for {
		// A worse delay widens the time in which to look for others.
		from, again := at.Add(-max(nearby, hops*worst)), false
		first, _ := slices.BinarySearchFunc(l.all, from, func(d delay, t time.Time) int { return d.to.Compare(t) })
		for _, d := range l.all[first:] {
			if d.to.After(at.Add(l.longest)) {
				break
			}
			if d.from.Before(at) && d.to.Sub(d.from) > worst {
				worst, again = d.to.Sub(d.from), true
			}
		}
		if !again {
			return hops * worst
		}
	}
}

// unexplained returns by how many calls a history breaks a promise that lateness does not
// explain. The store may have granted each call earlier than the API saw it, by as much
// as early says. Even so, the calls that must all have been granted between two moments
// are too many for it.
func unexplained(calls []time.Time, p promise, early func(time.Time) time.Duration) float64 {
	if len(calls) == 0 {
		return 0
	}
	type span struct{ from, to time.Duration } // from the earliest grant to the arrival at the API
	spans := make([]span, len(calls))
	for i, at := range calls {
		to := at.Sub(calls[0])
		spans[i] = span{to - early(at), to}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.to - b.to) })
	over := 0.
	for i, begin := range spans {
		first := i // earlier arrivals that were granted before
		for first > 0 && spans[first-1].to >= begin.from {
			first--
		}
		n := 0.
		for _, s := range spans[first:] {
			if p.window > 0 && s.to-begin.from >= p.window {
				break // a window says nothing of longer intervals
			}
			if s.from < begin.from {
				continue
			}
			n++
			over = max(over, n-p.most(s.to-begin.from))
		}
	}
	return over
}

// Calls that come together late are explained by their lateness, others are not.
func TestLateness_ExplainsCallsThatComeTogether(t *testing.T) {
	t.Parallel()
	from := time.Now()
	at := func(ms int) time.Time { return from.Add(time.Duration(ms) * time.Millisecond) }
	limit := promise{units: 2, rate: 10}
	late := &lateness{}
	late.add(delay{at(3000), at(3001)})
	late.add(delay{at(950), at(1050)})
	early := late.of
	require.Equal(t, hops*100*time.Millisecond, late.of(at(1052)))
	require.Equal(t, hops*time.Millisecond, late.of(at(2900)))
	require.Equal(t, hops*time.Millisecond, late.of(at(3250)), "no delay of a millisecond is reported")
	late.add(delay{at(4000), at(4020)})
	require.Equal(t, hops*20*time.Millisecond, late.of(at(4200)), "nearby")
	require.Equal(t, hops*time.Millisecond, late.of(at(4300)))

	// Two calls at once and then one every 100 ms. The API sees those of the last 400 ms
	// together, after 1 s.
	calls := []time.Time{at(0), at(0), at(100), at(200), at(300), at(400), at(500), at(1050), at(1050), at(1050), at(1050), at(1050)}
	require.Zero(t, unexplained(calls, limit, func(time.Time) time.Duration { return hops * 100 * time.Millisecond }))
	require.Zero(t, unexplained(calls, limit, early))
	require.InDelta(t, 3, unexplained(calls, limit, func(time.Time) time.Duration { return 0 }), 1e-9)
	require.InDelta(t, 2, unexplained(calls[7:], promise{units: 3, window: 20 * time.Millisecond}, func(time.Time) time.Duration { return 0 }), 1e-9)
	require.Zero(t, unexplained(calls[:7], promise{units: 2, window: 100 * time.Millisecond}, func(time.Time) time.Duration { return 0 }))
	// One call more than lateness explains; and the same two seconds later, when nothing
	// was late.
	require.InDelta(t, 14-2-10.54, unexplained(append(calls, at(1050), at(1050)), limit, early), 1e-9)
	require.InDelta(t, 3, unexplained(append(calls, at(5000), at(5000), at(5000), at(5000), at(5000)), limit, early), 0.1)
}
