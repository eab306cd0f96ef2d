package store

import (
	"math"
	"testing"
	"time"
)

// storedKey is one key of a store, in simulated time.
type storedKey struct {
	*testing.T
	Stored
	now time.Duration
}

// do has a worker with these limits do something at a time in seconds. The costs of op are
// by unit.
func (k *storedKey) do(at float64, op Op, limits ...Limit) Reply {
	k.Helper()
	k.now = time.Duration(at * 1e9)
	op.Limits, op.Number = limits, k.Number
	byLimit := func(c Units) (n Units) {
		for i := range op.Limits {
			n[i] = op.Limits[i].Takes(c[op.Limits[i].Unit])
		}
		return n
	}
	for i := range op.Costs {
		op.Costs[i] = byLimit(op.Costs[i])
	}
	for i := range op.Reports {
		op.Reports[i].Used = byLimit(op.Reports[i].Used)
	}
	r := op.Apply(&k.Stored, k.now)
	if r.Stale {
		k.Fatal("stale, with the limits in force")
	}
	return r
}

// book books one call, and checks that it goes in wait seconds.
func (k *storedKey) book(at, wait float64, c Units, limits ...Limit) Charge {
	k.Helper()
	r := k.do(at, Op{Action: Book, Costs: []Units{c}, Wait: time.Hour}, limits...)
	if len(r.Charges) == 0 {
		k.Fatalf("%v of %v at %v: refused for %v", c, limits, at, r.Wait)
	}
	if in, _ := r.State.Due(r.Charges[0].Place); math.Abs(in.Seconds()-wait) > 1e-6 {
		k.Errorf("%v of %v at %v goes after %v, want %v", c, limits, at, in.Seconds(), wait)
	}
	return r.Charges[0]
}
