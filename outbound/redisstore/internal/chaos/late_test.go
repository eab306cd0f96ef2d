//go:build linux

package chaos

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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

// most returns the longest delay.
func (l *lateness) most() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest
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
