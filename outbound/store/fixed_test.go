package store

import (
	"testing"
	"time"
)

// Units that a settle adds to a fixed window count until a window after the settle.
func TestFixed_SettleThatAdds(t *testing.T) {
	limits := []Limit{{Kind: Fixed, Capacity: 2, Rate: 0.2, Window: 10 * time.Second}}
	book := Op{Limits: limits, Action: Book, Costs: []Units{{1}}}
	var s Stored
	r := book.Apply(&s, 0)
	(&Op{Limits: limits, Reports: []Report{{Kind: Settled, Charge: &r.Charges[0], Used: Units{2}}}}).Apply(&s, 5*time.Second)
	if r := book.Apply(&s, 12*time.Second); !r.Refused || r.Wait != 3*time.Second {
		t.Errorf("refused %v, for %v; want 3s", r.Refused, r.Wait)
	}
	if r := book.Apply(&s, 15*time.Second); r.Refused {
		t.Errorf("still refused for %v", r.Wait)
	}
}

// When the length of a full fixed window changes, it frees a window of the new length after its call.
func TestFixed_ChangeOfLengthMovesItsEnd(t *testing.T) {
	for _, to := range []time.Duration{4 * time.Second, 20 * time.Second} {
		before, after := named(fixedWindow(2, 10*time.Second)), named(fixedWindow(2, to))
		var s Stored
		now := time.Hour
		full := Op{Limits: []Limit{before}, Base: 1, Action: Book, Costs: []Units{{1}, {1}}}
		if r := full.Apply(&s, now); len(r.Charges) != 2 {
			t.Fatalf("%d booked", len(r.Charges))
		}
		change := Op{Limits: []Limit{before}, Base: 1, Number: s.Number, Action: Replace, Replacement: []Limit{after}}
		change.Apply(&s, now)
		next := Op{Limits: []Limit{after}, Base: 1, Number: s.Number, Action: Book, Costs: []Units{{1}}}
		if r := next.Apply(&s, now+after.Window-time.Millisecond); len(r.Charges) != 0 {
			t.Errorf("%v: a call is booked before the window ends", to)
		}
		if r := next.Apply(&s, now+after.Window); len(r.Charges) != 1 {
			t.Errorf("%v: no call is booked at the end, wait %v", to, r.Wait)
		}
	}
}
