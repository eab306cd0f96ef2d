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

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// answer is what the script has replied.
type answer struct {
	repeated bool // from the record of the request: it had been carried out before
	state    leak.State
	recorded int64 // the last request on record; -1: none
	stamp    int64 // of the limits that are set; 0: none are
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
	full     [leak.Max]float64 // how full they are at the first place
	up       [leak.Max]float64 // what the joint rule raised them by for that place
	y        [leak.Max]float64 // how full with all that had come back until then, if repeated
	stale    bool              // other limits are in force than the request counts by, and nothing was done
	set      []leak.Limit      // these; none: each worker's own
}

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
	text := ""
	switch v := value.(type) {
	case string:
		if text = v; text == "ahead" {
			return a, errAhead
		}
	case []any:
		if len(v) == 2 && v[0] == "stale" {
			if set, ok := v[1].(string); ok {
				return decodeStale(set)
			}
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
	a.stamp, a.claim, a.booked, a.place, a.before = int64(f[5]), f[6], int(f[7]), nanos(f[8]), nanos(f[9])
	for i := range a.n {
		l := limits[perLimit*i:]
		s.Level[i] = leak.Level{Level: l[0], Ret: l[1], Top: l[2]}
		a.full[i], a.up[i] = l[3], l[4]
	}
	a.which, s.Rem, s.Speed, s.Epoch = -1, -leak.HoldMemory, 1, int64(f[2])
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
	// The last bits are the version, and below 0 it is of limits that are set no more.
	if a.version = a.stamp % versions; a.stamp < 0 {
		a.version, a.stamp = -a.version, 0
	}
	return a, nil
}

// versions is the number of versions that a stamp tells apart.
const versions = 1 << 20

// decodeStale reads the limits that are in force, as the server keeps them: a stamp, and
// JSON. By itself: what JSON is read into is on the heap.
func decodeStale(set string) (a answer, err error) {
	a.stale = true
	text, blob, _ := strings.Cut(set, " ")
	if text == "" {
		return a, nil
	}
	stamp, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return a, fmt.Errorf("%w: limits %.80q", errReply, text)
	}
	a.version = stamp % versions
	if blob == "" {
		return a, nil
	}
	a.stamp = stamp
	if err := json.Unmarshal([]byte(blob), &a.set); err != nil {
		return a, &unreadable{float64(stamp), err}
	}
	if n := len(a.set); n == 0 || n > leak.Max {
		return a, &unreadable{float64(stamp), fmt.Errorf("%d limits", n)}
	}
	for i := range a.set {
		if l := &a.set[i]; !l.Sound() || leak.Find(a.set[:i], l) >= 0 {
			return a, &unreadable{float64(stamp), fmt.Errorf("limit %+v", *l)}
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
	base   leak.Reply
	why    *leak.Reply // of the refused; nil: nobody is
	err    error       // of all
	booked int         // of the gates, or of the costs of main
	over   []*wait     // their callers wait
}

// deliver notes what an answer says, and lets the line's next request go. What comes
// of it is handed out without the shard's lock, which is held here.
func (sh *shard) deliver(r *request, a *answer, sent, arrived time.Time) outcome {
	ln := r.line
	ln.badStamp = 0
	if a.stale {
		return sh.stale(r, a)
	}
	loss := ln.learn(r, a)
	o := outcome{request: r, answer: a, booked: min(max(0, a.booked), len(r.costs))}
	o.base = leak.Reply{
		Limit: -1, State: a.state, Stamp: a.stamp, Version: a.version, Claim: a.claim, Differ: a.differ, Garbage: a.garbage,
	}
	o.base.When, o.base.Heard = ln.offset.lay(a.state.At, sent, arrived)
	for i := range a.n {
		o.base.Full[i] = a.booked < 0 && (-1-a.booked)&(1<<i) != 0
	}
	if r.acts || a.booked != 0 {
		ln.refusal = refusal{}
	}
	if a.why != 0 {
		o.why = new(leak.Reply)
		*o.why = o.base
		o.why.Refused, o.why.Limit, o.why.Wait = true, a.which, a.wait
	}
	if a.why != 0 && len(r.gates) > o.booked {
		ln.refusal.remember(r.costs[o.booked], r, o.why, arrived)
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
		if o.answer.why != 0 && (cost == next || covers(&cost, &next)) {
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
// answer tells of, or nil if it has.
func (o *outcome) refusal(cost *leak.Units) *leak.Reply {
	if o.answer.why == 0 {
		return nil
	}
	s := o.base.State
	var c leak.Charge
	wait, which, ok := s.Fill(o.limits, cost, 0, &c)
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
	p := o.answer.places(o.request)
	var back []leak.Charge
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
		sh.giveBack(o.request, back)
	}
}

// giveBack returns places whose callers have gone.
func (sh *shard) giveBack(r *request, charges []leak.Charge) {
	op := &leak.Op{Limits: r.limits, Stamp: r.stamp, Action: leak.Book, Back: charges}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.push(r.line, &wait{op: op, line: r.line, gone: true})
}

// stale answers a request that counts by limits which are not in force. Nothing was
// done, and whoever is still there asks again.
func (sh *shard) stale(r *request, a *answer) outcome {
	r.line.fence = r.fenced
	o := outcome{request: r, answer: a, over: r.waits}
	o.base = leak.Reply{Limit: -1, Stale: true, Stamp: a.stamp, Version: a.version, Limits: a.set}
	r.line.refusal = refusal{}
	for _, w := range r.waits {
		w.place = -1
		if w.gone && w.tells && !w.reported {
			sh.lose(r.line, errUntold)
		}
		if w.reported {
			w.result = new(leak.Reply)
			*w.result = o.base
			w.result.Reported = true
		}
		sh.end(w)
	}
	sh.arrived(r.line)
	return o
}

// errUntold is why the report of a caller that has gone was lost.
var errUntold = errors.New("redisstore: limits were set meanwhile, and nobody was left to report again")

// unread has a request made again whose answer is limits that nobody can have set: the
// next one says so, and the script takes them for garbage.
func (sh *shard) unread(r *request, u *unreadable) outcome {
	ln := r.line
	ln.badStamp = u.stamp
	if r.stamp != 0 { // then none are in force
		return sh.stale(r, &answer{stale: true})
	}
	for _, w := range r.waits {
		w.told = w.reported
	}
	ln.pending = append(r.waits, ln.pending...)
	ln.fence = r.fenced
	sh.arrived(ln)
	return outcome{request: r, answer: &answer{}}
}

// refuse notes that a request has failed. The shard's lock is held.
func (sh *shard) refuse(r *request, err error) outcome {
	o := outcome{request: r, err: err}
	var u *unreadable
	switch {
	case errors.Is(err, errAhead):
		sh.store.rename()
		sh.store.tell(EventGarbage, r.line.bucket, nil)
	case errors.As(err, &u):
		return sh.unread(r, u)
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
