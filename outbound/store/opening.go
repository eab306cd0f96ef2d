package store

import (
	"math"
	"time"
)

// Opening is the moment when a window or a calendar frees units for processes whose calls wait.
// Openings within 1/16 of a window count as one. A process bids with its [Op.Weight] when it
// reserves its first call, or is refused until then. Beyond its share it is refused again. After
// 100 ms, or 1/200 of a window, any process may book what is left. A process that has ended costs
// that. Up to eight calls are shared by [Op.Claim]. The zero value is none.
type Opening struct {
	At    time.Duration // on the key's clock
	To    time.Duration // the last of them, shortly after At
	Bids  float64       // the weights of these processes
	Calls float64       // the calls that they have booked of it
	Done  float64       // the weights of those that have booked their shares
	Took  float64       // the calls that these have booked
}

// Bid is the part of a process in an [Opening]. The reply to a booking has that of the next.
type Bid struct {
	At    time.Duration // of the opening
	Calls float64       // that the process has booked
	Done  bool          // it has booked its share
	Left  bool          // its calls have ended, and its weight has left Bids
	// Share is how many more calls the process can book, as far as other processes are known. If it is
	// used up, Again is how long until the process asks again, else 0.
	Share float64
	Again time.Duration
	// Last is true, in an Op, if no more calls wait than those of Costs.
	Last bool
}

const (
	// shareTime is the longest that shares are kept for their processes, from the opening on.
	shareTime = 100 * time.Millisecond
	// rest is how long before an opening the processes have booked their shares. They share then what
	// those without further calls have left.
	rest = 2 * time.Millisecond
	// few calls are shared by the claims, as what leaks.
	few = 8
)

// opens returns how long the shares of an opening are kept, or 0 if all limits are leaky.
func opens(limits []Limit) (d time.Duration) {
	for i := range limits {
		if l := limits[i].law().shares(&limits[i]); l > 0 && (d == 0 || l < d) {
			d = l
		}
	}
	return d
}

// admits reports whether a process may book a call of n for w. s.State.Wait has returned w, which
// and booked. If the call is only beyond the share, admits returns the time of the dial at which to
// ask again. far says that only its claim lets the process book so far ahead.
func (s *Stored) admits(b *Bid, n *Units, w time.Duration, which int, booked bool, weight float64, far, last bool) (ok bool, again time.Duration) {
	o, dial, length := &s.Opening, s.State.Dial(), opens(s.Limits)
	if length == 0 {
		return booked, 0
	}
	at, waits := dial+w, w > 0 && which >= 0 && s.Limits[which].Parted()
	later := waits && at >= o.To+length
	if o.Bids == 0 || at < o.At-rest || later && at >= o.At+s.Limits[which].Window/16 || !later && dial >= o.To+length {
		if *o = (Opening{}); !waits {
			return booked, 0
		}
		o.At, o.To, b.Left = at, at, true
		b.Calls, b.Done = 0, false
	} else if later {
		o.To = at
	}
	if (b.At - o.At).Abs() > time.Microsecond { // a slow clock rounds
		*b = Bid{At: o.At, Left: true}
	}
	if b.Left {
		b.Left = false
		o.count(weight, b.Calls, b.Done)
	}
	o.Bids = max(o.Bids, weight) // or the process bid for another opening of the same time
	all := s.opened(n, w, booked)
	b.Share = all*weight/o.Bids - b.Calls
	ok = b.Calls == 0 || o.Bids-weight <= 1e-9*weight
	if b.Done {
		ok = ok || b.Share >= 1-1e-9 || b.Share > 1e-9 && dial >= o.To-rest
	} else {
		// As many as round up all shares so far, which leaves no remainders to the last process.
		ok = ok || b.Share > 1e-9 && math.Floor(all*(o.Done+weight)/o.Bids+1e-9)-o.Took-b.Calls >= 1
	}
	switch {
	case !booked || far && all > few:
		return false, 0
	case ok:
		b.Calls, b.Share, o.Calls = b.Calls+1, b.Share-1, o.Calls+1
		if b.Done {
			o.Took++
		}
		if last { // the other processes share what it leaves
			b.Left, b.Share = true, 0
			o.count(-weight, -b.Calls, b.Done)
		}
		return true, 0
	case !b.Done:
		b.Done = true
		o.Done, o.Took = o.Done+weight, o.Took+b.Calls
	}
	switch {
	case dial < o.To-rest:
		return false, o.To - rest
	case dial >= o.To && dial < o.To+length/2:
		return false, o.To + length/2
	}
	return false, o.To + length
}

// count adds a weight and the calls of a process, or takes them out.
func (o *Opening) count(weight, calls float64, done bool) {
	o.Bids, o.Calls = o.Bids+weight, max(0, o.Calls+calls)
	if done {
		o.Done, o.Took = max(0, o.Done+weight), max(0, o.Took+calls)
	}
	if o.Bids <= 1e-9*math.Abs(weight) {
		*o = Opening{}
	}
}

// opened returns how many calls of n the processes share: those that have capacity at w, and those
// that they have booked.
func (s *Stored) opened(n *Units, w time.Duration, booked bool) float64 {
	free := math.Inf(1)
	for i := range s.Limits {
		l := &s.Limits[i]
		if n[i] <= 0 || !l.Parted() {
			continue
		}
		used := 0.
		switch {
		case !booked: // another period or window begins then
		case l.Kind != Window:
			used = s.State.Level[i]
		default:
			for _, t := range s.State.Parts[i].Slots {
				if t.End > s.State.Dial()+w {
					used += t.Units
				}
			}
		}
		free = min(free, max(0, l.Capacity-used)/n[i])
	}
	return min(free, 1e15) + s.Opening.Calls
}

// sound reports whether Apply can have left o so.
func (o *Opening) sound() bool {
	ok := possible(o.At) && possible(o.To)
	for _, x := range [...]float64{o.Bids, o.Calls, o.Done, o.Took} {
		ok = ok && x >= 0 && x < 1e300
	}
	return ok
}
