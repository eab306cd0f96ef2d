package leak

import (
	"reflect"
	"testing"
	"time"
)

func TestAStepByOtherLimitsThanAreInForceDoesNothing(t *testing.T) {
	set := []Limit{{Capacity: 4, Rate: 1}}
	states := map[string]Stored{"new": {}, "in use": keyInUse(t), "unreadable": {State: State{Speed: -1}}}
	s := keyInUse(t)
	asWorker(&s, Op{Action: Replace, Limits: []Limit{garbageLimit}, Replacement: set}, garbageTime)
	states["set"] = s
	s.State.Level[0].Level = -1
	states["set, and garbage"] = s
	for name, s := range states {
		charge := Charge{N: Units{3}, Born: s.State.Born, Place: s.State.Dial()}
		for what, op := range map[string]Op{
			"look": {}, "book": {Action: Book, Costs: []Units{{1}}}, "resume": {Action: Resume}, "meter": {Action: Meter, Costs: []Units{{1}}},
			"replace": {Action: Replace, Replacement: set}, "unset": {Action: Replace, Unset: true, Replacement: set},
			"settle": {Reports: []Report{{Kind: Settled, Charge: &charge, Used: Units{9}}}}, "hold": {Reports: []Report{{Kind: Held, Wait: time.Hour}}},
			"give back": {Action: Book, Back: []Charge{charge}}, "move": {Action: Book, Move: &charge, Costs: []Units{{3}}},
		} {
			for _, stamp := range []int64{1, -1, 0} {
				if stamp == 0 && s.Stamp == 0 {
					continue // those are in force
				}
				op, was := op, s
				op.Limits, op.Stamp = []Limit{garbageLimit}, stamp
				r := op.Apply(&s, garbageTime+time.Second)
				if !r.Stale || r.Garbage || r.Stamp != was.Stamp && name != "unreadable" || len(r.Charges) > 0 {
					t.Errorf("%s, %s by stamp %d: %+v", name, what, stamp, r)
				}
				if !reflect.DeepEqual(s, was) {
					t.Errorf("%s, %s by stamp %d: changed\n%+v to\n%+v", name, what, stamp, was, s)
				}
			}
		}
	}
	// The right stamp with other limits is no better.
	s = states["set"]
	op := Op{Limits: []Limit{garbageLimit}, Stamp: s.Stamp, Action: Book, Costs: []Units{{1}}}
	if r := op.Apply(&s, garbageTime); !r.Stale || !Equal(r.Limits, set) {
		t.Errorf("the stamp of other limits: %+v", r)
	}
}

func TestAStaleStepTellsHowLongTheKeyIsToBeKept(t *testing.T) {
	s := keyInUse(t)
	look, _ := asWorker(&s, Op{Limits: []Limit{garbageLimit}}, garbageTime+time.Second)
	stale := (&Op{Limits: []Limit{garbageLimit}, Stamp: 1}).Apply(&s, garbageTime+time.Second)
	if look.Expire < time.Second || stale.Expire < look.Expire {
		t.Errorf("after %v, want %v", stale.Expire, look.Expire)
	}
	unreadable := Stored{State: State{Speed: -1}}
	if r := (&Op{Limits: []Limit{garbageLimit}, Stamp: 1}).Apply(&unreadable, garbageTime); r.Expire < time.Minute {
		t.Errorf("garbage is to be forgotten after %v, and then open", r.Expire)
	}
}

// A worker that counts by limits that were set finds garbage as any other worker does.
func TestGarbageIsFullForAWorkerThatCountedByLimitsThatWereSet(t *testing.T) {
	s := Stored{State: State{Speed: -1}}
	own := Op{Action: Book, Limits: []Limit{garbageLimit}, Costs: []Units{{1}}}
	before := own
	before.Stamp = 5
	if r := before.Apply(&s, garbageTime); !r.Stale || r.Stamp != 0 {
		t.Fatalf("%+v", r)
	}
	if r := own.Apply(&s, garbageTime); !r.Garbage || !r.Refused {
		t.Errorf("%+v", r)
	}
	if n, told := opened(&s, garbageTime+10*time.Second, garbageLimit, Units{1}); n != 10 || told {
		t.Errorf("%d calls go after 10s, told again %v", n, told)
	}
}
