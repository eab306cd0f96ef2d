package leak

import (
	"testing"
	"time"
)

// someWindows are workers that share a key with windows and calendars, of which some differ.
func someWindows() [][]Limit {
	calls, tokens := moving(5, time.Second), Limit{Name: "tokens", Unit: 1, Capacity: 200, Rate: 30}
	calls.Name = "calls"
	longer, leaky := moving(8, 3*time.Second), Limit{Name: "calls", Capacity: 4, Rate: 4}
	longer.Name = "calls"
	return [][]Limit{
		{calls, tokens, daily(300)},
		{calls, tokens, daily(300)},
		{longer, tokens},
		{fixed(6, 2*time.Second), calls},
		{leaky, daily(200)},
	}
}

// periods returns where a time is in the calendars of limits, of periods of a minute.
func periods(limits []Limit, now time.Duration) []Period {
	all := make([]Period, len(limits))
	for i := range all {
		if limits[i].Kind.Calendar() {
			all[i] = periodOf(now, 60)
		}
	}
	return all
}

// A store that keeps bytes, and writes them only if they have changed, answers as one that keeps
// the key in memory.
func TestAStoreOfBytesAnswersAsOneInMemory(t *testing.T) {
	windows, changed, untimely := 0, 0, 0
	for seed := range uint64(100) {
		tr := newTrace(seed, someWindows()...)
		tr.steady = true
		if seed%2 == 0 {
			tr.workers = tr.workers[:2]
		}
		var memory Stored
		var row []byte
		for k := range 500 {
			op := tr.step(&memory)
			op.Periods = periods(op.Limits, tr.now+time.Duration(tr.IntN(3)-1)*40*time.Second)
			var read Stored
			if len(row) > 0 {
				if err := read.UnmarshalBinary(row); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, k, err)
				}
			}
			a, b := op.Apply(&memory, tr.now), op.Apply(&read, tr.now)
			if a.Untimely && b.Untimely { // as of when each was stored
				untimely++
				continue
			}
			if a.Changed != b.Changed || a.Untimely != b.Untimely || a.Expire != b.Expire || !alike(&a, &b) {
				t.Fatalf("seed %d, step %d: %+v\nin memory %+v\nof bytes  %+v", seed, k, op, a, b)
			}
			if b.Changed {
				row, _ = read.MarshalBinary()
				changed++
			}
			tr.heard(&op, &a)
			if memory.State.Logs != nil {
				windows++
			}
		}
	}
	t.Logf("%d steps with logs, %d changes, %d untimely", windows, changed, untimely)
	if windows < 10_000 || changed < 10_000 || untimely < 100 {
		t.Errorf("%d steps with logs, %d changes, %d untimely", windows, changed, untimely)
	}
}
