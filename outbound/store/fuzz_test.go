package store

import (
	"math"
	"math/big"
	"testing"
	"time"
)

// script reads a fuzzer's bytes as choices, until they are used up.
type script struct{ rest []byte }

func (s *script) more() bool { return len(s.rest) > 0 }

func (s *script) byte() byte {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return b
}

func pick[T any](s *script, from []T) T { return from[int(s.byte())%len(from)] }

var (
	someRates      = []float64{1e-9, 3e-7, 1.0 / 3600, 0.3, 1, 3, 100, 1e6, 1e9 / 3, 1e9, 1e12}
	someCapacities = []float64{math.SmallestNonzeroFloat64, 1e-300, 1e-9, 0.1, 1, 3, 40, 1e6, 1e12}
	someShares     = []float64{0, 1e-9, 0.1, 1.0 / 3, 0.5, 1}
	someTimes      = []time.Duration{0, 1, 2, 999, time.Millisecond, time.Second / 3, time.Second, time.Minute, time.Hour, 1 << 50, 1 << 57, 1 << 60}
	someStarts     = []time.Duration{0, 1, -1 << 60, 1<<61 + 1, -1, 1 << 40}
)

// limits reads one or two limits that a bucket may have. None takes more than a century
// to drain.
func (s *script) limits() (limits []Limit) {
	for range 1 + s.byte()%2 {
		l := Limit{Capacity: pick(s, someCapacities), Rate: pick(s, someRates)}
		if l.Capacity/l.Rate > 3e9 {
			l.Rate = l.Capacity / 3e9
		}
		if l.Rate == 0 {
			l.Rate = 1e-9
		}
		limits = append(limits, l)
	}
	return limits
}

func (s *script) cost(limits []Limit) (n Units) {
	for i, l := range limits {
		n[i] = l.Capacity * pick(s, someShares)
	}
	return n
}

func exact(x float64) *big.Float { return new(big.Float).SetPrec(300).SetFloat64(x) }

func maxOf(a, b *big.Float) *big.Float {
	if a.Cmp(b) < 0 {
		return b
	}
	return a
}

// oracle is the law at full speed and without holds, in numbers without rounding.
type oracle struct {
	level [Max]*big.Float
	last  time.Duration
}

// leaked returns the units that run out at a rate in x.
func leaked(rate float64, x time.Duration) *big.Float {
	sec := new(big.Float).SetPrec(300).SetInt64(int64(x))
	sec.Quo(sec, exact(1e9))
	return sec.Mul(sec, exact(rate))
}

func (o *oracle) pass(limits []Limit, x time.Duration) {
	for i, l := range limits {
		left := new(big.Float).SetPrec(300).Sub(o.level[i], leaked(l.Rate, x))
		o.level[i] = maxOf(left, exact(0))
	}
	o.last = max(-BookingGrace, o.last-x)
}

// wait returns the nanoseconds until a cost could go.
func (o *oracle) wait(limits []Limit, n *Units) float64 {
	w := max(0, float64(o.last))
	for i, l := range limits {
		if n[i] > 0 {
			over := new(big.Float).SetPrec(300).Add(o.level[i], exact(n[i]))
			over.Sub(over, exact(l.Capacity))
			over.Quo(over, exact(l.Rate))
			ns, _ := over.Mul(over, exact(1e9)).Float64()
			w = max(w, ns)
		}
	}
	return w
}

func (o *oracle) fill(limits []Limit, n *Units, w time.Duration) {
	for i, l := range limits {
		if n[i] > 0 {
			base := maxOf(o.level[i], leaked(l.Rate, w))
			o.level[i] = new(big.Float).SetPrec(300).Add(base, exact(n[i]))
		}
	}
	o.last = max(o.last, w)
}

// FuzzFill fills and lets time pass beside an oracle in math/big. For each operation
// levels may differ by 1e-12 of the capacity, or of the level if that is above it, and
// waits by the time in which that leaks.
func FuzzFill(f *testing.F) {
	f.Add([]byte{0, 0, 4, 4, 5, 5, 6, 5, 5, 5})
	f.Add([]byte{2, 1, 5, 2, 8, 10, 5, 5, 5, 4, 3, 2, 6, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{3, 0, 8, 10, 1, 5, 1, 5, 1, 5, 11, 5, 0, 5, 2, 2})
	f.Add([]byte{3, 1, 0, 0, 0, 10, 0, 5, 5, 1, 5, 5, 0, 5, 4, 9, 3, 3})
	f.Add([]byte{4, 0, 1, 0, 5, 0, 5, 1, 5, 10, 5, 0, 5})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &script{data[:min(len(data), 300)]}
		now := pick(in, someStarts)
		limits := in.limits()
		s := New(now, len(limits))
		var o oracle
		for i := range o.level {
			o.level[i] = exact(0)
		}
		o.last = -BookingGrace
		slack := 0.0 // relative
		for in.more() {
			x := pick(in, someTimes)
			if now > math.MaxInt64-x-1 || now+x-s.Born > 1<<61 {
				return
			}
			now += x
			s.Advance(limits, now)
			o.pass(limits, x)
			n := in.cost(limits)
			var c Charge
			w, _, ok := s.Fill(limits, &n, &n, math.MaxInt64, &c)
			slack += 1e-12
			var most float64
			for i, l := range limits {
				level, _ := o.level[i].Float64()
				most = max(most, slack*max(level, l.Capacity)/l.Rate*1e9)
			}
			want := o.wait(limits, &n)
			if d := float64(w) - want; w < 0 || (d < -1-most || d > 2+most) && want < math.MaxInt64-1e9 {
				t.Fatalf("%v: a cost of %v waits %v, want %v ns", limits, n[:2], w, want)
			}
			if !ok {
				if want < farthest*(1-1e-9) {
					t.Fatalf("%v: refused for %v", limits, w)
				}
				continue
			}
			o.fill(limits, &n, w)
			for i, l := range limits {
				level, _ := o.level[i].Float64()
				got := s.Level[i]
				// A wait may be a nanosecond longer, and some units leak in it.
				if d := math.Abs(got - level); !(got >= 0) || !(d <= slack*max(level, l.Capacity)+2e-9*l.Rate) {
					t.Fatalf("%v: level %v, want %v", l, got, level)
				}
			}
			if s.Last != o.last || s.Dial() != now-s.Born {
				t.Fatalf("last %v, want %v; dial %v, want %v", s.Last, o.last, s.Dial(), now-s.Born)
			}
		}
	})
}

// FuzzAnything does all that can be done with a bucket, with numbers at the edge, and
// checks that its state stays sound.
func FuzzAnything(f *testing.F) {
	f.Add([]byte{0, 0, 4, 4, 0, 5, 0, 5, 1, 0, 5, 2, 0, 3, 9, 4, 9, 5, 0, 6, 7, 3, 8, 2})
	f.Add([]byte{2, 1, 5, 2, 8, 10, 0, 5, 5, 3, 255, 4, 255, 3, 254, 5, 0, 5, 5, 1, 2, 9, 9})
	f.Add([]byte{3, 0, 8, 10, 7, 11, 7, 11, 4, 12, 4, 12, 4, 12, 8, 2, 0, 5, 6, 1, 1})
	f.Add([]byte{5, 1, 1, 1, 1, 1, 0, 5, 5, 9, 3, 3, 3, 3, 9, 0, 5, 5, 2, 0, 1, 1, 0, 5, 5})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &script{data[:min(len(data), 300)]}
		now := pick(in, someStarts)
		limits := in.limits()
		s := New(now, len(limits))
		born, ahead, number := now, time.Duration(0), int64(0)
		var charges []*Charge
		spans := append([]time.Duration{math.MaxInt64, math.MinInt64, -1, 1 << 62}, someTimes...)
		some := func() *Charge {
			if len(charges) == 0 {
				return nil
			}
			return pick(in, charges)
		}
		for in.more() {
			was := s.Clone()
			x := time.Duration(0)
			switch in.byte() % 10 {
			case 0:
				n := in.cost(limits)
				c := new(Charge)
				if real, which, ok := s.Fill(limits, &n, &n, pick(in, spans), c); ok {
					charges = append(charges, c)
				} else if real < 0 || which >= len(limits) || !sameStates(s, was) {
					t.Fatalf("refused: wait %v, limit %v, changed %v", real, which, !sameStates(s, was))
				}
			case 1:
				if c := some(); c != nil {
					used := in.cost(limits)
					s.Settle(limits, c, &used)
				}
			case 2:
				if c := some(); c != nil {
					s.Undo(limits, c)
				}
			case 3:
				s.Hold(limits, pick(in, spans), some(), in.byte()%2 == 0)
			case 4:
				s.Refused(limits, s.Epoch-int64(in.byte()%2), pick(in, spans), pick(in, spans), some())
			case 5:
				s.Succeeded(s.Epoch)
			case 6:
				s.Resume(limits)
			case 7:
				x = pick(in, someTimes)
				if now > math.MaxInt64-x-1 || now+x-born > 1<<61 {
					return
				}
				now += x
			case 8: // the clock steps back
				if back := pick(in, someTimes); now-back > -1<<61 && now-back < now {
					now -= back
				}
			case 9:
				next := in.limits()
				number++
				s.Change(limits, next, number)
				limits = next
			}
			s.Keep(ahead)
			ahead = s.Advance(limits, now)
			if s.Born == was.Born {
				if s.Dial() < was.Dial() || s.Dial()-max(0, s.Rem)-was.Dial()+max(0, was.Rem) > x {
					t.Fatalf("dial from %v (hold %v) to %v (hold %v) in %v", was.Dial(), was.Rem, s.Dial(), s.Rem, x)
				}
			}
			if s.Last < -BookingGrace || s.Rem < -HoldMemory || !(s.Speed >= MinSpeed && s.Speed <= 1) || s.Expire(limits) < -time.Hour {
				t.Fatalf("%+v", s)
			}
			n := in.cost(limits)
			wait, _, _ := s.Wait(limits, &n)
			if wait < 0 || s.Real(wait) < wait {
				t.Fatalf("waits %v of the dial, %v in real time", wait, s.Real(wait))
			}
			for i := range limits {
				if !(s.Level[i] >= 0) || math.IsInf(s.Level[i], 0) || math.IsNaN(s.Parts[i].Ret) || math.IsInf(s.Parts[i].Ret, 0) {
					t.Fatalf("limit %d: %v %+v", i, s.Level[i], s.Parts[i])
				}
			}
			for _, c := range charges {
				if in, late := s.Due(c.Place); in < 0 || late < 0 {
					t.Fatalf("due in %v, %v late", in, late)
				}
			}
		}
	})
}
