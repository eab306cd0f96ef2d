package core

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Permit is what the permit of an admitted call keeps: what the call has taken of a word, or the
// Call. The zero Permit is of no call.
type Permit struct {
	Call *Call
	// What follows is of a call that was charged to a word, and has no Call. If the object of the Call
	// is used again, Fill has the key's epoch as Word, and the time of the admission.
	Core  *Core
	Fill  key.Fill
	Flags uint8
	uses  uint32 // of the object: see [Call.is]
}

// Settle sets what the call has really cost.
func (p *Permit) Settle(used *reports.Numbers) {
	if p.ofWord() && used[p.Core.Word.Unit()] == p.Fill.Units {
		p.Flags |= Settled
	} else if k := p.end(); k != nil && !k.settle(p.uses, used) {
		p.forget().settle(0, used)
	}
}

// Answered reports what the API has replied.
func (p *Permit) Answered(a *Answer) {
	if p.ofWord() && !p.Core.concerns(a, key.Now()-time.Duration(p.Fill.At)) {
		if a.Fails {
			p.Flags |= Failed
		}
	} else if k := p.end(); k != nil && !k.answered(p.uses, a) {
		p.forget().answered(0, a)
	}
}

// Done ends the call. Its flags say that it has not been called before.
func (p *Permit) Done() {
	if p.Call != nil {
		p.Call.done(p.uses)
	} else if p.Core != nil && p.Flags&(Failed|Known) == 0 {
		p.Core.succeededAt(p.Fill.At)
	}
}

// Pending reports whether the call is in flight in a slot.
func (p *Permit) Pending() bool {
	return p.Call != nil && p.uses == 0 && p.Call.pending() // a call that is used again has no slot
}

// Of returns what the call is charged to, or nil.
func (p *Permit) Of() *Core {
	if p.Call != nil && p.uses == 0 {
		return p.Call.core
	}
	return p.Core
}

// ofWord reports whether the permit is what the word has left it.
func (p *Permit) ofWord() bool { return p.Core != nil && p.Call == nil }

// end returns what ends the call. One that was charged to the word then is as any other call.
func (p *Permit) end() *Call {
	if p.ofWord() {
		k := &Call{core: p.Core, admitted: time.Duration(p.Fill.At), force: p.Core.alone(), flags: p.Flags}
		k.charge[0] = p.Core.slowPath().Charge(&p.Fill)
		k.cost[0][p.Core.Word.Unit()] = p.Fill.Units // unknown for the other units
		p.Call = k
	}
	return p.Call
}

// forget makes the permit that of an unknown charge, for a call whose object another call uses.
func (p *Permit) forget() *Call {
	k := &Call{core: p.Core, admitted: time.Duration(p.Fill.At), force: p.Core.InForce(), flags: Done}
	k.cost[0][p.Core.Word.Unit()] = 1
	k.charge[0] = store.Charge{Born: key.Never, Epoch: p.Fill.Word, N: k.force.Units(&k.cost[0])}
	p.Call, p.Core, p.uses = k, nil, 0
	return k
}

// Nearest is the state of the limit nearest its capacity, when a call was charged.
type Nearest struct {
	Limit                    spec.Limit
	Level, Speed             float64
	EmptyIn, NextIn, HeldFor time.Duration
	Why                      uint8
}

// State reports false if it is unknown.
func (p *Permit) State() (n Nearest, ok bool) {
	switch {
	case p.Core != nil && p.uses == 0:
		return p.Core.OfWord(p.Fill.Word, time.Duration(p.Fill.At)), true
	case p.Call != nil:
		return p.Call.state(p.uses)
	}
	return n, false
}

// OfWord returns the state of the only limit by the word at a time, without an allocation.
func (b *Core) OfWord(word int64, t time.Duration) Nearest {
	first, level := b.labelled.Value().limit, b.Word.Level(word, t)
	l := store.Limit{Capacity: first.Capacity, Rate: first.LeakRate}
	n := Nearest{Limit: first, Level: level, EmptyIn: l.Above(level, 0), Speed: 1}
	if one := min(1, l.Capacity); !l.Fits(level + one) {
		n.NextIn = l.Above(level+l.Takes(one), l.Capacity)
	}
	return n
}
