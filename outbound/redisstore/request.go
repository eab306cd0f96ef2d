package redisstore

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// request is a trip as the script reads it.
type request struct {
	*engine.Trip
	args    []any
	buf     []byte      // of the argument that is being written
	unknown atomic.Bool // the server does not know the script
}

// A record packs the number of places into 13 bits, with an offset of 512, so 7679 is the most.
const _ = uint(7679 - engine.MaxOps)

// header is what every request of a bucket carries of its limits.
type header struct {
	limits      []leak.Limit
	fingerprint float64
	shapes      []byte
	fields      []any
	kinds       []byte // nil: all are leaky
}

// of makes the header that of these limits.
func (h *header) of(limits []leak.Limit) *header {
	if h.fields == nil || !leak.Equal(h.limits, limits) {
		*h = header{limits: limits, fingerprint: fingerprint(limits), fields: fields(limits)}
		h.shapes = appendShapes(nil, limits)
		h.kinds = appendKinds(nil, limits)
	}
	return h
}

// fingerprint is a number by which workers notice that their limits differ.
func fingerprint(limits []leak.Limit) float64 {
	h := fnv.New64a()
	for i := range limits {
		l := &limits[i]
		_, _ = h.Write(strconv.AppendQuote(nil, l.Name))
		for _, x := range [...]float64{float64(l.Unit), l.Capacity, l.Rate} {
			_, _ = h.Write(strconv.AppendFloat([]byte{' '}, x, 'g', -1, 64))
		}
		if l.Kind != leak.Leaky {
			_, _ = fmt.Fprintf(h, " %d %d %q", l.Kind, l.Window, l.Zone)
		}
	}
	return float64(h.Sum64() >> 16) // which loses nothing
}

// fields returns the names under which the server keeps the limits' levels.
func fields(limits []leak.Limit) []any {
	names := make([]any, len(limits))
	for i := range limits {
		names[i] = "l" + strconv.Itoa(int(limits[i].Unit)) + limits[i].Name
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

// appendKinds appends the kind of each limit and its window, or its zone, unless all limits are leaky.
func appendKinds(b []byte, limits []leak.Limit) []byte {
	if leaky(limits) {
		return b
	}
	for i := range limits {
		l, window := &limits[i], 0.
		switch {
		case l.Kind.Calendar():
			window = zone(l.Zone)
		case l.Kind != leak.Leaky:
			window = micros(l.Window)
		}
		b = appendNumbers(b, float64(l.Kind), window)
	}
	return b
}

// zone returns a number by which the script tells time zones apart.
func zone(name string) float64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return float64(h.Sum32())
}

// appendPeriods appends where the time is in each calendar; zeros: the operation does not say.
func appendPeriods(b []byte, op *leak.Op) []byte {
	for i := range op.Limits {
		if !op.Limits[i].Kind.Calendar() {
			continue
		}
		var p leak.Period
		if i < len(op.Periods) {
			p = op.Periods[i]
		}
		b = appendNumbers(b, float64(p.Begin), float64(p.End), float64(p.Next), float64(p.After))
	}
	return b
}

// leaky reports whether all limits are leaky.
func leaky(limits []leak.Limit) bool {
	return !slices.ContainsFunc(limits, func(l leak.Limit) bool { return l.Kind != leak.Leaky })
}

// appendNumbers appends numbers as the script reads them.
func appendNumbers(b []byte, numbers ...float64) []byte {
	for _, f := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}

// command returns the words to send.
func (r *request) command() []any {
	if !r.unknown.Load() {
		return r.args
	}
	args := append([]any(nil), r.args...)
	args[0], args[1] = "EVAL", script
	return args
}

// encode writes a trip down.
func encode(t *engine.Trip, k *key, worker any) *request {
	r := &request{Trip: t}
	op := &t.Op
	h := k.header.of(op.Limits)
	fence := 0.
	if t.Fence {
		fence = 1
	}
	b := make([]byte, 0, 256) // all arguments are slices of it, unless there are many
	heard := k.heard
	if heard < 0 {
		heard = t.Seq // nothing comes back of what was before
	}
	stamp := float64(op.Stamp)
	if k.badStamp > 0 && op.Stamp == 0 {
		stamp = -k.badStamp
	}
	b = appendNumbers(b, float64(t.Seq), float64(heard), fence, stamp, h.fingerprint)
	b = append(b, h.shapes...)
	if h.kinds != nil {
		b = appendPeriods(append(b, h.kinds...), op)
	}
	r.args = make([]any, 0, 8+len(h.fields))
	r.args = append(r.args, "EVALSHA", digest, 1, k.name, worker, b)
	r.args = append(r.args, h.fields...)
	r.buf = b[len(b):]
	if op.Movable() {
		r.step('V')
		r.charge(op.Move)
	} else if op.Move != nil {
		r.step('N')
	}
	for i := range op.Reports {
		r.report(&op.Reports[i])
	}
	for i := len(op.Back) - 1; i >= 0; i-- {
		r.step('U')
		r.charge(&op.Back[i])
	}
	r.action()
	r.end()
	return r
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
func (r *request) units(n *leak.Units) { r.add(n[:len(r.Op.Limits)]...) }

func (r *request) add(numbers ...float64) { r.buf = appendNumbers(r.buf, numbers...) }

func (r *request) action() {
	switch op := &r.Op; op.Action {
	case leak.Book:
		if len(op.Costs) > 0 {
			r.book()
		}
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
		r.add(fingerprint(op.Replacement))
		r.buf = appendKinds(appendShapes(r.buf, op.Replacement), op.Replacement)
		r.end()
		r.args = append(append(r.args, blob), fields(op.Replacement)...)
	}
}

// book adds the places to book, equal costs in a row as one and its count.
func (r *request) book() {
	op := &r.Op
	runs := 1.
	for i := range op.Costs[1:] {
		if op.Costs[i] != op.Costs[i+1] {
			runs++
		}
	}
	r.step('B')
	r.add(micros(op.Wait), micros(op.Horizon), op.Claim, runs)
	for i := 0; i < len(op.Costs); {
		j := i + 1
		for j < len(op.Costs) && op.Costs[j] == op.Costs[i] {
			j++
		}
		r.add(float64(j - i))
		r.units(&op.Costs[i])
		i = j
	}
	if op.After > 0 {
		r.add(micros(op.After))
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
	n := len(r.Op.Limits)
	r.add(float64(c.Version), float64(c.Seq), micros(c.Born), micros(c.Place), micros(c.Before), micros(c.Free), settled, float64(n))
	for i := range n {
		y := c.Y[i]
		if c.Lost&(1<<i) != 0 {
			y = math.Inf(-1) // nothing comes back of it
		}
		r.add(c.N[i], y, c.Up[i])
	}
}

// micros makes microseconds of a time. It keeps the microseconds of a large time and the
// nanoseconds of a small one.
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
