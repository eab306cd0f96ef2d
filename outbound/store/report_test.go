package store

import (
	"testing"
	"time"
)

func TestRefused_InARowDoublesTheHold(t *testing.T) {
	l := newLife(t, Limit{Capacity: 1, Rate: 10})
	for i := range 14 {
		l.at(1e6 * float64(i+1))
		c := l.book(Units{1}, 0)
		l.Refused(l.limits, c.Epoch, 0, 0, c)
		want := min(time.Hour, time.Second<<i)
		if l.Rem != want || l.Speed != 1 {
			t.Errorf("refusal %d: held for %v at speed %v, want %v at 1", i, l.Rem, l.Speed, want)
		}
		l.Refused(l.limits, c.Epoch, 0, 0, c) // of an older epoch now
		if l.Rem != want {
			t.Errorf("refusal %d, again: held for %v, want %v", i, l.Rem, want)
		}
	}
	for i, most := range []time.Duration{time.Millisecond, 5 * time.Second, 0, 2 * time.Hour} {
		l.at(1e6 * float64(i+20))
		c := l.book(Units{1}, 0)
		l.Refused(l.limits, c.Epoch, 0, most, c)
		if want := []time.Duration{time.Millisecond, 5 * time.Second, time.Hour, time.Hour}[i]; l.Rem != want {
			t.Errorf("at most %v: held for %v, want %v", most, l.Rem, want)
		}
	}
	epoch := l.Epoch
	l.Resume(l.limits)
	l.Refused(l.limits, epoch, 0, 0, nil)
	if l.Rem > 0 {
		t.Errorf("a refusal from before a Resume holds for %v", l.Rem)
	}
}

// No call has left between the booking of c, before the hold, and its departure after it,
// although the hold has filled the limit up.
func TestSince_HoldCountsAsNoCall(t *testing.T) {
	l := newLife(t, Limit{Capacity: 5, Rate: 1})
	var c *Charge
	for i := range 8 {
		c = l.book(Units{1}, max(0, float64(i-4)))
	}
	l.Hold(l.limits, 5*time.Second, nil, true)
	l.at(8.1)
	if since := l.Since(l.limits, c, 0); since > 1 {
		t.Errorf("%v units have left since, want none", since)
	}
}

// The state says why a key is on hold: the reason of the report that holds it the longest.
func TestReport_ReasonIsThatOfTheHold(t *testing.T) {
	limits := []Limit{{Capacity: 1, Rate: 1}}
	var s Stored
	for _, step := range []struct {
		wait time.Duration
		why  uint8
		want uint8
	}{{10 * time.Second, 3, 3}, {time.Second, 4, 3}, {20 * time.Second, 5, 5}} {
		op := Op{Limits: limits, Number: s.Number, Reports: []Report{{Kind: Held, Wait: step.wait, Reason: step.why}}}
		if r := op.Apply(&s, time.Hour); r.State.Why != step.want {
			t.Errorf("a hold of %v: reason %d, want %d", step.wait, r.State.Why, step.want)
		}
	}
}

// A charge settles once: a report of a settled charge changes nothing.
func TestReport_SettledChargeSettlesOnce(t *testing.T) {
	op := Op{Limits: []Limit{{Capacity: 10, Rate: 1e-6}}, Action: Book, Costs: []Units{{4}}}
	var s Stored
	c := op.Apply(&s, time.Hour).Charges[0]
	for range 2 {
		settle := Op{Limits: op.Limits, Number: s.Number, Reports: []Report{{Kind: Settled, Charge: &c, Used: Units{6}}}}
		if r := settle.Apply(&s, time.Hour); r.State.Level[0] != 6 {
			t.Errorf("level %v, want 6", r.State.Level[0])
		}
		c.Settled = true
	}
}
