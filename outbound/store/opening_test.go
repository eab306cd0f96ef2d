package store

import (
	"math"
	"testing"
	"time"
)

// A booking leaves numbers that a store can read again: with any weight, and for a cost above a capacity that was lowered.
func TestOpening_ExtremesLeaveTheKeySound(t *testing.T) {
	window := func(n float64) []Limit {
		return []Limit{{Kind: Window, Capacity: n, Rate: n / 60, Window: time.Minute}}
	}
	for _, weight := range []float64{math.NaN(), math.Inf(-1), 5e-324, 1e-300, 1, 1e300, math.MaxFloat64, math.Inf(1)} {
		var s Stored
		for i, op := range []Op{
			{Limits: window(10), Costs: []Units{{6}}},
			{Limits: window(10), Costs: []Units{{6}, {6}, {1}}, Wait: time.Hour, Horizon: time.Hour, Claim: math.Inf(1)},
			{Limits: window(10), Costs: []Units{{6}, {6}, {1}}, Wait: time.Hour, Horizon: time.Hour, Claim: 1, Bid: Bid{Last: true}},
			{Limits: window(100), Costs: []Units{{60}}, Wait: math.MaxInt64, Claim: 1},
		} {
			op.Action, op.Number, op.Weight = Book, s.Number, weight
			if r := op.Apply(&s, time.Duration(i)*time.Second); r.Corrupt {
				t.Fatalf("weight %v, step %d: corrupt", weight, i)
			}
			data, err := s.MarshalBinary()
			if err == nil {
				err = new(Stored).UnmarshalBinary(data)
			}
			if err != nil {
				t.Errorf("weight %v, step %d: %v, %+v, lead %v", weight, i, err, s.Opening, s.Lead)
			}
		}
	}
}
