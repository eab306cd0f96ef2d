package outbound

import (
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// Stored is what a store keeps of one key. The zero value is a key that does
// not exist. It survives encoding/json.
type Stored struct {
	State leak.State
	// Limits are those that the levels of State are of: those of the bucket
	// that has used the key last.
	Limits []Limit
	// Set is true if they were set by Replace, and win over every bucket's own.
	Set     bool
	Version int64
	// Lead is the largest claim of any worker in this life of the key.
	Lead float64
	// Others are the limits that others have and the last one had not, at most
	// eight.
	Others []Other `json:",omitempty"`
}

// Other is a limit of a [Stored] that is not in use.
type Other struct {
	Limit Limit
	Level leak.Level
	Dial  time.Duration // as of which the level is
}

// use makes own the limits that the levels are of, unless limits were set for
// all, and returns those in force. Buckets that share a key may have been made
// with different limits, as they are while a new release rolls out: each is held
// to its own, and the clock and the levels of limits with the same Unit and Name
// are common to them. differ tells of such a bucket.
func (s *Stored) use(own []Limit) (limits []Limit, differ bool) {
	if s.Set || sameLimits(s.Limits, own) {
		return s.Limits, false
	}
	return own, s.load(own)
}

// load takes the levels of these limits from those in use or from the others.
// One that is in neither starts empty. It reports whether they are not those
// that were in use.
func (s *Stored) load(limits []Limit) (differ bool) {
	old, levels, dial := s.Limits, s.State.Level, s.State.Dial()
	others := slices.Clone(s.Others) // a store may have the old ones yet
	s.State.Level = [maxLimits]leak.Level{}
	for i := range limits {
		l := &limits[i]
		if j := find(old, l); j >= 0 {
			was := old[j].shape()
			differ = differ || was != l.shape()
			s.State.Level[i] = s.State.Load(levels[j], dial, was, l.shape())
			continue
		}
		differ = true
		if j := slices.IndexFunc(others, func(o Other) bool { return o.Limit.same(l) }); j >= 0 {
			s.State.Level[i] = s.State.Load(others[j].Level, others[j].Dial, others[j].Limit.shape(), l.shape())
			others = slices.Delete(others, j, j+1)
		}
	}
	for j := range old {
		if find(limits, &old[j]) < 0 {
			differ = true
			others = append(others, Other{old[j], levels[j], dial})
		}
	}
	if differ {
		var buf [maxLimits]leak.Limit
		s.State.Turn(shape(&buf, limits))
	}
	s.Limits, s.Others = limits, others
	for len(s.Others) > maxLimits {
		s.drop()
	}
	return differ
}

// drop forgets the one of the others that would be empty first. If it comes
// again it is empty, and knows nothing of the calls that had filled it.
func (s *Stored) drop() {
	least, at := 0, time.Duration(math.MaxInt64)
	for i := range s.Others {
		if empty := s.Others[i].empty(); empty < at {
			least, at = i, empty
		}
	}
	s.Others = slices.Delete(s.Others, least, least+1)
	s.Version += 2
}

// empty returns the dial time at which the limit has run empty.
func (o *Other) empty() time.Duration {
	return later(o.Dial, o.Limit.shape().Above(o.Level.Level, 0))
}

// known returns the limit as the levels know it, or nil.
func (s *Stored) known(l *Limit) *Limit {
	if i := find(s.Limits, l); i >= 0 {
		return &s.Limits[i]
	}
	for i := range s.Others {
		if s.Others[i].Limit.same(l) {
			return &s.Others[i].Limit
		}
	}
	return nil
}

// replace sets limits for all, or, if set is false, makes own count again. Where those
// count already nothing happens: a program may set what it has read as often as it likes.
func (s *Stored) replace(limits []Limit, set bool) {
	same := sameLimits(limits, s.Limits)
	if same && set == s.Set {
		return
	}
	var was, is [maxLimits]leak.Limit
	if !same && s.State.Void(shape(&was, s.Limits)) {
		s.Version++ // and once more below: so nothing comes back
	}
	known := make([]Limit, 0, len(limits))
	from := make([]int, len(limits))
	var unknown leak.Units
	for i := range limits {
		from[i] = -1
		if l := s.known(&limits[i]); l != nil {
			from[i] = len(known)
			known = append(known, *l)
		}
		if find(s.Limits, &limits[i]) < 0 {
			unknown[i] = s.booked(limits[i].Unit)
		}
	}
	s.load(known)
	s.State.Change(shape(&was, known), shape(&is, limits), from, &unknown)
	s.Limits, s.Set = limits, set
	s.Version++
}

// booked returns the most that may be booked of a unit and has not gone, as the limits
// in force tell; +Inf: none of them counts it, or its level does not tell.
func (s *Stored) booked(unit int) float64 {
	most := math.Inf(1)
	for i := range s.Limits {
		if s.Limits[i].Unit == unit && s.State.Level[i].Top >= 0 {
			most = min(most, s.State.Level[i].Level)
		}
	}
	return most
}

// expire returns the real time until all of it may be forgotten.
func (s *Stored) expire(limits []leak.Limit) time.Duration {
	t := s.State.Expire(limits)
	for i := range s.Others {
		in, _ := s.State.Due(s.Others[i].empty())
		t = max(t, in)
	}
	return t
}

// sameLimits reports whether both have the same limits in the same order.
func sameLimits(a, b []Limit) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if a[i].shape() != b[i].shape() || !a[i].same(&b[i]) {
			return false
		}
	}
	return true
}
