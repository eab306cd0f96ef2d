package redisstore

import (
	"crypto/rand"
	"math"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

const (
	// spare is for how long the server keeps a key beyond what it has to.
	spare = time.Minute
	// keepSet is for how much longer it keeps limits that were set.
	keepSet = 30 * 24 * time.Hour
	// farthest is the longest wait that can be reserved.
	farthest = time.Duration(1<<63-1) / 2
)

// The modes of the script.
const (
	look = iota
	swap
	hot
)

// key is what is known of a key.
type key struct {
	name  any           // the server's, a string
	row   *row          // as it was last seen; nil: it was not seen
	first *row          // as a step with the limits of first would make it; nil: not known
	until time.Duration // before which the server keeps it, by its clock
	cold  bool          // the next step goes by swap
	apart time.Duration // until when all steps do, by the server's clock
	pause time.Duration // how long another process has it for itself
}

// request is a step as the script reads it.
type request struct {
	op      *store.Op
	seq     int64
	fence   bool
	mode    int
	token   string
	row     *row // that the step counts on: as hot expects it, or as swap has read it
	made    *row // what swap writes
	reply   store.Reply
	args    []any
	pause   time.Duration // before it is sent
	unknown atomic.Bool   // the server does not know the script
	moved   atomic.Bool   // another node has the key, so it goes by itself
}

// command returns the words to send.
func (q *request) command() []any {
	if !q.unknown.Load() {
		return q.args
	}
	args := append([]any(nil), q.args...)
	args[0], args[1] = "EVAL", script
	return args
}

// compose writes a step down. clock is at most what the server's clock shows; 0: not known. op
// must not change any more.
func compose(k *key, worker any, op *store.Op, seq int64, fence bool, clock, reserve time.Duration) *request {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	clock -= clock % time.Microsecond
	q := &request{op: op, seq: seq, fence: fence, token: string(id[:])}
	op.Age -= op.Age % time.Microsecond
	q.row = k.row
	absent := k.row == nil || k.row.token == ""
	if absent {
		q.row = k.makes(op)
	}
	known := k.row != nil && clock != 0
	var third, fourth, fifth, sixth, seventh any = "", "", "", "", ""
	keep := spare
	switch {
	case !k.cold && clock >= k.apart && hotable(op, q.row):
		q.mode = hot
		if absent || clock == 0 || clock >= k.until {
			third = q.row.fixed
		}
		fourth = steps(op, &q.row.stored)
		if q.row.stored.Set {
			keep += keepSet
		}
	case known:
		q.mode, q.row = swap, k.row
		s := k.row.stored.Clone()
		q.reply = op.ApplyAt(&s, clock, clock)
		third = k.row.token
		if q.reply.Changed || fence {
			keep += max(0, min(q.reply.Expire, farthest/4))
			q.made = newRow(s, q.token, nil)
			b, x := q.made.fields(keep)
			fourth, fifth = b, x
			if x == nil {
				fifth = ""
			}
			if q.made.print != 0 {
				seventh = q.made.parts()
			}
			if sixth = q.made.fixed; k.row.fixed == q.made.fixed {
				sixth = ""
			}
		}
	default:
		clock = 0
	}
	micros := func(d time.Duration) float64 { return float64(d / 1000) }
	fenced := 0.
	if fence {
		fenced = 1
	}
	limits := q.row.stored.Limits
	b := append(make([]byte, 0, 80+perLimit*len(limits)), q.token...)
	b = numbers(b, float64(seq), float64(q.mode), fenced, micros(clock), micros(keep), q.row.print, micros(op.Age), micros(reserve), float64(len(limits)))
	if q.mode == hot {
		for i := range limits {
			b = numbers(b, limits[i].Capacity, limits[i].Rate, float64(limits[i].Kind), float64(limits[i].Window))
		}
		for i := range limits {
			if limits[i].Kind.Calendar() {
				var p store.Period
				if i < len(op.Periods) && op.Periods[i].Sound() {
					p = op.Periods[i]
				}
				b = numbers(b, float64(p.Begin), float64(p.End), float64(p.Next))
			}
		}
	}
	q.args = []any{"EVALSHA", digest, 1, k.name, worker, b, third, fourth, fifth, sixth, seventh}
	return q
}

// makes returns the row of a key that op makes where there is none.
func (k *key) makes(op *store.Op) *row {
	if f := k.first; f != nil && f.stored.Base == op.Base && store.Equal(f.stored.Limits, op.Limits) {
		return f
	}
	var s store.Stored
	(&store.Op{Limits: op.Limits, Base: op.Base}).ApplyAt(&s, 0, 0)
	k.first = newRow(s, "", nil)
	return k.first
}

// hotable reports whether the server may carry op out by itself on a key like r.
func hotable(op *store.Op, r *row) bool {
	if op.Action > store.Book || r.print == 0 || !store.Same(op.Limits, r.stored.Limits) {
		return false
	}
	for i := range op.Reports {
		if kind := op.Reports[i].Kind; kind == store.Paused || kind == store.Remaining {
			return false
		}
	}
	return true
}

// steps writes down what to do with a key of these limits.
func steps(op *store.Op, s *store.Stored) []byte {
	move, reports, backs, runs := 0., 0., 0., 0.
	for i := range op.Reports {
		if !idle(&op.Reports[i]) {
			reports++
		}
	}
	if op.Action == store.Book {
		backs = float64(len(op.Back))
		for i := range op.Costs {
			if i == 0 || op.Costs[i] != op.Costs[i-1] {
				runs++
			}
		}
		if op.Move != nil {
			if move = 2; movable(op, s.Limits) {
				move = 1
			}
		}
	}
	w := writer{numbers(make([]byte, 0, 128), move, reports, backs, runs), s}
	if move == 1 {
		w.charge(op.Move)
	}
	for i := range op.Reports {
		if r := &op.Reports[i]; !idle(r) {
			w.report(r)
		}
	}
	for i := int(backs) - 1; i >= 0; i-- {
		w.charge(&op.Back[i])
	}
	if runs > 0 {
		weight := op.Weight
		if !(weight > 0) {
			weight = 1
		}
		w.add(float64(min(op.Wait, farthest)), float64(op.Horizon), float64(max(0, op.After)), op.Claim, weight)
		for i := 0; i < len(op.Costs); {
			j := i + 1
			for j < len(op.Costs) && op.Costs[j] == op.Costs[i] {
				j++
			}
			w.add(float64(j - i))
			w.add(op.Costs[i][:len(s.Limits)]...)
			i = j
		}
	}
	return w.b
}

// idle reports whether a report changes nothing.
func idle(r *store.Report) bool {
	return r.Kind == store.Settled && (r.Charge.Settled || r.Used == r.Charge.N)
}

// movable reports whether Move may be undone, as package store says.
func movable(op *store.Op, limits []store.Limit) bool {
	if len(op.Costs) == 0 {
		return false
	}
	for i := range limits {
		if op.Costs[0][i] > limits[i].Capacity {
			return false
		}
		for j := range op.Reports {
			if r := &op.Reports[j]; r.Kind == store.Settled && r.Used[i] > r.Charge.N[i] {
				return false
			}
		}
	}
	return true
}

// writer writes the fourth argument of a hot step.
type writer struct {
	b []byte
	s *store.Stored
}

func (w *writer) add(x ...float64) { w.b = numbers(w.b, x...) }

// dial adds a time of the dial.
func (w *writer) dial(d time.Duration) {
	ns := d % 1000
	w.add(float64((d-ns)/1000), float64(ns))
}

func (w *writer) charge(c *store.Charge) {
	id, born := float64(c.ID), float64(c.Born/1000)
	if c.Settled {
		id = -1
	}
	if c.Born%1000 != 0 {
		born = -1
	}
	w.add(id, float64(c.Prev), born)
	w.dial(c.Place)
	w.dial(c.Before)
	w.add(float64(c.Until / 1000))
	for i := range w.s.Limits {
		y := c.Y[i]
		if c.Number < w.s.State.Parts[i].Since {
			y = math.Inf(-1)
		}
		w.add(c.N[i], y, c.Up[i])
	}
}

func (w *writer) report(r *store.Report) {
	w.add(float64(r.Kind))
	if r.Kind == store.Settled {
		w.charge(r.Charge)
		w.add(r.Used[:len(w.s.Limits)]...)
		return
	}
	if w.add(float64(r.Epoch>>20), float64(r.Epoch&(epochLow-1))); r.Kind == store.Succeeded {
		return
	}
	w.add(float64(min(r.Wait, farthest)), float64(r.MaxWait), float64(r.Reason))
	c := r.Charge
	if c == nil {
		c = &store.Charge{ID: -1, Born: 1}
	}
	w.charge(c)
	free := c.Free
	for i := range w.s.Limits {
		switch l := &w.s.Limits[i]; {
		case l.Kind == store.Leaky:
			free = min(free, c.Place+l.Above(c.N[i], 0))
		case !l.Kind.Calendar():
			free = min(free, c.Place)
		}
	}
	w.dial(free)
}
