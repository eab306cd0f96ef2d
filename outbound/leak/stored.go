package leak

import (
	"math"
	"slices"
	"time"
)

// Stored is all that a store keeps of one key. The zero value is a key that does not exist.
// AppendBinary and UnmarshalBinary keep it whole, and so does encoding/json. A copy by
// assignment shares the logs of windows and calendars, into which Apply writes; Clone shares
// nothing that Apply changes.
type Stored struct {
	State State
	// Limits are the limits of the levels in State: those that were set for all, or those
	// of the worker that has used the key last.
	Limits []Limit
	// Stamp names the limits that were set for all, by Replace: they win over every
	// worker's own. 0: none were.
	Stamp   int64 `json:",omitzero"`
	Version int64 // as in Reply
	// Lead is the largest claim of any worker in this life of the key.
	Lead float64
	// Others are limits with a level that are not among Limits: other workers have them, or they
	// were in force before. Those beyond eight that are empty go. At most 64 stay.
	Others []Other `json:",omitempty"`
}

// Other is a limit of a [Stored] that the worker who has used the key last does not have.
type Other struct {
	Limit Limit
	Level Level
	Dial  time.Duration // what the dial showed when the level was so
}

// Clone returns a copy that Apply does not change with s. It allocates only if the key has a
// window or a calendar.
func (s *Stored) Clone() Stored {
	c := *s
	c.State = s.State.Clone()
	return c
}

// missing reports whether there is no such key.
func (s *Stored) missing() bool {
	return s.State == State{} && s.Stamp == 0 && len(s.Limits) == 0 && len(s.Others) == 0
}

// use makes own the limits in use. Workers that share a key may have different limits, as
// while a new release rolls out. Each is held to its own; the clock is common to all, and so
// are the levels of limits with the same name and unit. differ reports whether another worker
// with other limits has used the key last.
func (s *Stored) use(own []Limit) (differ bool) {
	return !Equal(s.Limits, own) && s.load(own)
}

// load makes these the limits in use, with their levels from those in use until now or from
// Others. A limit that is in neither starts empty. It reports whether the limits differ from
// those in use until now.
func (s *Stored) load(limits []Limit) (differ bool) {
	old, levels, dial := s.Limits, s.State.Level, s.State.Dial()
	others := slices.Clone(s.Others) // the store may still hold the old ones
	s.State.Logs = s.State.Logs.clone()
	s.State.Level = [Max]Level{}
	for i := range limits {
		l := &limits[i]
		if j := Find(old, l); j >= 0 {
			differ = differ || !old[j].shaped(l)
			s.State.Level[i] = s.State.Load(levels[j], dial, &old[j], l)
			continue
		}
		differ = true
		if j := slices.IndexFunc(others, func(o Other) bool { return o.Limit.same(l) }); j >= 0 {
			s.State.Level[i] = s.State.Load(others[j].Level, others[j].Dial, &others[j].Limit, l)
			others = slices.Delete(others, j, j+1)
		}
	}
	for j := range old {
		if Find(limits, &old[j]) < 0 {
			differ = true
			others = append(others, Other{old[j], levels[j], dial})
		}
	}
	if differ {
		s.State.Turn(limits)
	}
	s.Limits, s.Others = limits, others
	for len(s.Others) > Max && s.drop() {
	}
	for s.State.Logs != nil && len(*s.State.Logs) > maxLogs {
		s.dropLog()
	}
	return differ
}

// maxOthers is the most limits of Others. A key has so many only if as many names hold something
// at the same time.
const maxOthers = 64

// drop forgets the limit of Others that was empty first, and reports whether there was one. If
// it comes again it starts empty: so drop takes one with something in it only beyond maxOthers.
// It then knows nothing of the calls that had filled it: so the version goes on by two, and
// nothing comes back to calls from before.
func (s *Stored) drop() bool {
	least, at, full := -1, time.Duration(math.MaxInt64), true
	for i := range s.Others {
		o := &s.Others[i]
		holds := s.holds(o)
		if holds && (!full || len(s.Others) <= maxOthers) {
			continue
		}
		if empty := o.empty(); least < 0 || empty < at || full && !holds {
			least, at, full = i, empty, holds
		}
	}
	if least < 0 {
		return false
	}
	s.State.Logs.drop(&s.Others[least].Limit)
	s.Others = slices.Delete(s.Others, least, least+1)
	s.Version += 2
	return true
}

// holds reports whether there is something in a limit of Others, for any worker.
func (s *Stored) holds(o *Other) bool {
	now := sub(s.State.Dial(), max(0, s.State.Rem)) // a hold may have let the dial run ahead
	if o.Limit.Kind == Leaky && o.empty() > now {
		return true
	}
	return s.State.Logs != nil && slices.ContainsFunc(*s.State.Logs, func(g Log) bool {
		dial, real := g.kept(nil, now, s.State.At)
		return g.Unit == o.Limit.Unit && g.Name == o.Limit.Name && max(dial, real) > 0
	})
}

// dropLog forgets, as drop does, the log of no limit in use that would be empty first.
func (s *Stored) dropLog() {
	logs, first, least := *s.State.Logs, 0, time.Duration(math.MaxInt64)
	for i := range logs {
		if slices.ContainsFunc(s.Limits, func(l Limit) bool { return logs[i].of(&l) }) {
			continue
		}
		dial, real := logs[i].kept(nil, s.State.Dial(), s.State.At)
		if last := max(dial, real); last < least {
			first, least = i, last
		}
	}
	*s.State.Logs = slices.Delete(logs, first, first+1)
	s.Version += 2
}

// empty returns the dial time at which the limit has run empty.
func (o *Other) empty() time.Duration {
	if o.Limit.Kind != Leaky {
		return add(o.Dial, time.Duration(o.Level.Ret))
	}
	return add(o.Dial, o.Limit.Above(o.Level.Level, 0))
}

// find returns the key's own limit of the name and unit of l, or nil.
func (s *Stored) find(l *Limit) *Limit {
	if i := Find(s.Limits, l); i >= 0 {
		return &s.Limits[i]
	}
	for i := range s.Others {
		if s.Others[i].Limit.same(l) {
			return &s.Others[i].Limit
		}
	}
	return nil
}

// replace sets limits for all, or, if unset, makes each worker's own count again. It reports
// whether that has changed anything. Limits that are in force already are no change: a
// program may set what it reads as often as it reads it.
func (s *Stored) replace(limits []Limit, unset bool, now time.Duration) bool {
	same := Equal(limits, s.Limits)
	if same && unset == (s.Stamp == 0) {
		return false
	}
	if !same && s.State.Void(s.Limits) {
		s.Version++ // and once more below: nothing comes back to calls from before
	}
	was := make([]Limit, 0, len(limits))
	from := make([]int, len(limits))
	var unknown Units
	for i := range limits {
		from[i] = -1
		if l := s.find(&limits[i]); l != nil {
			from[i] = len(was)
			was = append(was, *l)
		}
		if Find(s.Limits, &limits[i]) < 0 {
			unknown[i] = s.booked(limits[i].Unit)
		}
	}
	s.load(was)
	s.State.Change(was, limits, from, &unknown)
	s.Limits = limits
	s.prune()
	for i := range limits {
		if g := s.State.Logs.find(&limits[i]); g != nil && !unset { // no worker has a longer window now
			g.Longest = limits[i].Window
		}
	}
	s.Version++
	if s.Stamp = 0; !unset {
		s.Stamp = stamp(s.Version, now)
	}
	return true
}

// prune drops the logs of limits that the key does not have any more, or that are of another kind
// now.
func (s *Stored) prune() {
	if s.State.Logs == nil {
		return
	}
	*s.State.Logs = slices.DeleteFunc(*s.State.Logs, func(g Log) bool {
		l := s.find(&Limit{Name: g.Name, Unit: g.Unit})
		return l == nil || !g.of(l)
	})
	if len(*s.State.Logs) == 0 {
		s.State.Logs = nil
	}
}

// stamp names limits that are set, by their version and by the time, so that no others get
// the same stamp if the key is lost. It is below 2^53, which any store's numbers can hold.
func stamp(version int64, now time.Duration) int64 {
	const versions, times = 1 << 20, 1 << 32
	ms := (now.Milliseconds()%times + times) % times
	return max(1, ms*versions+version%versions)
}

// booked returns the most that calls which have not gone may have booked of a unit, by the
// levels of the limits in force that count it; +Inf: no level tells.
func (s *Stored) booked(unit int32) float64 {
	most := math.Inf(1)
	for i := range s.Limits {
		if s.Limits[i].Unit == unit && s.State.Level[i].Top >= 0 {
			most = min(most, s.State.Level[i].Level)
		}
	}
	return most
}

// expire returns the real time until a store may forget the key.
func (s *Stored) expire(limits []Limit) time.Duration {
	t := s.State.Expire(limits)
	for i := range s.Others {
		in, _ := s.State.Due(s.Others[i].empty())
		t = max(t, in)
	}
	return t
}

// kept returns in how much bucket time, from the dial time now on, the log forgets its last entry,
// or in how much real time its calendar's units go: other workers than those with these limits may
// have it, or a longer window. at is State.At.
func (g *Log) kept(limits []Limit, now, at time.Duration) (dial, real time.Duration) {
	if g.Kind.Calendar() {
		_, _, real = g.Calendar.level(at)
		return 0, real
	}
	last := len(g.Entries) - 1
	if last < 0 {
		return 0, 0
	}
	for i := range limits {
		// The level of a Fixed one tells when its window is over. That counts no more if its first
		// call is given back then, and for workers with a Moving one it never did.
		if g.of(&limits[i]) && limits[i].Kind == Moving && g.Longest <= limits[i].Window { // its level tells
			return 0, 0
		}
	}
	return sub(add(g.Entries[last].from(), g.Longest), now), 0
}

// sound reports whether Apply can have left s so. own are limits that are known to be valid.
func (s *Stored) sound(own []Limit, now time.Duration) bool {
	if len(s.Limits) > Max || len(s.Others) > maxOthers || s.Stamp != 0 && len(s.Limits) == 0 || !(s.Lead >= 0 && s.Lead < 1e300) {
		return false
	}
	if len(s.Limits) > 0 && (len(own) != len(s.Limits) || &own[0] != &s.Limits[0]) && !allSound(s.Limits) {
		return false
	}
	dial := s.State.Dial()
	for i := range s.Others {
		o := &s.Others[i]
		if !o.Limit.Sound() || !o.Level.Sound(&o.Limit) || sub(dial, o.Dial) > tooOld {
			return false
		}
	}
	return s.State.Sound(s.Limits, now)
}

// tooOld is longer than a limit takes to drain.
const tooOld = maxDrain * 1.01 * 1e9

// renew begins a new life of a key whose past nobody knows. Every limit that is known is full
// to the brim, so that the key is neither open nor shut for ever.
func (s *Stored) renew(now time.Duration) {
	old := *s
	*s = Stored{State: New(now), Version: old.Version}
	if len(old.Limits) <= Max && allSound(old.Limits) {
		if s.Limits = old.Limits; len(old.Limits) > 0 {
			s.Stamp = old.Stamp
		}
		s.brim(s.Limits)
	}
	for i := range old.Others[:min(len(old.Others), maxOthers)] {
		if l := old.Others[i].Limit; l.Sound() {
			o := Other{Limit: l, Level: Level{Level: l.Capacity}}
			if l.Kind != Leaky {
				g := s.State.log(&l)
				g.brim(&l, 0)
				level, next, empty := g.level(&l, &State{At: now, Speed: 1})
				o.Level = Level{Level: level, Top: float64(next), Ret: float64(empty)}
			}
			s.Others = append(s.Others, o)
		}
	}
}

// brim fills these limits, which are those in use, to the brim.
func (s *Stored) brim(limits []Limit) {
	for i := range limits {
		l := &limits[i]
		s.State.Level[i] = Level{Level: l.Capacity}
		if l.Kind != Leaky {
			s.State.log(l).brim(l, s.State.Dial())
		}
	}
}

// Knows reports whether the key has a level for the limit.
func (s *Stored) Knows(l *Limit) bool { return s.find(l) != nil }
