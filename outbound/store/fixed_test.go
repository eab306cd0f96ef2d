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
