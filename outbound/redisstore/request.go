package redisstore

import (
	"encoding/json"
	"hash/fnv"
	"math"
	"strconv"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// request is one run of the script: the operations of one key that go together.
type request struct {
	line   *line
	waits  []*wait
	gates  []*wait         // those that ask for one of costs each
	main   *wait           // the one that asks for all of costs, or for something else
	costs  []outbound.Cost // copied: a caller may go before the answer comes
	limits []outbound.Limit
	seq    int64
	args   []any
	known  bool // the server is taken to know the script
	alone  bool // not to be sent in a pipeline
	done   bool // the shard's lock protects it
	acts   bool // it may change what a refusal has said
}

// maxGates is the most operations that go in one request.
const maxGates = 4096

// compose makes a request of what is first in a line, or nil of nothing. The
// shard's lock is held, so that no caller goes while its operation is read.
func (sh *shard) compose(ln *line) *request {
	r := &request{line: ln, known: true}
	taken := 0
	for _, w := range ln.pending {
		if w.op == nil {
			taken++
			continue
		}
		op := w.op
		if len(r.waits) == 0 {
			r.limits = op.Limits
		} else if !same(r.limits, op.Limits) || taken == maxGates {
			break
		}
		if isGate(op) {
			if r.main != nil {
				break
			}
			w.gate = true
			r.gates = append(r.gates, w)
		} else if !plain1(op) {
			if r.main != nil || r.gates != nil {
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
	r.seq = sh.store.seq.Add(1)
	r.encode(sh.store.worker)
	ln.fence = false
	return r
}

// plain1 reports whether an operation only looks, beside its reports.
func plain1(op *outbound.Op) bool {
	return op.Action == outbound.Peek || op.Action == outbound.Book && len(op.Costs) == 0 && op.Move == nil
}

// header is what every request of a bucket begins with.
type header struct {
	limits []outbound.Limit
	args   []any
}

// of returns the limits as arguments: their print, their number, and each.
func (h *header) of(limits []outbound.Limit) []any {
	if h.args == nil || !same(h.limits, limits) {
		h.limits = limits
		h.args = append([]any{print(limits)}, shapes(limits)...)
	}
	return h.args
}

// print is a number by which workers notice that their limits differ.
func print(limits []outbound.Limit) int64 {
	h := fnv.New64a()
	for i := range limits {
		l := &limits[i]
		_, _ = h.Write(strconv.AppendQuote(nil, l.Name))
		for _, x := range [...]float64{float64(l.Unit), l.Capacity, l.LeakRate} {
			_, _ = h.Write(strconv.AppendFloat([]byte{' '}, x, 'g', -1, 64))
		}
	}
	return int64(h.Sum64() >> 16) // a float64 holds it
}

// shapes returns the number of limits, and each as the script reads it.
func shapes(limits []outbound.Limit) []any {
	args := []any{len(limits)}
	for i := range limits {
		l := &limits[i]
		args = append(args, "l"+strconv.Itoa(l.Unit)+l.Name, l.Unit, l.Capacity, l.LeakRate)
	}
	return args
}

// command returns the words to send.
func (r *request) command() []any {
	args := r.args
	if !r.known {
		args = append([]any(nil), args...)
		args[0], args[1] = "EVAL", script
	}
	return args
}

// encode writes the request down.
func (r *request) encode(worker string) {
	ln := r.line
	r.args = make([]any, 0, 40)
	r.add("EVALSHA", digest, 1, ln.name, worker, r.seq)
	if ln.fence {
		r.add(1)
	} else {
		r.add(0)
	}
	r.add(ln.version)
	r.add(ln.header.of(r.limits)...)
	if w := r.main; w != nil && w.op.Move != nil {
		w.op.Align(ln.version, ln.inForce(r.limits))
		if !adds(w.op) {
			r.add("V")
			r.charge(w.op.Move)
		} else {
			r.add("N")
		}
	}
	for _, w := range r.waits {
		w.op.Align(ln.version, ln.inForce(r.limits))
		for i := range w.op.Reports {
			r.report(&w.op.Reports[i])
		}
		for i := len(w.op.Charges) - 1; i >= 0; i-- {
			r.add("U")
			r.charge(w.op.Charges[i])
		}
		r.acts = r.acts || len(w.op.Reports)+len(w.op.Charges) > 0
	}
	switch {
	case r.main != nil:
		r.action(r.main.op)
	case r.gates != nil:
		for _, w := range r.gates {
			r.costs = append(r.costs, w.op.Costs[0])
		}
		r.book(0, 0, 0)
	}
}

func (r *request) add(args ...any) { r.args = append(r.args, args...) }

func (r *request) action(op *outbound.Op) {
	switch op.Action {
	case outbound.Book:
		r.costs = append(r.costs, op.Costs...)
		r.book(op.Wait, op.Horizon, op.Claim)
	case outbound.Meter:
		r.add("M")
		r.cost(&op.Costs[0])
	case outbound.Resume:
		r.add("E")
	case outbound.Replace:
		blob := ""
		if len(op.Replacement) > 0 {
			b, err := json.Marshal(op.Replacement)
			if err == nil {
				blob = string(b)
			}
		}
		r.add("L", blob)
		r.add(shapes(op.Replacement)...)
	}
	r.acts = true
}

// book adds the places to book, equal costs in a row as one and its count.
func (r *request) book(wait, horizon time.Duration, claim float64) {
	if len(r.costs) == 0 {
		return
	}
	r.add("B", micros(wait), micros(horizon), min(claim, 1e300))
	at := len(r.args)
	r.add(0)
	runs := 0
	for i := 0; i < len(r.costs); {
		j := i + 1
		for j < len(r.costs) && r.costs[j] == r.costs[i] {
			j++
		}
		r.add(j - i)
		r.cost(&r.costs[i])
		i = j
		runs++
	}
	r.args[at] = runs
}

func (r *request) cost(c *outbound.Cost) {
	for _, n := range c {
		r.add(n)
	}
}

func (r *request) report(p *outbound.Report) {
	switch p.Kind {
	case outbound.Settled:
		r.add("S")
		r.charge(p.Charge)
		r.cost(&p.Used)
		settled(p.Charge, &p.Used, r.line.inForce(r.limits))
	case outbound.Refused, outbound.Held:
		letter := "R"
		if p.Kind == outbound.Held {
			letter = "H"
		}
		r.add(letter, p.Epoch, micros(p.Wait))
		if p.Charge == nil {
			r.add(0)
			return
		}
		r.add(1)
		r.charge(p.Charge)
	case outbound.Succeeded:
		r.add("G", p.Epoch)
	}
}

// charge adds what a booking has taken.
func (r *request) charge(c *outbound.Charge) {
	version, seq := c.Version, c.Seq
	if c.Lost != 0 {
		seq = 1 << 53 // nothing comes back of it
	}
	yes := 0
	if c.Settled {
		yes = 1
	}
	n := len(r.line.inForce(r.limits))
	r.add(version, seq, micros(c.Born), micros(c.Place), micros(c.Before), yes, n)
	for i := range n {
		r.add(c.N[i], c.Y[i])
	}
}

// settled notes in a charge that it was settled, as the script does. How much came
// back is not told: that none of the rest is there makes a hold only more careful.
func settled(c *outbound.Charge, used *outbound.Cost, limits []outbound.Limit) {
	for i := range limits {
		n := used[limits[i].Unit]
		if n > 0 {
			n = max(n, limits[i].Capacity*1e-9)
		}
		if n != c.N[i] {
			c.N[i], c.Settled = n, true
		}
	}
}

// adds reports whether a settle rides along that adds units: a place that is booked
// anew could then be a later one.
func adds(op *outbound.Op) bool {
	for i := range op.Reports {
		p := &op.Reports[i]
		if p.Kind != outbound.Settled {
			continue
		}
		for j := range op.Limits {
			if p.Used[op.Limits[j].Unit] > p.Charge.N[j] {
				return true
			}
		}
	}
	return false
}

// inForce returns the limits that count, as far as is known.
func (ln *line) inForce(own []outbound.Limit) []outbound.Limit {
	if ln.set != nil {
		return ln.set
	}
	return own
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
