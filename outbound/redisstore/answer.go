package redisstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// answer is what the script has replied.
type answer struct {
	err      error
	repeated bool // from the record of the request: it had been carried out before
	state    leak.State
	version  int64
	claim    float64
	booked   int // calls; -1 - the limits brought to the brim, for a meter
	place    time.Duration
	before   time.Duration
	which    int
	why      int
	wait     time.Duration
	garbage  bool
	differ   bool
	n        int               // limits
	full     [leak.Max]float64 // how full they are at the first place
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

// head is the number of numbers before the limits', and perLimit of theirs.
const head, perLimit = 20, 4

// decode reads a reply.
func decode(value any) (a answer, err error) {
	text, blob, blobbed := "", "", false
	switch v := value.(type) {
	case string:
		text = v
	case []any:
		if len(v) == 2 {
			text, _ = v[0].(string)
			blob, blobbed = v[1].(string)
		}
	}
	var buf [head + perLimit*leak.Max]float64
	f, ok := numbers(text, buf[:0])
	if !ok || len(f) < head || f[19] < 0 || f[19] > leak.Max || len(f) != head+perLimit*int(f[19]) {
		return a, fmt.Errorf("%w: %.80q", errReply, text)
	}
	a.repeated = f[0] == 1
	s := &a.state
	s.At, s.Born, s.Skip, s.Rem, s.Last = nanos(f[1]), nanos(f[2]), nanos(f[3]), nanos(f[4]), nanos(f[5])
	s.Speed, s.Epoch, s.Fails = f[6], int64(f[7]), int(f[8])
	a.version, a.claim, a.booked, a.place, a.before = int64(f[9]), f[10], int(f[11]), nanos(f[12]), nanos(f[13])
	a.which, a.why, a.wait = int(f[14]), int(f[15]), nanos(f[16])
	a.garbage, a.differ, a.n = f[17] != 0, f[18] != 0, int(f[19])
	for i := range a.n {
		l := f[head+perLimit*i:]
		s.Level[i] = leak.Level{Level: l[0], Ret: l[1], Top: l[2]}
		a.full[i] = l[3]
	}
	if blobbed {
		a.set = new([]outbound.Limit)
		if blob != "" {
			if err := json.Unmarshal([]byte(blob), a.set); err != nil {
				return a, fmt.Errorf("redisstore: limits that were set: %w", err)
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

// deliver hands an answer to those who wait for it. The shard's lock is held.
func (sh *shard) deliver(r *request, a *answer, sent, arrived time.Time) {
	ln := r.line
	if a.set != nil {
		ln.set = nil
		if len(*a.set) > 0 {
			ln.set = *a.set
		}
	}
	ln.version = a.version
	base := outbound.Result{
		Limit: -1, State: a.state, Limits: ln.inForce(r.limits), Version: a.version, Claim: a.claim, Differ: a.differ,
	}
	base.When, base.Heard = ln.offset.lay(a.state.At, sent, arrived)
	for i := range a.n {
		base.Full[i] = a.booked < 0 && (-1-a.booked)&(1<<i) != 0
	}
	if r.acts || a.booked != 0 {
		ln.refusal = refusal{}
	}
	refused := base
	if a.why != 0 {
		refused.Refused, refused.Limit, refused.Wait = true, a.which, a.wait
		refused.TooLarge, refused.Invalid = a.why == whyTooLarge, a.why == whyInvalid
	}
	booked := min(max(0, a.booked), len(r.costs))
	charges := a.charges(r, booked, base.Limits)
	for _, w := range r.waits {
		if w != r.main && !w.gate {
			w.answer(&base, nil)
		}
	}
	if w := r.main; w != nil {
		refused.Charges = charges
		w.answer(&refused, nil)
		if w.gone {
			sh.giveBack(ln, r.limits, charges)
		}
	}
	again := sh.share(r, charges, &base, &refused, a.why)
	if a.why == whyRoom && len(r.gates) > booked {
		ln.refusal.remember(r.costs[booked], r.limits, &refused, arrived)
	}
	sh.tellOf(ln, a)
	ln.pending = append(again, ln.pending...)
	sh.arrived(ln)
}

// share hands out what the gates have got: a place each, as far as they go. The
// next one is refused, and with it those who ask for as much; it returns the
// others, which nobody has tried.
func (sh *shard) share(r *request, charges []outbound.Charge, base, refused *outbound.Result, why int) (again []*wait) {
	for i, w := range r.gates {
		switch {
		case i < len(charges):
			one := *base
			one.Charges = charges[i : i+1 : i+1]
			w.answer(&one, nil)
			if w.gone {
				sh.giveBack(r.line, r.limits, one.Charges)
			}
		case i == len(charges) || r.costs[i] == r.costs[len(charges)] || why == whyRoom && covers(&r.costs[i], &r.costs[len(charges)]):
			w.answer(refused, nil)
		default:
			again = append(again, w)
		}
	}
	return again
}

// giveBack returns places whose callers have gone.
func (sh *shard) giveBack(ln *line, limits []outbound.Limit, charges []outbound.Charge) {
	if len(charges) == 0 {
		return
	}
	op := &outbound.Op{Limits: limits, Action: outbound.Book}
	for i := range charges {
		op.Charges = append(op.Charges, &charges[i])
	}
	ln.pending = append(ln.pending, &wait{op: op, line: ln, gone: true})
}

// charges makes what was taken for each of the first costs, as the script has taken it.
func (a *answer) charges(r *request, booked int, limits []outbound.Limit) []outbound.Charge {
	if booked == 0 {
		return nil
	}
	var shape [leak.Max]leak.Limit
	for i := range limits[:min(len(limits), a.n)] {
		shape[i] = leak.Limit{Capacity: limits[i].Capacity, Rate: limits[i].LeakRate}
	}
	// From the first place on, which is the zero of this dial, it is computed again.
	s := leak.State{Speed: 1, Rem: -leak.Memory}
	for i := range a.n {
		s.Level[i].Level = a.full[i]
	}
	charges := make([]outbound.Charge, booked)
	for k := range charges {
		c := &charges[k]
		units := share(&r.costs[k], limits)
		if k == 0 {
			c.N, c.Y = units, a.full
			c.Before = a.before - a.place
		} else {
			s.Fill(shape[:a.n], &units, maxWait, &c.Charge)
		}
		c.Place += a.place
		c.Before += a.place
		c.Born, c.Epoch = a.state.Born, a.state.Epoch
		for i := range a.n {
			c.Y[i] += a.state.Level[i].Ret
		}
		if a.repeated { // what has come back since is not known
			c.Lost = 1<<leak.Max - 1
		}
		c.Seq, c.Version = r.seq, a.version
	}
	return charges
}

const maxWait = time.Duration(math.MaxInt64)

// share returns what a cost takes of each limit.
func share(c *outbound.Cost, limits []outbound.Limit) (n leak.Units) {
	for i := range limits {
		if n[i] = c[limits[i].Unit]; n[i] > 0 {
			n[i] = max(n[i], limits[i].Capacity*1e-9)
		}
	}
	return n
}

// refuse answers all of a request with an error. The shard's lock is held.
func (sh *shard) refuse(r *request, err error) {
	for _, w := range r.waits {
		if w.op != nil {
			sh.lose(r.line, w.op, err)
		}
		w.answer(nil, err)
	}
	sh.arrived(r.line)
}

// arrived lets the next request of a line go.
func (sh *shard) arrived(ln *line) {
	ln.away = false
	if len(ln.pending) == 0 || ln.queued {
		return
	}
	if ln.lane == nil {
		ln.queued = true
		go sh.settle(ln)
		return
	}
	ln.lane.push(ln)
}

// tellOf tells of what an answer says beside what was asked. The shard's lock is held.
func (sh *shard) tellOf(ln *line, a *answer) {
	if a.garbage {
		go sh.store.tell(EventGarbage, ln.bucket, nil)
	}
	if now := time.Now(); a.differ && now.Sub(ln.differ) > time.Minute {
		ln.differ = now
		go sh.store.tell(EventDiffer, ln.bucket, nil)
	}
}
