//go:build linux

package chaos

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
)

// delay is a time that a timer has come late.
type delay struct{ from, to time.Time }

// watch measures how late this process is: how late a goroutine runs that sleeps a
// millisecond at a time, until done is closed. It tells of delays above 1 ms.
func watch(done <-chan struct{}, tell func(delay)) {
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
			tell(delay{due, now})
		}
	}
}

// lateness is when processes were late.
type lateness struct {
	mu      sync.Mutex
	all     []delay
	sorted  bool // by their ends
	longest time.Duration
}

func (l *lateness) tell(d delay) {
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
		watch(done, l.tell)
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
	})
	return l
}

// hops is how often a call may be late between the moment for which the store has
// granted it and the moment at which it is seen: the reply's way, the queue, the
// goroutine that waits for it, the API.
const hops = 4

// of returns how late the machine may have made a call that was seen at a time.
func (l *lateness) of(at time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sorted {
		slices.SortFunc(l.all, func(a, b delay) int { return a.to.Compare(b.to) })
		l.sorted = true
	}
	worst := time.Millisecond // which is not told of
	for {
		// What was late within the time that it may take, and then in the longer one.
		from, again := at.Add(-hops*worst), false
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

// unexplained returns by how many calls a limit was broken that lateness does not
// explain. Each call may have been granted as much earlier as early says; the calls
// that even so were all granted between two moments are too many for the limit.
func unexplained(calls []time.Time, l outbound.Limit, early func(time.Time) time.Duration) float64 {
	if len(calls) == 0 {
		return 0
	}
	type span struct{ from, to time.Duration } // when it was granted at the earliest, and when it was seen
	spans := make([]span, len(calls))
	for i, at := range calls {
		to := at.Sub(calls[0])
		spans[i] = span{to - early(at), to}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.to - b.to) })
	over := 0.
	for i, begin := range spans {
		first := i // who was seen before that was granted before
		for first > 0 && spans[first-1].to >= begin.from {
			first--
		}
		n := 0.
		for _, s := range spans[first:] {
			if s.from < begin.from {
				continue
			}
			n++
			over = max(over, n-l.Capacity-l.LeakRate*(s.to-begin.from).Seconds())
		}
	}
	return over
}

func TestLatenessExplainsCallsThatComeTogetherAndNoMore(t *testing.T) {
	t.Parallel()
	from := time.Now()
	at := func(ms int) time.Time { return from.Add(time.Duration(ms) * time.Millisecond) }
	limit := outbound.Limit{Capacity: 2, LeakRate: 10}
	late := &lateness{}
	late.tell(delay{at(3000), at(3001)})
	late.tell(delay{at(950), at(1050)})
	early := late.of
	require.Equal(t, hops*100*time.Millisecond, late.of(at(1052)))
	require.Equal(t, hops*time.Millisecond, late.of(at(2900)))

	// Two at once and one every 100 ms; seen together after 1 s, all of the last 400 ms.
	calls := []time.Time{at(0), at(0), at(100), at(200), at(300), at(400), at(500), at(1050), at(1050), at(1050), at(1050), at(1050)}
	require.Zero(t, unexplained(calls, limit, func(time.Time) time.Duration { return hops * 100 * time.Millisecond }))
	require.Zero(t, unexplained(calls, limit, early))
	require.InDelta(t, 3, unexplained(calls, limit, func(time.Time) time.Duration { return 0 }), 1e-9)
	// One more than that explains; and the same two seconds later, when nothing was late.
	require.InDelta(t, 14-2-10.54, unexplained(append(calls, at(1050), at(1050)), limit, early), 1e-9)
	require.InDelta(t, 3, unexplained(append(calls, at(5000), at(5000), at(5000), at(5000), at(5000)), limit, early), 0.1)
}
