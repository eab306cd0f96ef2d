package outbound

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inParallel runs f in n goroutines and returns the sum of their results.
func inParallel(n int, f func(i int) float64) (sum float64) {
	var wg sync.WaitGroup
	sums := make([]float64, n)
	for i := range sums {
		wg.Go(func() { sums[i] = f(i) })
	}
	wg.Wait()
	for _, n := range sums {
		sum += n
	}
	return sum
}

// century is a limit from which next to nothing leaks while a test runs.
func century(capacity float64) Limit {
	return Limit{Capacity: capacity, LeakRate: capacity / (99 * 365.25 * 24 * 3600)}
}

// No unit is lost or counted twice between the word and the struct, however often the state moves.
func TestStress_CellLosesNoUnit(t *testing.T) {
	rounds := 20_000
	if raced || testing.Short() {
		rounds = 2_000
	}
	b := Must(NewBucket("conserved", century(1e9)))
	want := inParallel(8, func(i int) (sum float64) {
		r := rand.New(rand.NewPCG(5, uint64(i)))
		for range rounds {
			n := float64(1 + r.IntN(9))
			p, err := b.Acquire(ctx, Cost{n})
			if err != nil {
				t.Error(err)
				break
			}
			sum += n
			switch r.IntN(8) {
			case 0:
				_, _ = b.State(ctx)
			case 1:
				p.Settle(Cost{n + 5})
				sum += 5
			case 2:
				_, _ = b.AbleToAccept(ctx, Cost{3})
			case 3:
				_, _ = b.Fillup(ctx, Cost{2})
				sum += 2
			case 4:
				b.Idle()
			}
			p.Done()
		}
		return sum
	})
	s, err := b.State(ctx)
	if err != nil || math.Abs(s.Level-want) > 10+1e-6*want { // one unit leaks in three seconds
		t.Errorf("level %v (%v), want %v", s.Level, err, want)
	}
}

// With holds, refusals and returns, no more than the capacity leaves: nothing leaks while this runs.
func TestStress_NoMoreThanTheCapacityLeaves(t *testing.T) {
	rounds := 30
	if raced || testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		b := Must(NewBucket("stress", century(3000)))
		left := inParallel(8, func(i int) (sum float64) {
			r := rand.New(rand.NewPCG(uint64(round), uint64(i)))
			for range 300 {
				n := float64(1 + r.IntN(9))
				p, err := b.Acquire(ctx, Cost{n})
				if err != nil {
					continue
				}
				used := n
				op := r.IntN(20)
				if op < 8 {
					used = n * float64(r.IntN(2)) / 2
					p.Settle(Cost{used})
				}
				sum += used
				switch {
				case op < 12:
					_, _ = b.State(ctx)
				case op == 12 && round%3 == 1:
					_ = b.Hold(ctx, time.Nanosecond)
				case op == 13 && round%3 == 2:
					p.Refused(1)
				case op == 14 && round%2 == 1:
					_ = b.Resume(ctx)
				}
				p.Done()
			}
			return sum
		})
		errorIf(t, left > 3000+1, "round %d: %v units left, of a capacity of 3000", round, left)
	}
}

// A caller that looks at a slowed clock every nanosecond does not stop it.
func TestState_LooksDoNotStopASlowedClock(t *testing.T) {
	for name, look := range map[string]func(*Bucket){
		"Acquire":      func(b *Bucket) { _, _ = b.Acquire(ctx, Cost{1}) },
		"State":        func(b *Bucket) { _, _ = b.State(ctx) },
		"AbleToAccept": func(b *Bucket) { _, _ = b.AbleToAccept(ctx, Cost{1}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("slow", Limit{Capacity: 1, LeakRate: 1e6}))
			p := admit(t, b, 1)
			q := p
			p.Done()
			q.Refused(time.Millisecond)
			time.Sleep(time.Second)
			admit(t, b, 1)
			for range 1200 { // at nine tenths of its speed it has drained after 1111
				time.Sleep(time.Nanosecond)
				look(b)
			}
			s, err := b.State(ctx)
			errorIf(t, err != nil || s.Speed > 0.95, "%+v, %v", s, err)
			errorIf(t, name == "Acquire" == (s.Level == 0), "%s every nanosecond: level %v after 1.2 µs", name, s.Level)
		})
	}
}
