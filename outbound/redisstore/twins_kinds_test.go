package redisstore_test

import (
	"fmt"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// untimely is compute for an answer that says that the time is in none of the periods that the
// operation tells of.
func (w *twins) untimely(op *leak.Op) leak.Reply {
	got, m := &w.got, w.model.Clone()
	want := op.Apply(&m, got.Unix)
	if !want.Untimely || got.Unix != want.Unix || got.Stamp != want.Stamp || got.Version != want.Version {
		w.differ("untimely: stamp %d, version %d, at %v; want %+v", got.Stamp, got.Version, got.Unix, want)
	}
	return want
}

// adopt makes the logs that the store keeps those of the model, whose entries may be a
// nanosecond apart.
func (w *twins) adopt() {
	if w.kept == nil {
		return
	}
	m := &w.model
	for i := range m.others {
		m.others[i].State.Logs = w.kept
		m.others[i] = m.others[i].Clone()
	}
	m.State.Logs = w.kept
	m.Stored = m.Clone()
	if len(*w.kept) == 0 {
		m.State.Logs = nil
	}
}

// widen makes room in logs for places that snap has moved by a nanosecond.
func widen(logs *leak.Logs, from, to []*leak.Charge) {
	if logs == nil {
		return
	}
	for i := range from {
		widenTo(logs, from[i].Place, to[i].Place)
	}
}

func widenTo(logs *leak.Logs, was, is time.Duration) {
	if logs == nil || was == is {
		return
	}
	for _, g := range *logs {
		for k := range g.Entries {
			if e := &g.Entries[k]; e.First <= was && was <= e.Last {
				e.First, e.Last = min(e.First, is), max(e.Last, is)
			}
		}
	}
}

// compareKind returns a difference of what the answers tell of limit i, which is l and no leaky
// one.
func (w *twins) compareKind(l *leak.Limit, i int, want, got *leak.Reply, far float64) error {
	near := func(a, b, slack float64) bool { return math.Abs(a-b) <= slack+1e-9*math.Abs(b) }
	a, b := got.State.Level[i], want.State.Level[i]
	if !near(a.Level, b.Level, 1e-6) || math.Abs(a.Top-b.Top) > far+4e-16*b.Top || math.Abs(a.Ret-b.Ret) > far+4e-16*b.Ret {
		return fmt.Errorf("%v: %+v, want %+v", *l, a, b)
	}
	for k := range want.Charges {
		a, b := &got.Charges[k], &want.Charges[k]
		if !near(a.N[i], b.N[i], 1e-6) || !near(a.Y[i], b.Y[i], 1e-6) || a.Up[i] != b.Up[i] {
			return fmt.Errorf("charge %d, %v: %v of %v, period %v, want %v of %v, %v", k, *l, a.N[i], a.Y[i], a.Up[i], b.N[i], b.Y[i], b.Up[i])
		}
	}
	return nil
}
