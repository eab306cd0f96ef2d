package outboundtest

import (
	"reflect"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// ask has the store carry out a step.
func (e *exam) ask(key string, op *leak.Op) leak.Reply {
	e.Helper()
	r, err := e.store.Update(bg, key, op)
	if err != nil {
		e.failf("%v", err)
	}
	return r
}

// stale asks by limits that were never set, by the bucket's own while others are set, and
// by those that were set when they are set no more.
func (e *exam) stale() {
	key, own, set := e.key(), slow(10), slow(20)
	b := e.share(key, own)
	limits := []leak.Limit{law(own)}
	charge := e.ask(key, &leak.Op{Limits: limits, Action: leak.Book, Costs: []leak.Units{{4}}}).Charges
	if len(charge) != 1 {
		e.failf("a call of 4 has no room in an empty bucket of 10")
		return
	}
	none := func(stamp int64, level float64, inForce ...leak.Limit) (now int64) {
		e.Helper()
		for _, op := range []leak.Op{
			{},
			{Action: leak.Book, Costs: []leak.Units{{1}}},
			{Action: leak.Book, Back: charge},
			{Action: leak.Meter, Costs: []leak.Units{{1}}},
			{Action: leak.Resume},
			{Action: leak.Replace, Replacement: []leak.Limit{law(slow(30))}},
			{Reports: []leak.Report{{Kind: leak.Settled, Charge: &charge[0], Used: leak.Units{9}}}},
			{Reports: []leak.Report{{Kind: leak.Held, Wait: time.Hour}}},
		} {
			op.Limits, op.Stamp = limits, stamp
			r := e.ask(key, &op)
			if !r.Stale || len(r.Charges) > 0 || !leak.Equal(r.Limits, inForce) || (r.Stamp != 0) != (len(inForce) > 0) {
				e.failf("%v by stamp %d: stale %v, %d charges, limits %v by stamp %d; want those of %v", op.Action, stamp, r.Stale, len(r.Charges), r.Limits, r.Stamp, inForce)
			}
			now = r.Stamp
		}
		if s, err := b.State(bg); err != nil || s.Level < level-0.01 || s.Level > level+0.01 || s.HeldFor > 0 {
			e.failf("level %v, held for %v, %v after steps that do nothing; want %v", s.Level, s.HeldFor, err, level)
		}
		return now
	}
	none(1, 4)
	if err := b.SetLimits(bg, set); err != nil {
		e.failf("%v", err)
	}
	stamp := none(0, 4, law(set))
	none(stamp+1, 4, law(set))
	if r := e.ask(key, &leak.Op{Limits: []leak.Limit{law(set)}, Stamp: stamp, Action: leak.Book, Costs: []leak.Units{{15}}}); len(r.Charges) != 1 {
		e.failf("a call of 15 beside one of 4 has no room in the 20 that were set: %+v", r)
	}
	if err := b.SetLimits(bg); err != nil {
		e.failf("%v", err)
	}
	none(stamp, 19)
}

// keepsOp compares a step with what it was.
func (e *exam) keepsOp() {
	key, limits := e.key(), []leak.Limit{law(slow(100)), law(slow(50).Of(1, "b"))}
	booked := e.ask(key, &leak.Op{Limits: limits, Action: leak.Book, Costs: []leak.Units{{1, 1}, {2, 2}, {3, 3}, {4, 4}}, Wait: time.Hour, Horizon: time.Hour}).Charges
	if len(booked) != 4 {
		e.failf("%d of four calls have room in an empty bucket", len(booked))
		return
	}
	charges := slices.Clone(booked)
	op := &leak.Op{
		Limits: limits, Action: leak.Book, Costs: []leak.Units{{5, 5}}, Wait: time.Hour, Back: charges[2:3], Move: &charges[3],
		Reports: []leak.Report{
			{Kind: leak.Settled, Charge: &charges[0], Used: leak.Units{9, 0}},
			{Kind: leak.Refused, Charge: &charges[1], Wait: time.Millisecond, Epoch: charges[1].Epoch},
		},
	}
	was := *op
	was.Costs, was.Reports, was.Back = slices.Clone(op.Costs), slices.Clone(op.Reports), slices.Clone(op.Back)
	e.ask(key, op)
	if !reflect.DeepEqual(*op, was) {
		e.failf("it was %+v\nand is %+v", was, *op)
	}
	if !reflect.DeepEqual(charges, booked) {
		e.failf("the charges were %+v\nand are %+v", booked, charges)
	}
}
