package store

import (
	"testing"
)

// Apply changes nothing of the step, so it can run again on another state.
func TestApply_CanRunAgain(t *testing.T) {
	l := []Limit{{Capacity: 10, Rate: 1}}
	var s Stored
	op := Op{Limits: l, Action: Book, Costs: []Units{{5}}}
	charge := op.Apply(&s, 0).Charges[0]
	for name, op := range map[string]*Op{
		"settle": {Limits: l, Reports: []Report{{Kind: Settled, Charge: &charge, Used: Units{1}}}},
		"unbook": {Limits: l, Action: Book, Back: []Charge{charge}},
	} {
		first, again := s.Clone(), s.Clone()
		op.Apply(&first, 0)
		op.Apply(&again, 0)
		if !sameStates(first.State, again.State) || sameStates(first.State, s.State) {
			t.Errorf("%s: level %v, then %v", name, first.State.Level[0], again.State.Level[0])
		}
	}
}
