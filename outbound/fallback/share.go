package fallback

import (
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// dated reports whether one of the limits counts by the calendar.
func dated(limits []leak.Limit) bool {
	return slices.ContainsFunc(limits, func(l leak.Limit) bool { return l.Kind.Calendar() })
}

// shrink makes a limit this worker's share of it.
func (s *Store) shrink(l *leak.Limit) {
	if s.Unlimited {
		l.Capacity, l.Rate = unlimited, unlimited
		if l.Kind == leak.Moving || l.Kind == leak.Fixed {
			l.Capacity = unlimited * min(1, l.Window.Seconds())
		}
	} else {
		l.Capacity = max(s.Share*l.Capacity, min(1, l.Capacity))
		l.Rate *= s.Share
	}
	switch l.Kind {
	case leak.Leaky:
	case leak.Fixed: // the windows of workers begin at different times, and their sum is to fit into any
		l.Kind = leak.Moving
		fallthrough
	case leak.Moving:
		l.Rate = l.Capacity / l.Window.Seconds()
	default:
		l.Rate = 0
	}
}

// level returns what is in a worker's share of a limit when the outage begins: all of it,
// so that the switch causes no burst. Of a calendar it is the part that was used when the
// store last told, because all of it would come back only at the reset.
func (s *Store) level(key string, l *leak.Limit) float64 {
	if s.Unlimited {
		return 0
	}
	seen := s.seen[key]
	if i := leak.Find(seen.counted, l); l.Kind.Calendar() && i >= 0 && seen.counted[i].Kind == l.Kind {
		if now() >= later(seen.at, time.Duration(seen.levels[i].Top)) { // the next period has begun
			return 0
		}
		return min(1, seen.levels[i].Level/seen.counted[i].Capacity) * l.Capacity
	}
	return l.Capacity
}

// begin gives a key the share i, which is new to it, with so many units in it. Those of a
// window come back evenly, as if calls had taken them so.
func (k *degradedKey) begin(i int, units float64) {
	const parts = 64
	l, state := &k.share[i], &k.stored.State
	o := leak.Other{Limit: *l, Level: leak.Level{Level: units}, Dial: state.Dial()}
	if l.Kind == leak.Leaky {
		o.Dial = 0
	} else {
		g := leak.Log{Name: l.Name, Unit: l.Unit, Longest: l.Window, Total: units}
		if l.Kind.Calendar() {
			p := &k.periods[i]
			g.Calendar = leak.Calendar{Begin: p.Begin, End: p.End, Next: p.Next, This: units}
			if unix() >= time.Duration(p.End)*time.Second+leak.Slack {
				g.Calendar.Begin, g.Calendar.End, g.Calendar.Next = p.End, p.Next, p.After
			}
		} else if units > 0 {
			for i := range time.Duration(parts) {
				at := o.Dial - l.Window + (i+1)*l.Window/parts
				g.Entries = append(g.Entries, leak.Entry{First: at, Last: at, Units: units / parts})
			}
			o.Level.Top, o.Level.Ret = float64(l.Window/parts), float64(l.Window)
		}
		if state.Logs == nil {
			state.Logs = new(leak.Logs)
		}
		*state.Logs = append(*state.Logs, g)
	}
	k.stored.Others = append(k.stored.Others, o)
}
