package redisstore_test

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// model is a key as the Go arithmetic computes it.
type model struct {
	leak.Stored
	// others are other states that the store may have. They differ in time: where
	// nothing has changed but by rounding, the store may have kept the state or
	// not.
	others []leak.Stored
	// logs are those of the last answer, if changed says that it has changed the key.
	logs    *leak.Logs
	changed bool
	exact   bool          // the store is in this process: it rounds nothing, and keeps what the arithmetic leaves
	unix    time.Duration // by how much the Unix time is ahead of the store's
	ahead   time.Duration // in the last answer: how far the kept state is ahead of it
}

// apply carries an operation out as a store does. It keeps the state only if more
// than its time is new.
func (m *model) apply(op *leak.Op, at time.Duration) leak.Reply {
	was, peeked := m.Clone(), m.Clone()
	r := op.ApplyAt(&m.Stored, at, at+m.unix)
	m.logs, m.changed = m.Clone().State.Logs, r.Changed
	m.ahead = max(0, m.State.At-at)
	if m.exact {
		return r
	}
	acts := op.Action > leak.Book && (op.Action != leak.Replace || m.Version != was.Version)
	if at < was.State.At && m.ahead == 0 || acts || len(r.Charges) > 0 {
		m.others = nil
		return r
	}
	m.others = m.others[max(0, len(m.others)-20):]
	look := leak.Op{Limits: op.Limits, Periods: op.Periods, Stamp: op.Stamp}
	if look.ApplyAt(&peeked, at, at+m.unix).State == r.State && !(r.Changed && was.State.Speed == 0) {
		m.others = append(m.others, m.Stored)
		m.Stored = was
	} else {
		m.others = append(m.others, was)
	}
	return r
}
