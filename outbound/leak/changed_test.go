package leak

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"
)

// passed returns a key when only time has passed, and somebody has looked by other limits. now
// is its state at that time.
func passed(s Stored, op *Op, at time.Duration) (kept Stored, now State) {
	if s.missing() {
		s = Stored{State: New(at), Version: s.Version, Limits: op.Limits}
	}
	if s.Stamp == 0 {
		s.use(op.Limits)
	}
	ahead := s.State.Advance(op.Limits, at)
	now = s.State
	s.State.Keep(ahead)
	return s, now
}

// What Apply calls unchanged is what it was, bit for bit, and what it calls changed is more
// than older.
func TestAKeyHasChangedIfMoreThanTimeIsNewInIt(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(20) {
		tr := newTrace(seed, someWorkers()...)
		var s Stored
		for range 1000 {
			op := tr.step(&s)
			if tr.IntN(300) == 0 {
				s = Stored{}
			}
			if tr.IntN(300) == 0 {
				s.State.Speed = -1
			}
			before, copied := s.copied(), s
			r := op.Apply(&s, tr.now)
			tr.heard(&op, &r)
			if !reflect.DeepEqual(copied, before) {
				t.Fatalf("%+v has written into slices of\n%+v: it is\n%+v", op, before, copied)
			}
			idle, now := passed(before, &op, tr.now)
			switch stepped := tr.now < before.State.At-Wobble && !before.missing(); {
			case !r.Changed && !reflect.DeepEqual(s, before):
				t.Fatalf("%+v has changed\n%+v to\n%+v", op, before, s)
			case !r.Changed && !r.Stale && (stepped || r.State != now):
				t.Fatalf("%+v is said not to have changed\n%+v to\n%+v", op, before, r.State)
			case !r.Changed && r.Stale:
				seen["stale"]++
			case !r.Changed && before.missing():
				seen["a look at a key that does not exist"]++
			case !r.Changed && len(op.Reports)+len(op.Back) > 0:
				seen["reports that change nothing"]++
			case !r.Changed && r.Refused:
				seen["refused"]++
			case !r.Changed:
				seen["unchanged"]++
			case r.Garbage:
				seen["garbage"]++
			case stepped:
				seen["stepped back"]++
			case op.Action == Meter || op.Action == Resume || len(r.Charges) > 0:
				seen["acted"]++
			case reflect.DeepEqual(s, idle):
				t.Fatalf("%+v is said to have changed\n%+v to\n%+v", op, before, s)
			case len(op.Reports)+len(op.Back) > 0:
				seen["reports that change something"]++
			default:
				seen["changed"]++
			}
		}
	}
	for _, what := range []string{
		"stale", "a look at a key that does not exist", "reports that change nothing", "refused", "unchanged", "garbage",
		"stepped back", "acted", "reports that change something", "changed",
	} {
		if seen[what] < 10 {
			t.Errorf("%s: %d times only", what, seen[what])
		}
	}
}

// The reply to such a look tells of a version that has to be kept.
func TestALookThatMakesAKeyForgetALimitHasChangedIt(t *testing.T) {
	k := &storedKey{T: t}
	limit := func(i int) Limit { return Limit{Capacity: 100, Rate: 1, Name: fmt.Sprint(i)} }
	for i := range Max + 1 {
		k.book(0, 0, Units{float64(1 + i)}, limit(i))
	}
	k.book(1.5, 0, Units{1}, limit(Max))
	if r := k.do(1.5, Op{}, limit(Max+1)); !r.Changed || r.Version != 2 || k.Version != 2 {
		t.Errorf("changed %v, version %d in the reply and %d in the key, want 2", r.Changed, r.Version, k.Version)
	}
	if r := k.do(1.5, Op{}, limit(1)); r.Changed || r.Version != 2 {
		t.Errorf("changed %v, version %d, of a limit that is known", r.Changed, r.Version)
	}
}

// Two stores are asked the same. One writes a row that is unchanged, as of the time when
// somebody has looked, and the other leaves it as it was. Their replies are the same. Where a
// clock steps back, the second store has not seen the later time, and counts less.
func TestAStoreNeedNotWriteWhatHasNotChanged(t *testing.T) {
	thrown := 0
	for seed := range uint64(20) {
		traces := [2]*trace{newTrace(seed, someWorkers()[0]), newTrace(seed, someWorkers()[0])}
		var keys [2]Stored
		var until time.Duration // when the row that was left may go
		for step := range 2000 {
			var ops [2]Op
			var replies [2]Reply
			for i, tr := range traces {
				tr.steady = true
				ops[i] = tr.step(&keys[i])
				replies[i] = ops[i].Apply(&keys[i], tr.now)
				tr.heard(&ops[i], &replies[i])
			}
			now, kept, left := traces[0].now, &replies[0], &replies[1]
			if left.Changed {
				until = now + left.Expire
			} else if d := now + left.Expire - until; left.Expire > 0 && !left.Stale && d > time.Microsecond {
				t.Fatalf("seed %d, step %d: the row may go %v too soon", seed, step, d)
			}
			if !kept.Changed && !keys[0].missing() {
				keys[0].State.Keep(keys[0].State.Advance(keys[0].Limits, now))
				thrown++
			}
			if !alike(kept, left) {
				t.Fatalf("seed %d, step %d, %+v: the one that writes says\n%+v, and the other\n%+v", seed, step, ops[0], kept, left)
			}
		}
	}
	if thrown < 5000 {
		t.Errorf("%d rows were left as they were", thrown)
	}
}

// alike reports whether two replies are the same but for rounding.
func alike(a, b *Reply) bool {
	near := func(a, b time.Duration) bool { return a-b < 20*time.Microsecond && b-a < 20*time.Microsecond }
	close := func(a, b float64) bool { return math.Abs(a-b) <= 1e-3+1e-9*math.Abs(a) }
	s, u := &a.State, &b.State
	if a.Stale && b.Stale {
		u = s // as of when it was stored
	}
	same := a.Refused == b.Refused && a.Limit == b.Limit && len(a.Charges) == len(b.Charges) && a.Stale == b.Stale &&
		a.Version == b.Version && (a.Stamp == 0) == (b.Stamp == 0) && a.Full == b.Full && close(a.Claim, b.Claim) && near(a.Wait, b.Wait) &&
		near(s.Dial(), u.Dial()) && near(s.Rem, u.Rem) && near(s.Last, u.Last) && math.Abs(s.Speed-u.Speed) < 1e-6 &&
		s.Fails == u.Fails && s.Why == u.Why && s.Row.Calls == u.Row.Calls && s.Row.Refused == u.Row.Refused && s.Row.Trust == u.Row.Trust
	for i := range s.Level {
		same = same && close(s.Level[i].Level, u.Level[i].Level) && close(s.Level[i].Ret, u.Level[i].Ret)
	}
	for i := range a.Charges[:min(len(a.Charges), len(b.Charges))] {
		same = same && near(a.Charges[i].Place, b.Charges[i].Place)
	}
	return same
}

// The level of a calendar is that of this period. What comes back to the next one is a change
// all the same.
func TestAReturnToTheNextPeriodIsAChange(t *testing.T) {
	at := func(begin int64) Period { return Period{begin, begin + 3600, begin + 7200, begin + 10800} }
	for name, back := range map[string]func(*Op, *Charge){
		"settled":    func(op *Op, c *Charge) { op.Reports = []Report{{Kind: Settled, Charge: c}} },
		"given back": func(op *Op, c *Charge) { op.Back = []Charge{*c} },
	} {
		op := Op{Limits: []Limit{{Kind: Hourly, Capacity: 5}}, Periods: []Period{at(0)}, Action: Book, Costs: []Units{{5}, {2}, {1}}, Wait: 2 * time.Hour, Horizon: 2 * time.Hour}
		var s Stored
		now := 1000 * time.Second
		charges := op.Apply(&s, now).Charges
		if len(charges) != 3 || s.State.Level[0].Level != 5 || (*s.State.Logs)[0].Calendar.Coming != 3 {
			t.Fatalf("%d charges, %+v", len(charges), s.State)
		}
		op.Costs = nil
		if back(&op, &charges[1]); !op.Apply(&s, now+time.Second).Changed || (*s.State.Logs)[0].Calendar.Coming != 1 {
			t.Errorf("%s: not a change, with %+v", name, (*s.State.Logs)[0].Calendar)
		}
	}
}
