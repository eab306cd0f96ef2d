package store

import (
	"math/rand/v2"
	"testing"
	"time"
)

// process is a program that shares a key with others, and decides about limits as outbound does.
type process struct {
	made    []Limit // the limits that its program was made with
	started time.Duration
	limits  []Limit
	number  int64
	changes int // how often it has replaced the limits
}

func newProcess(now time.Duration, made ...Limit) *process {
	return &process{made: numbered(made), started: now, limits: numbered(made)}
}

// ask carries an operation out, and adopts or replaces limits that it did not know.
func (p *process) ask(s *Stored, now time.Duration, op Op) Reply {
	for {
		op.Limits, op.Number, op.Base, op.Age = p.limits, p.number, Hash(p.made), now-p.started
		r := op.Apply(s, now)
		if r.Limits == nil {
			return r
		}
		p.limits, p.number = r.Limits, r.Number
		if !Equal(r.Limits, p.made) && !op.Yields(&r, p.made) {
			replace := Op{Limits: p.limits, Number: p.number, Base: op.Base, Age: op.Age, Action: Replace, Own: true, Replacement: p.made}
			if r := replace.Apply(s, now); !r.Stale {
				p.limits, p.number = p.made, r.Number
				p.changes++
			}
		}
		if !r.Stale {
			return r
		}
	}
}

func (p *process) book(s *Stored, now time.Duration) bool {
	return len(p.ask(s, now, Op{Action: Book, Costs: []Units{{1, 1}}}).Charges) == 1
}

// In a rollout old and new processes run beside each other. The newest one's limits count from its
// first call on, and all calls together keep the larger capacity and the higher rate.
func TestRollout_NewestProcessCounts(t *testing.T) {
	for _, c := range []struct{ old, new Limit }{
		{Limit{Capacity: 10, Rate: 10}, Limit{Capacity: 5, Rate: 20}},
		{Limit{Capacity: 5, Rate: 20}, Limit{Capacity: 10, Rate: 10}},
	} {
		r := rand.New(rand.NewPCG(7, 7))
		var s Stored
		now := time.Hour
		all := []*process{newProcess(now-time.Minute, c.old), newProcess(now-time.Minute, c.old)}
		capacity, rate := max(c.old.Capacity, c.new.Capacity), max(c.old.Rate, c.new.Rate)
		level, at, late := 0., now, 0
		for now < time.Hour+2*time.Minute {
			now += time.Duration(r.ExpFloat64() * float64(5*time.Millisecond))
			if len(all) == 2 && now > time.Hour+time.Minute {
				all = append(all, newProcess(now, c.new), newProcess(now, c.new))
			}
			if all[r.IntN(len(all))].book(&s, now) {
				level, at = max(0, level-rate*(now-at).Seconds())+1, now
				if level > capacity+1e-6 {
					t.Fatalf("%v units in a limit of %v", level, capacity)
				}
				if now > time.Hour+62*time.Second {
					late++
				}
			}
		}
		if want := c.new.Rate * 58; float64(late) < want*0.97 || float64(late) > want*1.03+c.new.Capacity {
			t.Errorf("%v to %v: %d calls in the last 58 s, want those of the new limits", c.old, c.new, late)
		}
		if n := all[0].changes + all[1].changes + all[2].changes + all[3].changes; n != 1 {
			t.Errorf("the limits were replaced %d times, want once", n)
		}
	}
}

// Limits that an operator sets hold through restarts and scaling of the same program, and a new
// release ends them.
func TestRollout_SetLimitsHoldUntilARelease(t *testing.T) {
	own, set, next := Limit{Capacity: 10, Rate: 10}, Limit{Capacity: 3, Rate: 1}, Limit{Capacity: 7, Rate: 7}
	var s Stored
	now := time.Hour
	first := newProcess(now, own)
	first.book(&s, now)
	r := first.ask(&s, now, Op{Action: Replace, Replacement: numbered([]Limit{set})})
	if r.Number != 2 || !s.Set || r.Expire < 29*24*time.Hour {
		t.Fatalf("number %d, set %v, kept for %v", r.Number, s.Set, r.Expire)
	}
	for _, later := range []time.Duration{time.Second, time.Hour, 20 * 24 * time.Hour} {
		p := newProcess(now+later, own)
		if p.book(&s, now+later); s.Limits[0].Capacity != 3 || p.changes != 0 || p.limits[0].Capacity != 3 {
			t.Errorf("a restart after %v: limits %v in force, %v known", later, s.Limits, p.limits)
		}
	}
	now += 21 * 24 * time.Hour
	release := newProcess(now, next)
	if release.book(&s, now); s.Limits[0].Capacity != 7 || s.Set {
		t.Errorf("after a release: limits %v, set %v", s.Limits, s.Set)
	}
	if first.book(&s, now+1); first.limits[0].Capacity != 7 || first.changes != 0 {
		t.Errorf("the old process counts by %v", first.limits)
	}
	old := newProcess(now+time.Minute, own) // a process of the old release starts while the new one is rolled out
	if old.book(&s, now+time.Minute); s.Limits[0].Capacity != 10 {
		t.Errorf("limits %v, want those of the process that started last", s.Limits)
	}
}

// A step by other limits than are in force does nothing, reports included, and says which those
// are.
func TestRollout_StepByOtherLimitsDoesNothing(t *testing.T) {
	mine, others := []Limit{{Capacity: 5, Rate: 1}}, []Limit{{Name: "other", Capacity: 5, Rate: 1}}
	var s Stored
	op := Op{Limits: mine, Base: 1, Age: time.Minute, Action: Book, Costs: []Units{{2}}}
	charge := op.Apply(&s, time.Hour).Charges[0]
	before := s.Clone()
	for name, op := range map[string]Op{
		"book":   {Action: Book, Costs: []Units{{1}}},
		"report": {Reports: []Report{{Kind: Settled, Charge: &charge}}},
		"hold":   {Reports: []Report{{Kind: Held, Wait: time.Minute}}},
		"resume": {Action: Resume},
	} {
		op.Limits = others
		r := op.Apply(&s, time.Hour+time.Second)
		if !r.Stale || r.Changed || len(r.Charges) > 0 || !Equal(r.Limits, mine) || r.Number != 1 || r.Base != 1 || r.Made != time.Hour-time.Minute {
			t.Errorf("%s: %+v", name, r)
		}
		if !sameStates(before.State, s.State) {
			t.Errorf("%s has changed the key", name)
		}
	}
	op = Op{Limits: mine, Number: 7, Action: Replace, Replacement: others} // of limits that are in force no more
	if r := op.Apply(&s, time.Hour+time.Second); !r.Stale || r.Changed || s.Number != 1 {
		t.Errorf("replaced limits that were others: %+v", r)
	}
	op.Number, op.Replacement = 1, mine
	if r := op.Apply(&s, time.Hour+time.Second); r.Stale || r.Changed || s.Number != 1 {
		t.Errorf("equal limits are a change: %+v", r)
	}
}

// A tenant's bucket is made again and again in old and new processes: that changes no limits.
func TestRollout_EvictionsChangeNoLimits(t *testing.T) {
	old, next := Limit{Capacity: 10, Rate: 10}, Limit{Capacity: 20, Rate: 20}
	var s Stored
	now, changes := time.Hour, 0
	for i := range 1000 {
		now += time.Second
		p := newProcess(time.Hour, old)
		if i%2 == 1 {
			p = newProcess(time.Hour+time.Minute, next)
		}
		p.book(&s, now)
		changes += p.changes
	}
	if changes != 1 {
		t.Errorf("the limits were replaced %d times, want once", changes)
	}
}

// A process that has looked at a key which nobody had written learns of the limits that another
// process writes it with at the same time, although both are Number 1 of the same life.
func TestReply_NamesOtherLimitsOfTheSameNumber(t *testing.T) {
	one, other := numbered([]Limit{{Capacity: 10, Rate: 1}}), numbered([]Limit{{Capacity: 2, Rate: 1}})
	var looked, s Stored
	look := Op{Limits: one}
	number := look.Apply(&looked, time.Hour).Number
	write := Op{Limits: other, Action: Book, Costs: []Units{{1}}}
	write.Apply(&s, time.Hour)
	next := Op{Limits: one, Number: number}
	if r := next.Apply(&s, time.Hour); r.Number != number || !Equal(r.Limits, other) {
		t.Errorf("the reply to a step by other limits: number %d, limits %v", r.Number, r.Limits)
	}
	next.Limits = other
	if r := next.Apply(&s, time.Hour); r.Limits != nil {
		t.Errorf("the reply to a step by the limits in force has them: %v", r.Limits)
	}
}
