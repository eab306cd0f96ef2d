package outbound

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// twin is a bucket beside the arithmetic that it must obey.
type twin struct {
	*testing.T
	b      *Bucket
	limits []store.Limit
	state  store.State
	path   []int
	pairs  []*pair
	base   int64 // the epoch in which this life began
	// changed tells of other limits: with those a bucket never begins a new life.
	changed bool
	number  int64 // of the limits
}

// pair is a call as the bucket and as the arithmetic knows it.
type pair struct {
	Permit
	charge  *store.Charge
	settled bool
}

// near allows for the rate of the cell, which is whole nanoseconds per unit.
func near(a, b, scale float64) bool { return math.Abs(a-b) <= 1e-5*max(scale, a, b) }

func (w *twin) advance() {
	w.state.Advance(w.limits, now())
	if !w.changed && w.b.word.Load() == busy && w.state.Idle(w.limits) { // a new life: what was refused is forgotten
		was := w.state
		w.state = store.New(was.At, 1)
		if was.Epoch == w.base {
			w.state.Epoch, w.state.Fails = was.Epoch, was.Fails
		}
		w.base = w.state.Epoch
	}
}

func (w *twin) acquire(n float64) {
	w.advance()
	was := w.state.Clone()
	c := new(store.Charge)
	wait, _, ok := w.state.Fill(w.limits, &store.Units{n}, 0, c)
	p, err := w.b.Acquire(ctx, Cost{n})
	var full *ThrottledError
	retry := time.Duration(0)
	if errors.As(err, &full) {
		retry = full.RetryAfter
	}
	drain := w.limits[0].Capacity / w.limits[0].Rate * 1e9
	if !near(float64(wait), float64(retry), drain) && math.Abs(float64(wait-retry)) > 5 {
		w.Fatalf("Acquire(%v): wait %v, arithmetic %v\n%+v", n, retry, wait, was)
	}
	switch {
	case ok && err != nil: // a hair's breadth
		w.state = was
		return
	case !ok && err == nil:
		if _, _, ok = w.state.Fill(w.limits, &store.Units{n}, wait, c); !ok {
			w.Fatalf("not even after %v", wait)
		}
	case !ok:
		return
	}
	c.Number = w.number
	w.pairs = append(w.pairs, &pair{Permit: p, charge: c})
}

func (w *twin) level() {
	w.advance()
	s, err := w.b.State(ctx)
	if err != nil || !near(s.Level, w.state.Level[0], w.limits[0].Capacity) {
		w.Fatalf("after %v: level %v (%v), arithmetic %v\n%+v\n%+v", w.path, s.Level, err, w.state.Level[0], w.b.slow.Load().local.stored.State, w.state)
	}
	if held := max(0, w.state.Rem); s.HeldFor != held || math.Abs(s.Speed-w.state.Speed) > 1e-9 {
		w.Fatalf("held for %v at speed %v, arithmetic %v and %v", s.HeldFor, s.Speed, held, w.state.Speed)
	}
}

func (w *twin) change(l Limit) {
	w.advance()
	w.changed = true
	next := []store.Limit{l.law()}
	if !store.Equal(w.limits, next) {
		w.number++
		w.state.Change(w.limits, next, w.number)
	}
	w.limits = next
	if err := w.b.SetLimits(ctx, l); err != nil {
		w.Fatal(err)
	}
}

// The same schedule through a bucket and through the arithmetic: the cell
// is an optimization, and no caller can tell.
func TestCell_DecidesAsTheLawDoes(t *testing.T) {
	rounds := 400
	if raced || testing.Short() {
		rounds = 60
	}
	shapes := []Limit{{Capacity: 1, LeakRate: 1}, {Capacity: 3, LeakRate: 10}, {Capacity: 40, LeakRate: 2}, PerSecond(100).Burst(7),
		{Capacity: 2.5, LeakRate: 1.25}, {Capacity: 1000, LeakRate: 100}, {Capacity: 3, LeakRate: 3}, {Capacity: 10, LeakRate: 7}, PerMinute(61)}
	admitted := 0
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(round)))
			l := shapes[r.IntN(len(shapes))]
			// With a rate that was rounded a refused call is not always known
			// to be the last, which decides how the hold treats it.
			unit := 1e9 / l.LeakRate
			exact := unit == math.Trunc(unit)
			w := &twin{T: t, b: Must(NewBucket(fmt.Sprint("round ", round), l)), limits: []store.Limit{l.law()}, state: store.New(now(), 1), number: 1}
			w.base = w.state.Epoch
			events := r.IntN(4) // in most rounds the cell is left rarely
			for range 300 {
				step := time.Duration(r.ExpFloat64()*l.Capacity/l.LeakRate*200) * time.Millisecond
				time.Sleep(step + time.Duration(r.IntN(3))*time.Millisecond)
				n := math.Ceil(r.Float64()*4*l.Capacity) / 4
				var p *pair // one of the youngest
				if k := len(w.pairs); k > 0 {
					p = w.pairs[k-1-r.IntN(min(3, k))]
				}
				op := r.IntN(100)
				w.path = append(w.path, op)
				switch {
				case op < 60:
					w.acquire(min(n, l.Capacity))
				case op < 70 && p != nil:
					used := n * float64(r.IntN(2))
					w.advance()
					if !p.settled {
						w.state.Settle(w.limits, p.charge, &store.Units{used})
					}
					p.settled = true
					p.Settle(Cost{used})
				case op < 80 && p != nil: // nothing more comes from this one
					w.advance()
					flags := p.flags
					if k, ok := p.call.(*call); ok {
						flags = k.flags
					}
					if p.Done(); flags&flagFailed == 0 {
						w.state.Succeeded(p.charge.Epoch)
					}
					w.pairs = slices.DeleteFunc(w.pairs, func(q *pair) bool { return p == q })
				case op < 84:
					w.advance()
					w.state.Meter(w.limits, &store.Units{n})
					if _, err := w.b.Fillup(ctx, Cost{n}); err != nil {
						t.Fatal(err)
					}
				case op < 93 || events == 0:
					w.level()
				case op < 95:
					events--
					d := time.Duration(1+r.IntN(5000)) * time.Millisecond
					w.advance()
					w.state.Hold(w.limits, d, nil, true)
					if err := w.b.Hold(ctx, d); err != nil {
						t.Fatal(err)
					}
				case op < 97 && p != nil && exact:
					events--
					d := time.Duration(r.IntN(5000)) * time.Millisecond
					w.advance()
					w.state.Refused(w.limits, p.charge.Epoch, d, 0, p.charge)
					p.Refused(d)
				case op < 98:
					events--
					w.advance()
					w.state.Resume(w.limits)
					if err := w.b.Resume(ctx); err != nil {
						t.Fatal(err)
					}
				case op == 99:
					events--
					l = shapes[r.IntN(len(shapes))]
					w.change(l)
				}
				w.level()
			}
			admitted += len(w.pairs)
		})
	}
	t.Log(admitted, "permits were kept")
}
