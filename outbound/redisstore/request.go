package redisstore

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"math"
	"strconv"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// request is one run of the script: the operations of one key that go together.
type request struct {
	line   *line
	waits  []*wait
	gates  []*wait      // those of them that ask for one of costs each
	main   *wait        // the one that asks for all of costs, or for something else
	costs  []leak.Units // copied: a caller may go before the answer comes
	limits []leak.Limit
	stamp  int64 // of the limits
	fenced bool
	seq    int64
	args   []any
	buf    []byte // of the argument that is being written
	known  bool   // the server is taken to know the script
	alone  bool   // not to be sent in a pipeline
	done   bool   // the shard's lock protects it
	acts   bool   // it may change what a refusal has said
}

// maxGates is the most operations that go in one request, and the most places that
// are booked with it: a record tells of no more than 7679.
const maxGates = 4096

// compose makes a request of what is first in a line, or nil of nothing. The
// shard's lock is held, so that no caller goes while its operation is read.
func (sh *shard) compose(ln *line) *request {
	r := &request{line: ln, known: true, waits: make([]*wait, 0, min(len(ln.pending), maxGates))}
	taken, gates := 0, 0
	for _, w := range ln.pending {
		if w.op == nil {
			taken++
			continue
		}
		op := w.op
		if len(r.waits) == 0 {
			r.limits, r.stamp = op.Limits, op.Stamp
		} else if !same(r.limits, op.Limits) || r.stamp != op.Stamp || taken == maxGates {
			break
		}
		if isGate(op) {
			if r.main != nil {
				break
			}
			w.gate = true
			gates++
		} else if !onlyLooks(op) {
			if r.main != nil || gates > 0 {
				break
			}
			r.main = w
		}
		taken++
		r.waits = append(r.waits, w)
	}
	rest := copy(ln.pending, ln.pending[taken:])
	clear(ln.pending[rest:])
	ln.pending = ln.pending[:rest]
	if len(r.waits) == 0 {
		return nil
	}
	if r.gates = r.waits; gates < len(r.waits) {
		r.gates = make([]*wait, 0, gates)
		for _, w := range r.waits {
			if w.gate {
				r.gates = append(r.gates, w)
			}
		}
	}
	r.seq = sh.store.seq.Add(1)
	if ln.lane.server.ill.Load() {
		ln.fence = true // so that it writes: a server that only reads is not back
	}
	r.fenced = ln.fence
	r.encode(sh.store.worker.Load())
	ln.fence = false
	return r
}

// onlyLooks reports whether an operation only looks, beside its reports.
func onlyLooks(op *leak.Op) bool {
	return op.Action == leak.Peek || op.Action == leak.Book && len(op.Costs) == 0 && op.Move == nil
}

// header is what every request of a bucket carries of its limits.
type header struct {
	limits []leak.Limit
	print  float64
	shapes []byte
	fields []any
}

// of makes the header that of these limits.
func (h *header) of(limits []leak.Limit) *header {
	if h.fields == nil || !same(h.limits, limits) {
		*h = header{limits: limits, print: print(limits), fields: fields(limits)}
		h.shapes = appendShapes(nil, limits)
	}
	return h
}

// print is a number by which workers notice that their limits differ.
func print(limits []leak.Limit) float64 {
	h := fnv.New64a()
	for i := range limits {
		l := &limits[i]
		_, _ = h.Write(strconv.AppendQuote(nil, l.Name))
		for _, x := range [...]float64{float64(l.Unit), l.Capacity, l.Rate} {
			_, _ = h.Write(strconv.AppendFloat([]byte{' '}, x, 'g', -1, 64))
		}
	}
	return float64(h.Sum64() >> 16) // which loses nothing
}

// fields returns the names under which the server keeps the limits' levels.
func fields(limits []leak.Limit) []any {
	names := make([]any, len(limits))
	for i := range limits {
		names[i] = "l" + strconv.Itoa(limits[i].Unit) + limits[i].Name
	}
	return names
}

// appendShapes appends the number of limits, and what the script needs of each.
func appendShapes(b []byte, limits []leak.Limit) []byte {
	b = appendNumbers(b, float64(len(limits)))
	for i := range limits {
		l := &limits[i]
		b = appendNumbers(b, float64(l.Unit), l.Capacity, l.Rate)
	}
	return b
}

// appendNumbers appends numbers as the script reads them.
func appendNumbers(b []byte, numbers ...float64) []byte {
	for _, f := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}

// command returns the words to send to a server that knows the script, or does not.
func (r *request) command(known bool) []any {
	args := r.args
	if !known {
		args = append([]any(nil), args...)
		args[0], args[1] = "EVAL", script
	}
	return args
}

// encode writes the request down.
func (r *request) encode(worker any) {
	ln := r.line
	h := ln.header.of(r.limits)
	fence := 0.
	if ln.fence {
		fence = 1
	}
	b := make([]byte, 0, 256) // all arguments are slices of it, unless there are many
	heard := ln.heard
	if heard < 0 {
		heard = r.seq // nothing comes back of what was before
	}
	known := float64(r.stamp)
	if ln.badStamp > 0 && r.stamp == 0 {
		known = -ln.badStamp
	}
	b = appendNumbers(b, float64(r.seq), float64(heard), fence, known, h.print)
	b = append(b, h.shapes...)
	r.args = make([]any, 0, 8+len(h.fields))
	r.args = append(r.args, "EVALSHA", digest, 1, ln.name, worker, b)
	r.args = append(r.args, h.fields...)
	r.buf = b[len(b):]
	if w := r.main; w != nil && w.op.Move != nil {
		if !w.op.Movable() {
			r.step('N')
		} else {
			r.step('V')
			r.charge(w.op.Move)
		}
	}
	for _, w := range r.waits {
		if w.told { // it was in a request before that did not come to its booking
			w.reported = true
			continue
		}
		w.told = true
		for i := range w.op.Reports {
			r.report(&w.op.Reports[i])
		}
		for i := len(w.op.Back) - 1; i >= 0; i-- {
			r.step('U')
			r.charge(&w.op.Back[i])
		}
		r.acts = r.acts || len(w.op.Reports)+len(w.op.Back) > 0
	}
	switch {
	case r.main != nil:
		r.action(r.main.op)
	case len(r.gates) > 0:
		r.costs = make([]leak.Units, 0, len(r.gates))
		for _, w := range r.gates {
			r.costs = append(r.costs, w.op.Costs[0])
		}
		r.book(0, 0, 0, 0)
	}
	r.end()
}

// step begins a step of the script.
func (r *request) step(letter byte) {
	r.end()
	r.buf = append(r.buf, letter)
}

// end ends the step that is being written.
func (r *request) end() {
	if len(r.buf) > 0 {
		r.args = append(r.args, r.buf)
		r.buf = r.buf[len(r.buf):]
	}
}

// units adds one number for each limit.
func (r *request) units(n *leak.Units) { r.add(n[:len(r.limits)]...) }

func (r *request) add(numbers ...float64) { r.buf = appendNumbers(r.buf, numbers...) }

func (r *request) action(op *leak.Op) {
	r.acts = true
	switch op.Action {
	case leak.Book:
		r.costs = append(r.costs, op.Costs[:min(len(op.Costs), maxGates)]...)
		r.book(op.Wait, op.Horizon, op.After, op.Claim)
	case leak.Meter:
		r.step('M')
		r.units(&op.Costs[0])
	case leak.Resume:
		r.step('E')
	case leak.Replace:
		var blob []byte
		if !op.Unset {
			blob, _ = json.Marshal(op.Replacement) // checked: it has no NaN
		}
		r.step('L')
		r.add(print(op.Replacement))
		r.buf = appendShapes(r.buf, op.Replacement)
		r.end()
		r.args = append(append(r.args, blob), fields(op.Replacement)...)
	}
}

// book adds the places to book, equal costs in a row as one and its count.
func (r *request) book(wait, horizon, after time.Duration, claim float64) {
	if len(r.costs) == 0 {
		return
	}
	runs := 1.
	for i := range r.costs[1:] {
		if r.costs[i] != r.costs[i+1] {
			runs++
		}
	}
	r.step('B')
	r.add(micros(wait), micros(horizon), claim, runs)
	for i := 0; i < len(r.costs); {
		j := i + 1
		for j < len(r.costs) && r.costs[j] == r.costs[i] {
			j++
		}
		r.add(float64(j - i))
		r.units(&r.costs[i])
		i = j
	}
	if after > 0 {
		r.add(micros(after))
	}
}

func (r *request) report(p *leak.Report) {
	switch p.Kind {
	case leak.Settled:
		r.step('S')
		r.charge(p.Charge)
		r.units(&p.Used)
	case leak.Refused, leak.Held, leak.Left:
		switch p.Kind {
		case leak.Refused:
			r.step('R')
		case leak.Held:
			r.step('H')
		default:
			r.step('A')
		}
		r.add(float64(p.Epoch), micros(p.Wait), micros(p.MaxWait), float64(p.Reason))
		if p.Charge == nil {
			r.add(0)
		} else {
			r.add(1)
			r.charge(p.Charge)
		}
		if p.Kind == leak.Left {
			r.units(&p.Used)
		}
	case leak.Succeeded:
		r.step('G')
		r.add(float64(p.Epoch))
	}
}

// charge adds what a booking has taken.
func (r *request) charge(c *leak.Charge) {
	settled := 0.
	if c.Settled {
		settled = 1
	}
	n := len(r.limits)
	r.add(float64(c.Version), float64(c.Seq), micros(c.Born), micros(c.Place), micros(c.Before), micros(c.Free), settled, float64(n))
	for i := range n {
		y := c.Y[i]
		if c.Lost&(1<<i) != 0 {
			y = math.Inf(-1) // nothing comes back of it
		}
		r.add(c.N[i], y, c.Up[i])
	}
}

// micros makes microseconds of a time, and loses nothing: neither of a large time's
// microseconds nor of a small one's nanoseconds.
func micros(d time.Duration) float64 {
	return float64(d/1000) + float64(d%1000)/1000
}

func nanos(us float64) time.Duration {
	if us > 9.2e15 {
		return math.MaxInt64
	}
	whole := math.Floor(us)
	return time.Duration(whole)*1000 + time.Duration(math.Round((us-whole)*1000))
}
