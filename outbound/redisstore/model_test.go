package redisstore_test

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// model is a key as the arithmetic knows it, with the lead of its workers, which
// the arithmetic does not know.
type model struct {
	outbound.Stored
	lead float64
	// others are states in which the store may be instead, as to the time: where
	// nothing has changed but by rounding, it may have kept the state or not.
	others []outbound.Stored
}

// catchUp is how far beyond its first place a worker that is behind may book.
const catchUp = 100 * time.Millisecond

func (m *model) apply(op *outbound.Op, at time.Duration) outbound.Result {
	was, peeked := m.Stored, m.Stored
	var granted []outbound.Charge
	defer func() {
		// The store keeps no state in which nothing but the time is new.
		look := outbound.Op{Limits: op.Limits}
		if at < was.State.At || op.Action > outbound.Book || len(granted) > 0 {
			m.others = nil
			return
		}
		m.others = m.others[max(0, len(m.others)-20):]
		if look.Apply(&peeked, at).State == m.State {
			m.others = append(m.others, m.Stored)
			m.Stored = was
		} else {
			m.others = append(m.others, was)
		}
	}()
	if op.Claim == 0 || op.Action != outbound.Book || len(op.Costs) == 0 {
		r := op.Apply(&m.Stored, at)
		granted = r.Charges
		if op.Action == outbound.Resume {
			m.lead = 0
		}
		return r
	}
	costs, booked := op.Costs, op.Claim
	begins := op.Claim > m.lead
	if begins {
		booked = 0
	}
	op.Costs = costs[:1]
	r := op.Apply(&m.Stored, at)
	var first time.Duration
	for i := 1; len(r.Charges) == i; i++ {
		l := &r.Limits[0]
		units := func(i int) float64 {
			n := costs[i][l.Unit]
			if n > 0 {
				n = max(n, l.Capacity*1e-9)
			}
			return n
		}
		booked += units(i - 1)
		m.lead = max(m.lead, booked)
		r.Claim = booked
		if begins {
			r.Claim = m.lead
		}
		if i == len(costs) {
			break
		}
		if i == 1 {
			first, _ = r.State.Due(r.Charges[0].Place)
		}
		limit := op.Horizon
		if !begins && booked < m.lead && units(i) > 0 {
			limit = max(limit, first+catchUp)
		}
		next := outbound.Op{Limits: op.Limits, Action: outbound.Book, Costs: costs[i : i+1], Wait: limit}
		was, claim := r.Charges, r.Claim
		r = next.Apply(&m.Stored, at)
		r.Charges = append(was, r.Charges...)
		r.Claim = claim
	}
	op.Costs = costs
	granted = r.Charges
	return r
}
