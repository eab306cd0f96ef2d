package leak

import (
	"testing"
	"time"
)

// A booking moves to no later place. In a window it would get one if a call has cost more than it was to since the
// booking.
func TestABookingMovesToNoLaterPlace(t *testing.T) {
	for _, c := range []struct {
		before, with float64 // what the call before it has cost, as is told before the step that moves it, and with it
		place        time.Duration
	}{
		{2, 2, 2 * time.Second},
		{3, 3, 2 * time.Second},
		{2, 1, time.Second / 2},
		{2, 0, time.Second / 2},
	} {
		limits, now := []Limit{moving(3, 2*time.Second)}, time.Hour
		var s Stored
		ask := func(op Op) Reply {
			op.Limits, op.Action, op.Wait = limits, Book, time.Minute
			return op.Apply(&s, now)
		}
		first := ask(Op{Costs: []Units{{1}}}).Charges[0]
		now += time.Second / 2
		second := ask(Op{Costs: []Units{{2}}}).Charges[0]
		booked := ask(Op{Costs: []Units{{1}}}).Charges[0]
		if booked.Place != 2*time.Second {
			t.Fatalf("booked for %v", booked.Place)
		}
		if c.before != 2 {
			ask(Op{Reports: []Report{{Kind: Settled, Charge: &second, Used: Units{c.before}}}})
		}
		op := Op{Costs: []Units{{1}}, Move: &booked, Reports: []Report{{Kind: Settled, Charge: &first, Used: Units{1}}}}
		if c.before == 2 {
			op.Reports = append(op.Reports, Report{Kind: Settled, Charge: &second, Used: Units{c.with}})
		}
		r := ask(op)
		if r.Refused || s.State.Dial()+s.State.Last != c.place || len(r.Charges) > 0 && r.Charges[0].Place != c.place {
			t.Errorf("%v: %+v, and the last place at %v", c, r.Charges, s.State.Dial()+s.State.Last)
		}
		if stays := c.before > 2; stays && (len(r.Charges) > 0 || r.Changed) {
			t.Errorf("%v: %+v, changed %v", c, r.Charges, r.Changed)
		}
	}
}
