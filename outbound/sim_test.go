package outbound

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// simulation is a bucket in simulated time, and workers that always have calls waiting.
type simulation struct {
	*testing.T
	b      *Bucket
	shapes [2][]Limit // the limits, and those that they are changed to
	cost   func(*rand.Rand) Cost

	mu       sync.Mutex // protects what follows
	wild     bool       // holds, refusals and changes come
	stop     bool
	versions [][]Limit
	left     history
	booked   [3]float64 // units of each limit that were not returned
	calls    int
	held     int
	wake     chan struct{} // closed when something has changed
}

// changed wakes the workers that wait, because units may have returned.
func (s *simulation) changed() {
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.wake)
		s.wake = make(chan struct{})
	}()
}

func (s *simulation) levels() (all [3]float64) {
	states, err := s.b.States(ctx)
	if err != nil {
		s.Error(err)
	}
	for i := range states {
		all[i] = states[i].Level
	}
	return all
}

// change does something to the bucket and notes what that books or returns.
func (s *simulation) change(do func()) {
	before := s.levels()
	do()
	for i, level := range s.levels() {
		s.booked[i] += level - before[i]
	}
}

// acquire makes a call, and returns when to retry if it is refused.
func (s *simulation) acquire(c Cost) (p Permit, i int, wait time.Duration, wake <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wake = s.wake
	p, err := s.b.Acquire(ctx, c)
	var full *ThrottledError
	switch {
	case errors.As(err, &full):
		if full.RetryAfter <= 0 {
			s.Errorf("refused, and retry after %v", full.RetryAfter)
			s.stop = true
		}
		return p, -1, full.RetryAfter, wake
	case err != nil:
		s.Error(err)
		s.stop = true
		return p, -1, time.Hour, wake
	}
	for i, l := range s.versions[len(s.versions)-1] {
		s.booked[i] += c[l.Unit]
	}
	s.calls++
	s.left = append(s.left, departure{time.Now(), c, len(s.versions) - 1})
	return p, len(s.left) - 1, 0, wake
}

// finish settles a call, and has the API answer it.
func (s *simulation) finish(r *rand.Rand, p *Permit, c Cost, i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := r.IntN(100)
	share := 1.0
	switch {
	case op < 10: // cancelled
		share = 0
	case op < 30:
		share = r.Float64()
	case op < 32:
		share = 1.2
	}
	if share != 1 {
		used := c
		for u := range used {
			used[u] *= share
			s.left[i].used[u] = min(c[u], used[u]) // more is the caller's own
		}
		s.change(func() { p.Settle(used) })
	}
	if s.wild && r.IntN(40) == 0 {
		s.held++
		d := time.Duration(r.ExpFloat64() * float64(20*time.Second))
		switch r.IntN(6) {
		case 0, 1:
			p.Refused(d)
		case 2:
			p.Hold(d)
		case 3:
			_ = s.b.Hold(ctx, d+1)
		case 4:
			_ = s.b.Resume(ctx)
		case 5:
			next := s.shapes[len(s.versions)%2]
			s.versions = append(s.versions, next)
			if err := s.b.SetLimits(ctx, next...); err != nil {
				s.Error(err)
			}
		}
	}
	p.Done()
}

func (s *simulation) worker(r *rand.Rand) {
	for {
		c := s.cost(r)
		for {
			s.mu.Lock()
			stop := s.stop
			s.mu.Unlock()
			if stop {
				return
			}
			p, i, wait, wake := s.acquire(c)
			if i >= 0 {
				time.Sleep(time.Duration(r.ExpFloat64() * float64(3*time.Second)))
				s.finish(r, &p, c, i)
				break
			}
			pass(wait, wake)
		}
	}
}

// pass waits until d has passed or wake is closed. It makes no timer for a time that has passed: under the race detector
// several of those in a testing/synctest bubble crash the program, up to Go 1.26 at least.
func pass(d time.Duration, wake <-chan struct{}) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-wake:
	}
}

// booker reserves times for calls, and leaves when its ticket is due or not at all.
func (s *simulation) booker(r *rand.Rand) {
	for {
		// A booker that always booked the next time would leave none to other callers.
		time.Sleep(time.Duration(r.ExpFloat64() * float64(10*time.Second)))
		c := s.cost(r)
		s.mu.Lock()
		k := BookRequest{Costs: []Cost{c}, Wait: time.Hour}
		version := len(s.versions) - 1
		var err error
		s.change(func() { err = s.b.Book(ctx, &k) })
		wake, stop := (<-chan struct{})(s.wake), s.stop
		s.mu.Unlock()
		if stop {
			return
		}
		if err != nil { // held for long, or too large for the present limits
			time.Sleep(time.Minute)
			continue
		}
		ticket := k.Tickets[0]
		for wait := time.Duration(0); wake != nil; wake = s.listen(&k, &wait, ticket, version, c) {
			pass(wait, wake)
		}
	}
}

// listen reads the clock, and uses or returns the ticket if it is due or void. Then the channel is nil.
func (s *simulation) listen(k *BookRequest, wait *time.Duration, ticket Ticket, version int, c Cost) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.Costs = nil
	if err := s.b.Book(ctx, k); err != nil {
		s.Error(err)
	}
	at := k.Clock.Due(ticket)
	ready, late := k.Clock.Ready(ticket, time.Now())
	switch {
	case !k.Clock.Holds(ticket) || late > 0:
		s.change(func() {
			if err := s.b.Book(ctx, &BookRequest{Unused: []Ticket{ticket}}); err != nil {
				s.Error(err)
			}
		})
	case ready:
		s.calls++
		s.left = append(s.left, departure{time.Now(), c, version})
		p := ticket.Permit()
		p.Done()
	default:
		*wait = time.Until(at)
		return s.wake
	}
	return nil
}

// calm measures how much of the leak rate is used while nothing holds.
func (s *simulation) calm(d time.Duration) {
	s.mu.Lock()
	s.wild = false
	if err := s.b.SetLimits(ctx, s.shapes[0]...); err != nil {
		s.Error(err)
	}
	s.versions = append(s.versions, s.shapes[0])
	if err := s.b.Resume(ctx); err != nil {
		s.Error(err)
	}
	s.mu.Unlock()
	time.Sleep(time.Minute) // in which those that were held retry
	s.mu.Lock()
	begin := s.booked
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
	best := 0.0
	for i, l := range s.shapes[0] {
		best = max(best, (s.booked[i]-begin[i])/(l.LeakRate*d.Seconds()))
	}
	s.wild = true
	s.mu.Unlock()
	if best < 0.999 || best > 1.01 {
		s.Errorf("%.5f of the leak rate was used, want 0.999 or more", best)
	}
}

// lawful replays all that has left.
func (s *simulation) lawful() {
	most := append([]Limit{}, s.shapes[0]...)
	for i, l := range s.shapes[1] {
		most[i].Capacity, most[i].LeakRate = max(most[i].Capacity, l.Capacity), max(most[i].LeakRate, l.LeakRate)
	}
	last := len(s.versions) - 1
	for _, l := range most {
		if err := s.left.excess(l, 0, last); err != nil {
			s.Error(err)
		}
	}
	for v, limits := range s.versions {
		for _, l := range limits {
			if err := s.left.excess(l, v, v); err != nil {
				s.Error(err)
			}
		}
	}
}

// In hundreds of hours of traffic no limit is exceeded, and at least 99.9 % of the rate is used while nothing holds.
func TestSimulation_KeepsAndUsesTheLimits(t *testing.T) {
	one := func(r *rand.Rand) Cost { return Cost{float64(1 + r.IntN(3))} }
	two := func(r *rand.Rand) Cost { return Cost{1, float64(1 + r.IntN(10))} }
	runs := []struct {
		shapes [2][]Limit
		cost   func(*rand.Rand) Cost
	}{
		{[2][]Limit{{{Capacity: 3, LeakRate: 0.5}}, {{Capacity: 5, LeakRate: 0.2}}}, one},
		{[2][]Limit{{{Capacity: 2, LeakRate: 0.5}, {Capacity: 20, LeakRate: 1, Unit: 1}}, {{Capacity: 1, LeakRate: 1}, {Capacity: 12, LeakRate: 0.7, Unit: 1}}}, two},
		{[2][]Limit{{{Capacity: 2, LeakRate: 1}, {Capacity: 10, LeakRate: 0.2, Name: "longer"}, {Capacity: 50, LeakRate: 3, Unit: 1}},
			{{Capacity: 1, LeakRate: 0.8}, {Capacity: 5, LeakRate: 0.4, Name: "longer"}, {Capacity: 10, LeakRate: 3, Unit: 1}}}, two},
	}
	phases := 2
	switch {
	case raced || testing.Short():
		phases = 1
	case os.Getenv("DRIPFEED_LONG") != "":
		phases = 7
	}
	for i, run := range runs {
		synctest.Test(t, func(t *testing.T) {
			s := &simulation{T: t, b: Must(NewBucket("sim", run.shapes[0]...)), shapes: run.shapes, cost: run.cost, versions: [][]Limit{run.shapes[0]}, wake: make(chan struct{})}
			defer s.b.Waiting(s.changed)()
			begin := time.Now()
			var wg sync.WaitGroup
			for w := range 6 {
				wg.Go(func() { s.worker(rand.New(rand.NewPCG(uint64(i), uint64(w)))) })
			}
			if i > 0 {
				wg.Go(func() { s.booker(rand.New(rand.NewPCG(uint64(i), 99))) })
			}
			for range phases {
				s.calm(8 * time.Hour)
				time.Sleep(4 * time.Hour)
			}
			s.mu.Lock()
			s.stop = true
			s.mu.Unlock()
			wg.Wait()
			s.lawful()
			errorIf(t, s.calls < 1000*phases || s.held < 10*phases,
				"only %d calls and %d holds, refusals and changes", s.calls, s.held)
			t.Logf("%.0f hours, %d calls, %d holds, refusals and changes", time.Since(begin).Hours(), s.calls, s.held)
		})
	}
}

// history is what has left: when, with which units, by which version of the limits.
type history []departure

type departure struct {
	at      time.Time
	used    Cost
	version int
}

// excess replays what left by some versions through an ideal limit, and returns an error if that exceeded its capacity.
func (h history) excess(l Limit, from, to int) error {
	level := 0.0
	var at time.Time
	for i := range h {
		d := &h[i]
		if n := d.used[l.Unit]; n > 0 && d.version >= from && d.version <= to {
			level = max(0, level-l.LeakRate*d.at.Sub(at).Seconds()) + n
			at = d.at
			if level > l.Capacity*(1+1e-6) {
				return fmt.Errorf("%v (versions %d to %d): %v units in it at %v", l, from, to, level, at)
			}
		}
	}
	return nil
}
