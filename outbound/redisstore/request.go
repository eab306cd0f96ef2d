package redisstore

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
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

// The modes of a step.
const (
	look = iota
	swap
	hot
)

// key is what is known of a key.
type key struct {
	name  any           // the server's, a string
	row   *row          // as it was last seen, or nil
	first *row          // as a step with the limits of first would make it, or nil
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
	token   string       // that a hot step gives the key
	row     *row         // that the step counts on: as hot expects it, or as swap has read it
	made    *row         // what swap writes
	reply   *store.Reply // of a swap, if it is made
	args    []any
	pause   time.Duration // before it is sent
	unknown atomic.Bool   // the server does not know the script
	moved   atomic.Bool   // another node has the key, so it goes by itself

	words [10]any   // memory for args
	bytes [112]byte // and for a hot step
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

// compose writes a step down. clock is at most what the server's clock shows, or 0. op must not
// change any more.
func compose(k *key, worker any, op *store.Op, seq int64, fence bool, clock, reserve time.Duration) *request {
	clock -= clock % time.Microsecond
	op.Age -= op.Age % time.Microsecond
	q := &request{op: op, seq: seq, fence: fence, row: k.row}
	absent := k.row == nil || k.row.seen == ""
	if absent {
		q.row = k.makes(op)
	}
	q.args = append(q.words[:0], "EVALSHA", digest, 1, k.name, worker, seq, int64(clock/1000))
	switch {
	case !k.cold && clock >= k.apart && hotable(op, q.row):
		q.mode = hot
		var makes any = ""
		if (absent || clock == 0 || clock >= k.until) && store.Equal(op.Limits, q.row.stored.Limits) {
			makes = k.makes(op).fixed
		}
		steps := q.steps()
		q.token = string(steps[:tokenSize])
		q.args = append(q.args, steps, makes)
	case k.row != nil && clock != 0:
		q.mode, q.row = swap, k.row
		s := k.row.stored.Clone()
		reply := op.ApplyAt(&s, clock, clock)
		q.reply = &reply
		keep := spare + max(0, min(q.reply.Expire, farthest/4))
		var fields, v, g any = "", "", ""
		if q.reply.Changed || fence {
			var other bool
			token := binary.LittleEndian.AppendUint64(nil, rand.Uint64())[:tokenSize]
			if q.made, other = newRow(s, string(token), k.row); other {
				v = q.made.fixed
			}
			fields, g = q.made.fields(keep), q.made.g
		}
		q.args = append(q.args, "", k.row.seen, fields, v, g, int64(keep/time.Millisecond), int64(reserve/1000))
	default:
		q.args[6] = 0
	}
	return q
}

// makes returns the row of a key that op makes where there is none.
func (k *key) makes(op *store.Op) *row {
	if f := k.first; f != nil && f.stored.Base == op.Base && store.Equal(f.stored.Limits, op.Limits) {
		return f
	}
	var s store.Stored
	(&store.Op{Limits: op.Limits, Base: op.Base}).ApplyAt(&s, 0, 0)
	k.first = &row{edition: "none", fixed: fixedOf(&s, 0), stored: s}
	return k.first
}

// hotable reports whether the server may carry op out by itself on a key like r.
func hotable(op *store.Op, r *row) bool {
	if op.Action > store.Book || r.edition == "" || !scripted(r.stored.Limits) || !store.Same(op.Limits, r.stored.Limits) {
		return false
	}
	for i := range op.Reports {
		if kind := op.Reports[i].Kind; kind == store.Paused || kind == store.Remaining || kind == store.Delayed {
			return false
		}
	}
	return true
}

// steps writes a hot step down, with a new token.
func (q *request) steps() []byte {
	op, s := q.op, &q.row.stored
	move, reports, backs, runs := int64(0), int64(0), int64(0), int64(0)
	for i := range op.Reports {
		if !idle(&op.Reports[i]) {
			reports++
		}
	}
	if op.Action == store.Book {
		backs = int64(len(op.Unused))
		for i := range op.Costs {
			if i == 0 || op.Costs[i] != op.Costs[i-1] {
				runs++
			}
		}
		if op.Move != nil {
			if move = 2; op.Movable(s.Limits) {
				move = 1
			}
		}
	}
	keep := spare
	if s.Set {
		keep += keepSet
	}
	w := writer{row: q.row, ref: s.State.At - s.State.At%1000}
	w.b = binary.LittleEndian.AppendUint64(q.bytes[:0], rand.Uint64())[:tokenSize]
	w.b = append(w.b, q.row.edition...)
	w.b = append(w.b, 0xdd, 0, 0, 0, 0) // an array of n numbers
	w.ints(flag(q.fence), int64(keep/1000), int64(op.Age/1000), q.row.gid, int64(w.ref/1000), int64(len(s.Limits)), move, reports, backs, runs)
	for i := range s.Limits {
		l := &s.Limits[i]
		w.add(l.Capacity, l.Rate, float64(l.Kind), float64(l.Window))
	}
	for i := range s.Limits {
		if s.Limits[i].Kind.Calendar() {
			var p store.Period
			if i < len(op.Periods) && op.Periods[i].Sound() {
				p = op.Periods[i]
			}
			w.ints(p.Begin, p.End, p.Next)
		}
	}
	if move == 1 {
		w.charge(op.Move)
	}
	for i := range op.Reports {
		if r := &op.Reports[i]; !idle(r) {
			w.report(r)
		}
	}
	for i := int(backs) - 1; i >= 0; i-- {
		w.charge(&op.Unused[i])
	}
	if runs > 0 {
		w.ints(int64(min(op.Wait, farthest)), int64(op.Horizon), int64(max(0, op.After)))
		weight := op.Weight
		if !(weight > 0) {
			weight = 0
		}
		w.add(op.Claim, weight, max(0, op.Headroom))
		if parted(s.Limits) {
			b := &op.Bid
			w.dial(b.At)
			w.add(b.Calls)
			w.ints(flag(b.Done) + 2*flag(b.Left) + 4*flag(b.Last))
		}
		for i := 0; i < len(op.Costs); {
			j := i + 1
			for j < len(op.Costs) && op.Costs[j] == op.Costs[i] {
				j++
			}
			w.ints(int64(j - i))
			w.add(op.Costs[i][:len(s.Limits)]...)
			i = j
		}
	}
	binary.BigEndian.PutUint32(w.b[headSize+1:], w.n)
	return w.b
}

// idle reports whether a report changes nothing.
func idle(r *store.Report) bool {
	return r.Kind == store.Settled && (r.Charge.Settled || r.Used == r.Charge.N)
}

// writer writes a hot step.
type writer struct {
	b   []byte
	n   uint32 // numbers
	row *row
	ref time.Duration // to which times of the dial are relative
}

func (w *writer) add(x ...float64) { w.b, w.n = numbers(w.b, x...), w.n+uint32(len(x)) }
func (w *writer) ints(x ...int64)  { w.b, w.n = integers(w.b, x...), w.n+uint32(len(x)) }

// dial adds a time of the dial.
func (w *writer) dial(d time.Duration) {
	w.ints(int64(min(d, farthest) - (w.ref - w.row.stored.State.Born)))
}

func (w *writer) charge(c *store.Charge) {
	s := &w.row.stored
	id := c.ID
	switch {
	case c.Born != s.State.Born: // which returns nothing, so no settle is needed
		id = foreign
	case c.Settled:
		id = -1
	}
	w.ints(id, c.Prev)
	w.dial(c.Place)
	w.dial(c.Before)
	w.ints(int64(c.Until / 1000))
	for i := range s.Limits {
		y := c.Y[i]
		if c.Number < s.State.Parts[i].Since {
			y = math.Inf(-1)
		}
		w.add(c.N[i], y, c.Up[i])
	}
}

func (w *writer) report(r *store.Report) {
	s := &w.row.stored
	w.ints(int64(r.Kind))
	if r.Kind == store.Settled {
		w.charge(r.Charge)
		w.add(r.Used[:len(s.Limits)]...)
		return
	}
	if w.ints(r.Epoch - w.row.epoch); r.Kind == store.Succeeded {
		return
	}
	w.ints(int64(min(r.Wait, farthest)), int64(r.MaxWait), int64(r.Reason))
	c := r.Charge
	if c == nil {
		c = &store.Charge{Born: -1}
	}
	w.charge(c)
	w.dial(c.FreeBy(s.Limits))
}
