package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// missing reports whether there is no such key.
func (s *Stored) missing() bool {
	return s.State == leak.State{} && !s.Set && len(s.Limits) == 0 && len(s.Others) == 0
}

// sound reports whether Apply can have left s so. own are limits that are known
// to be valid.
func (s *Stored) sound(own []Limit, now time.Duration) bool {
	if len(s.Limits) > maxLimits || len(s.Others) > maxLimits || s.Set && len(s.Limits) == 0 || !(s.Lead >= 0 && s.Lead < 1e300) {
		return false
	}
	if len(s.Limits) > 0 && (len(own) != len(s.Limits) || &own[0] != &s.Limits[0]) && !possible(s.Limits) {
		return false
	}
	dial := s.State.Dial()
	for i := range s.Others {
		o := &s.Others[i]
		if !o.Limit.possible() || !o.Level.Sound(o.Limit.shape()) || dial-o.Dial > tooOld {
			return false
		}
	}
	var buf [maxLimits]leak.Limit
	return s.State.Sound(shape(&buf, s.Limits), now)
}

// tooOld is longer than a limit takes to drain.
const tooOld = maxDrain * 1.01 * 1e9

func possible(limits []Limit) bool {
	for i := range limits {
		if !limits[i].possible() {
			return false
		}
	}
	return true
}

// possible reports whether a bucket can have been used with l.
func (l *Limit) possible() bool {
	return l.Capacity > 0 && l.Capacity <= maxCapacity && l.LeakRate > 0 && l.LeakRate <= maxLeakRate &&
		l.Capacity/l.LeakRate < 1.01*maxDrain && l.Unit >= 0 && l.Unit < Units
}

// renew begins a new life where nobody knows what was: every limit that is known
// is at its brim. So the bucket is neither open nor shut for ever.
func (s *Stored) renew(now time.Duration) {
	old := *s
	*s = Stored{State: leak.New(now), Version: old.Version}
	if len(old.Limits) <= maxLimits && possible(old.Limits) {
		s.Limits, s.Set = old.Limits, old.Set && len(old.Limits) > 0
		s.brim(s.Limits)
	}
	for i := range old.Others[:min(len(old.Others), maxLimits)] {
		if l := old.Others[i].Limit; l.possible() {
			s.Others = append(s.Others, Other{Limit: l, Level: leak.Level{Level: l.Capacity}})
		}
	}
}

// brim fills these limits, which are those of the levels.
func (s *Stored) brim(limits []Limit) {
	for i := range limits {
		s.State.Level[i] = leak.Level{Level: limits[i].Capacity}
	}
}
