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

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// answer is what the script has replied.
type answer struct {
	note
	state   leak.State
	stamp   int64 // of the limits that are set; 0: none are
	version int64
	claim   float64
	booked  int // calls; -1 - the limits brought to the brim, for a meter
	place   time.Duration
	before  time.Duration
	which   int
	why     int
	wait    time.Duration
	garbage bool
	differ  bool
	n       int               // limits
	full    [leak.Max]float64 // how full they are at the first place
	up      [leak.Max]float64 // what the joint rule raised them by for that place
	y       [leak.Max]float64 // how full with all that had come back until then, if repeated
	runs    []float64         // of the booked calls, if a limit is not leaky and there are several calls
	unix    time.Duration     // the server's Unix time, if a limit is not leaky
	// untimely says that the periods of the request are not those of the server's time, and
	// nothing was done.
	untimely bool
	stale    bool         // other limits are in force than the request counts by, and nothing was done
	set      []leak.Limit // these; none: each worker's own
}

// note is what an answer says beside the reply.
type note struct {
	repeated bool  // from the record of the request: it had been carried out before
	recorded int64 // the last request on record; -1: none
	lost     uint8 // of what this worker has had an answer to
}

// read makes an attempt's reply of what the script has answered.
func (n *note) read(a *engine.Attempt, value any) error {
	got, err := decode(value)
	if err != nil {
		return err
	}
	if !got.tellsAll(a.Op.Limits) {
		return fmt.Errorf("%w: %d calls, and %v of them", errReply, got.booked, got.runs)
	}
	*n = got.note
	a.Reply = got.reply(a)
	return nil
}

// reply returns the answer as callers know it.
func (a *answer) reply(to *engine.Attempt) leak.Reply {
	r := leak.Reply{Limit: -1, Stamp: a.stamp, Version: a.version}
	if a.stale {
		r.Stale, r.Limits = true, a.set
		return r
	}
	r.Unix = a.unix
	if a.untimely {
		r.Stale, r.Untimely = true, true
		return r
	}
	r.State, r.Claim, r.Differ, r.Garbage = a.state, a.claim, a.differ, a.garbage
	for i := range a.n {
		r.Full[i] = a.booked < 0 && (-1-a.booked)&(1<<i) != 0
	}
	if a.why != 0 {
		r.Refused, r.Limit, r.Wait = true, a.which, a.wait
	}
	limits := to.Op.Limits
	if to.Op.Action == leak.Replace && !a.repeated {
		limits = to.Op.Replacement
	}
	for i := range min(a.n, len(limits)) {
		if limits[i].Kind != leak.Leaky {
			l := &r.State.Level[i]
			l.Top, l.Ret = float64(nanos(l.Top)), float64(nanos(l.Ret))
		}
	}
	r.Charges = a.charges(to)
	return r
}

// errReply is the error of a reply that the script does not make.
var errReply = errors.New("redisstore: not a reply of this package's script")

// errAhead is the error of a key whose record of this worker has a number that the worker has
// not used yet.
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

// A reply has head numbers and perLimit for each limit. Then it has unusual ones, but only
// if any of them differs from its usual value, and for a repeated booking one for each limit.
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
		if len(v) != 2 {
			break
		}
		first, _ := v[0].(string)
		switch second, ok := v[1].(string); {
		case !ok:
		case first == "stale":
			return decodeStale(second)
		case first == "untimely":
			return decodeUntimely(second)
		default:
			if a.unix, a.runs, ok = decodeTail(second); ok {
				text = first
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
	a.splitStamp()
	return a, nil
}

// splitStamp takes the version from the stamp: it is the last bits, and below 0 it is of limits
// that are set no more.
func (a *answer) splitStamp() {
	if a.version = a.stamp % versions; a.stamp < 0 {
		a.version, a.stamp = -a.version, 0
	}
}

// decodeTail reads what the script says of calendars and of several calls: its Unix time, and runs
// of calls.
func decodeTail(s string) (unix time.Duration, runs []float64, ok bool) {
	f, ok := numbers(s, make([]float64, 0, len(s)/8))
	if !ok || len(f) == 0 {
		return 0, nil, false
	}
	return nanos(f[0]), f[1:], true
}

// decodeUntimely reads the server's Unix time, and the stamp.
func decodeUntimely(s string) (a answer, err error) {
	var buf [2]float64
	f, ok := numbers(s, buf[:0])
	if !ok || len(f) != len(buf) {
		return a, fmt.Errorf("%w: %.80q", errReply, s)
	}
	a.untimely, a.unix, a.stamp = true, nanos(f[0]), int64(f[1])
	a.splitStamp()
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
