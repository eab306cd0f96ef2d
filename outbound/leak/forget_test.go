package leak

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// named10 makes a limit of ten of each kind.
var named10 = map[string]func(name string) Limit{
	"leaky": func(name string) Limit { return Limit{Name: name, Capacity: 10, Rate: 10. / 3600} },
	"window": func(name string) Limit {
		return Limit{Name: name, Kind: Moving, Capacity: 10, Rate: 10. / 3600, Window: time.Hour}
	},
	"fixed": func(name string) Limit {
		return Limit{Name: name, Kind: Fixed, Capacity: 10, Rate: 10. / 3600, Window: time.Hour}
	},
	"calendar": func(name string) Limit { return Limit{Name: name, Kind: Hourly, Capacity: 10} },
}

// fill sets a limit for all, or has a worker of its own have it, and books as much as goes.
func fillNamed(t *testing.T, s *Stored, l Limit, set bool, now time.Duration) (units float64) {
	t.Helper()
	begin := int64(now/time.Hour) * 3600
	periods := []Period{{begin, begin + 3600, begin + 7200, begin + 10800}}
	do := func(op Op) Reply {
		if op.Limits, op.Stamp, op.Periods = []Limit{l}, s.Stamp, periods; len(s.Limits) > 0 && set {
			op.Limits = s.Limits
		}
		r := op.Apply(s, now)
		if r.Stale || r.Untimely {
			t.Fatalf("%s, set %v: stale %v, untimely %v, %+v %+v", l.Name, set, r.Stale, r.Untimely, op, s.Limits)
		}
		return r
	}
	if set {
		do(Op{Action: Replace, Replacement: []Limit{l}})
	}
	for len(do(Op{Action: Book, Costs: []Units{{1}}}).Charges) > 0 {
		units++
	}
	return units
}

// A name that comes again goes on from where it was, whatever names were in force meanwhile. Those
// with nothing in them go.
func TestANameForgottenIsEmpty(t *testing.T) {
	for kind, limit := range named10 {
		for _, set := range []bool{true, false} {
			var s Stored
			begin := 480_000 * time.Hour
			now := begin + time.Minute
			for i := range 40 {
				if n := fillNamed(t, &s, limit(fmt.Sprint(i)), set, now); n != 10 {
					t.Errorf("%s, set %v: name %d lets %v go, want 10", kind, set, i, n)
				}
				now += time.Second
			}
			for i := range 40 {
				if n := fillNamed(t, &s, limit(fmt.Sprint(i)), set, now); n > 0 {
					t.Errorf("%s, set %v: name %d lets %v more go", kind, set, i, n)
				}
			}
			if len(s.Others) != 39 {
				t.Errorf("%s, set %v: %d others, want 39", kind, set, len(s.Others))
			}
			row, _ := s.MarshalBinary()
			if err := new(Stored).UnmarshalBinary(row); err != nil {
				t.Errorf("%s, set %v: %v", kind, set, err)
			}
			now = begin + 3*time.Hour + time.Minute
			fillNamed(t, &s, limit("last"), set, now)
			fillNamed(t, &s, limit("other"), set, now) // a worker's own limits come by the time of the step before
			if len(s.Others) != Max || s.State.Logs != nil && len(*s.State.Logs) > Max+1 {
				t.Errorf("%s, set %v: %d others after two hours, want %d", kind, set, len(s.Others), Max)
			}
			for i := range 200 { // the key stays bounded
				fillNamed(t, &s, limit(fmt.Sprint("more ", i)), set, now)
			}
			if len(s.Others) != maxOthers {
				t.Errorf("%s, set %v: %d others, want %d", kind, set, len(s.Others), maxOthers)
			}
		}
	}
}

// A hold lets the dial run ahead of what has gone by, and a Resume takes that back.
func TestAHoldMakesNoNameEmpty(t *testing.T) {
	k := &storedKey{T: t}
	limit := func(i int) Limit { return Limit{Capacity: 10, Rate: 1, Name: fmt.Sprint(i)} }
	for i := range 10 {
		k.book(0, 0, Units{10}, limit(i))
	}
	k.do(1, Op{Reports: []Report{{Kind: Held, Wait: time.Minute}}}, limit(10))
	k.do(1, Op{}, limit(11))
	k.do(1, Op{Action: Resume}, limit(11))
	for i := range 10 {
		r := k.do(1, Op{}, limit(i))
		if got := r.State.Level[0].Level; math.Abs(got-9) > 1e-6 {
			t.Errorf("limit %d has %v, want 9", i, got)
		}
	}
}
