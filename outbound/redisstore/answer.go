package redisstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// answer is what the script has replied.
type answer struct {
	repeated bool // from the record of the request: it had been carried out before
	state    leak.State
	recorded int64 // the last request on record; -1: none
	version  int64
	claim    float64
	booked   int // calls; -1 - the limits brought to the brim, for a meter
	place    time.Duration
	before   time.Duration
	which    int
	why      int
	wait     time.Duration
	garbage  bool
	lost     uint8 // of what this worker has had an answer to
	differ   bool
	n        int               // limits
	stamp    float64           // of set
	full     [leak.Max]float64 // how full they are at the first place
	up       [leak.Max]float64 // what the joint rule raised them by for that place
	y        [leak.Max]float64 // how full with all that had come back until then, if repeated
	set      *[]outbound.Limit // those in force, if they are not the ones known; empty: each bucket's own
}

// why a call was not booked, as the script counts.
const (
	whyRoom = 1 + iota
	whyTooLarge
	whyInvalid
)

// errReply is a reply that the script does not make.
var errReply = errors.New("redisstore: not a reply of this package's script")

// errAhead is a record of this worker with the number of a request that it has not made.
var errAhead = fmt.Errorf("%w: the record is ahead of its worker", errReply)

// unreadable are limits that cannot have been set by this package.
type unreadable struct {
	stamp float64
	cause error
}

func (e *unreadable) Error() string {
	return fmt.Sprintf("%v: limits that were set: %v", errReply, e.cause)
}
func (e *unreadable) Unwrap() []error { return []error{errReply, e.cause} }

// A reply has head numbers and perLimit for each limit. Then, only if any differs from
// what it mostly is, unusual ones; and for calls booked before, one for each limit.
const head, perLimit, unusual = 11, 5, 16

// decode reads a reply.
func decode(value any) (a answer, err error) {
	text, blob, blobbed := "", "", false
	switch v := value.(type) {
	case string:
		if text = v; text == "ahead" {
			return a, errAhead
		}
	case []any:
		if len(v) == 2 {
			text, _ = v[0].(string)
			blob, blobbed = v[1].(string)
		}
	}
	var buf [head + perLimit*leak.Max + unusual + leak.Max]float64
	f, ok := numbers(text, buf[:0])
	if !ok || len(f) < head || !(f[10] >= 0 && f[10] <= leak.Max) {
		return a, fmt.Errorf("%w: %.80q", errReply, text)
	}
	a.n = int(f[10])
	limits := f[head:]
	rest := len(limits) - perLimit*a.n
	if rest != 0 && rest != unusual && rest != unusual+a.n {
		return a, fmt.Errorf("%w: %.80q", errReply, text)
	}
	s := &a.state
	a.recorded, s.At, s.Born, s.Last, s.Fails = int64(f[0]), nanos(f[1]), nanos(f[2]), nanos(f[3]), int(f[4])
	a.version, a.claim, a.booked, a.place, a.before = int64(f[5]), f[6], int(f[7]), nanos(f[8]), nanos(f[9])
	for i := range a.n {
		l := limits[perLimit*i:]
		s.Level[i] = leak.Level{Level: l[0], Ret: l[1], Top: l[2]}
		a.full[i], a.up[i] = l[3], l[4]
	}
	a.which, s.Rem, s.Speed, s.Epoch = -1, -leak.Memory, 1, int64(f[2])
	if rest != 0 {
		u := limits[perLimit*a.n:]
		a.repeated, a.garbage, a.differ = u[0] != 0, u[1] == 1, u[2] != 0
		if u[1] > 1 {
			a.lost = uint8(u[1])
		}
		a.which, a.why, a.wait = int(u[3]), int(u[4]), nanos(u[5])
		copy(a.y[:], u[unusual:])
		s.Skip, s.Rem, s.Speed, s.Epoch, s.Why = nanos(u[6]), nanos(u[7]), u[8], int64(u[9]), uint8(u[10])
		s.Row = row(u[11:])
	}
	if blobbed {
		a.set = new([]outbound.Limit)
		stamp, blob, _ := strings.Cut(blob, " ")
		if a.stamp, err = strconv.ParseFloat(stamp, 64); err != nil {
			return a, fmt.Errorf("%w: limits %.80q", errReply, stamp)
		}
		if blob != "" {
			if err := json.Unmarshal([]byte(blob), a.set); err != nil {
				return a, &unreadable{a.stamp, err}
			}
		}
	}
	return a, nil
}

// numbers reads what the script has packed.
func numbers(s string, into []float64) ([]float64, bool) {
	if len(s)%8 != 0 || len(s)/8 > cap(into) {
		return nil, false
	}
	for ; s != ""; s = s[8:] {
		into = append(into, math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8]))))
	}
	return into, true
}

// outcome is what has become of the operations of a request.
type outcome struct {
	*request
	answer *answer
	base   outbound.Result
	why    *outbound.Result // of the refused; nil: nobody is
	err    error            // of all
	booked int              // of the gates, or of the costs of main
	over   []*wait          // their callers wait
}

// deliver notes what an answer says, and lets the line's next request go. What comes
// of it is handed out without the shard's lock, which is held here.
func (sh *shard) deliver(r *request, a *answer, sent, arrived time.Time) outcome {
	ln := r.line
	if a.set != nil {
		ln.set, ln.stamp = nil, a.stamp
		if len(*a.set) > 0 {
			ln.set = *a.set
		}
	}
	ln.version = a.version
	loss := ln.learn(r, a)
	o := outcome{request: r, answer: a, booked: min(max(0, a.booked), len(r.costs))}
	o.base = outbound.Result{
		Limit: -1, State: a.state, Limits: ln.inForce(r.limits), Version: a.version, Claim: a.claim, Differ: a.differ, Garbage: a.garbage,
	}
	o.base.When, o.base.Heard = ln.offset.lay(a.state.At, sent, arrived)
	for i := range a.n {
		o.base.Full[i] = a.booked < 0 && (-1-a.booked)&(1<<i) != 0
	}
	if r.acts || a.booked != 0 {
		ln.refusal = refusal{}
	}
	if a.why != 0 {
		o.why = new(outbound.Result)
		*o.why = o.base
		o.why.Refused, o.why.Limit, o.why.Wait = true, a.which, a.wait
		o.why.TooLarge, o.why.Invalid = a.why == whyTooLarge, a.why == whyInvalid
	}
	if a.why == whyRoom && len(r.gates) > o.booked {
		ln.refusal.remember(r.costs[o.booked], r.limits, o.why, arrived)
	}
	o.divide(sh)
	sh.tellOf(ln, a, loss)
	sh.arrived(ln)
	return o
}

// divide says who is answered. The first gates have got a place each; the next one is
// refused, and with it those who ask for as much, and whoever else has no room in
// what the answer tells of the levels. The others go with the next request.
func (o *outcome) divide(sh *shard) {
	var again []*wait
	for i, w := range o.gates {
		w.place = i
		if i < o.booked {
			continue
		}
		next, cost := o.costs[o.booked], o.costs[i]
		if o.answer.why != 0 && cost == next || o.answer.why == whyRoom && covers(&cost, &next) {
			w.place = -1
		} else if w.result = o.refusal(&cost); w.result != nil {
			w.place = -1
		} else {
			w.place = -2
			again = append(again, w)
		}
	}
	if o.over = o.waits; again != nil {
		o.over = make([]*wait, 0, len(o.waits)-len(again))
		for _, w := range o.waits {
			if !w.gate || w.place != -2 {
				o.over = append(o.over, w)
			}
		}
		o.line.pending = append(again, o.line.pending...)
	}
	for _, w := range o.over {
		sh.end(w)
	}
}

// refusal is what a call of this cost is told that has no room in the state that the
// answer tells of, or nil if it has, or can never have any.
func (o *outcome) refusal(cost *outbound.Cost) *outbound.Result {
	if o.answer.why != whyRoom {
		return nil
	}
	s, limits, n := o.base.State, o.base.Limits, share(cost, o.base.Limits)
	var shapes [leak.Max]leak.Limit
	for i := range limits {
		if n[i] > limits[i].Capacity {
			return nil
		}
		shapes[i] = leak.Limit{Capacity: limits[i].Capacity, Rate: limits[i].LeakRate}
	}
	var c leak.Charge
	wait, which, ok := s.Fill(shapes[:len(limits)], &n, 0, &c)
	if ok {
		return nil
	}
	r := *o.why
	r.Limit, r.Wait = which, wait
	return &r
}

// hand lets the callers go. Afterwards their operations are not touched.
func (o *outcome) hand(sh *shard) {
	if o.err != nil {
		for _, w := range o.over {
			w.fail(o.err)
		}
		return
	}
	p := o.answer.places(o.request, o.base.Limits)
	var back []outbound.Charge
	for _, w := range o.over {
		n, r := 0, &o.base
		switch {
		case w == o.main:
			n = o.booked
		case w.gate && w.place >= 0:
			n = 1
		}
		if o.why != nil && (w == o.main || w.gate && w.place < 0) {
			r = o.why
		}
		if w.gone {
			back = p.book(back, n)
			continue
		}
		if w.result == nil {
			w.result = r
		}
		w.booked = p.book(w.op.Into[:0], n)
		w.ready <- struct{}{}
	}
	if len(back) > 0 {
		sh.giveBack(o.line, o.limits, back)
	}
}

// giveBack returns places whose callers have gone.
func (sh *shard) giveBack(ln *line, limits []outbound.Limit, charges []outbound.Charge) {
	op := &outbound.Op{Limits: limits, Action: outbound.Book}
	for i := range charges {
		op.Charges = append(op.Charges, &charges[i])
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.push(ln, &wait{op: op, line: ln, gone: true})
}

// places are what was taken for each of a request's costs, in their order, as the
// script has taken it.
type places struct {
	*answer
	*request
	limits []outbound.Limit
	shape  [leak.Max]leak.Limit
	// From the first place on, which is the zero of this dial, it is computed again.
	dial leak.State
	next int
}

func (a *answer) places(r *request, limits []outbound.Limit) places {
	p := places{answer: a, request: r, limits: limits, dial: leak.State{Speed: 1, Rem: -leak.Memory}}
	for i := range limits[:min(len(limits), a.n)] {
		p.shape[i] = leak.Limit{Capacity: limits[i].Capacity, Rate: limits[i].LeakRate}
	}
	if a.state.Rem > 0 { // then the last of the booked is a microsecond ahead, at least
		p.dial.Last = max(0, time.Microsecond-(a.place-a.state.Dial()))
	}
	for i := range a.n {
		p.dial.Level[i].Level = a.full[i]
	}
	return p
}

// book appends the charges of the next n costs.
func (p *places) book(to []outbound.Charge, n int) []outbound.Charge {
	a := p.answer
	for range n {
		to = append(to, outbound.Charge{})
		c := &to[len(to)-1]
		units := share(&p.costs[p.next], p.limits)
		if p.next == 0 {
			c.N, c.Y, c.Up = units, a.full, a.up
			c.Before = a.before - a.place
			c.Free = c.Freed(p.shape[:a.n])
		} else {
			p.dial.Fill(p.shape[:a.n], &units, maxWait, &c.Charge)
		}
		p.next++
		c.Place += a.place
		c.Before += a.place
		c.Free += a.place
		c.Born, c.Epoch = a.state.Born, a.state.Epoch
		for i := range a.n {
			if a.repeated { // what has come back since is no part of it
				c.Y[i] += a.y[i] - p.full[i]
			} else {
				c.Y[i] += a.state.Level[i].Ret
			}
		}
		c.Seq, c.Version = p.seq, a.version
	}
	return to
}

const maxWait = time.Duration(math.MaxInt64)

// share returns what a cost takes of each limit.
func share(c *outbound.Cost, limits []outbound.Limit) (n leak.Units) {
	for i := range limits {
		n[i] = leak.Limit{Capacity: limits[i].Capacity}.Takes(c[limits[i].Unit])
	}
	return n
}

// refuse notes that a request has failed. The shard's lock is held.
func (sh *shard) refuse(r *request, err error) outcome {
	o := outcome{request: r, err: err}
	var u *unreadable
	switch {
	case errors.Is(err, errAhead):
		sh.store.rename()
		sh.store.tell(EventGarbage, r.line.bucket, nil)
	case errors.As(err, &u): // the next request says so
		r.line.stamp = -u.stamp
	}
	for _, w := range r.waits {
		if w.tells {
			sh.lose(r.line, err)
		}
		sh.end(w)
		o.over = append(o.over, w)
	}
	sh.arrived(r.line)
	return o
}

// arrived lets the next request of a line go.
func (sh *shard) arrived(ln *line) {
	ln.away = false
	if len(ln.pending) > 0 && !ln.queued {
		ln.lane.push(ln)
	}
}
