package outbound

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Forecast tells when calls go that have no places yet, one after the other, if nobody else comes: it
// carries the law out on a copy of what a [Clock] tells. Without windows and calendars, or where the
// bucket is in this process, it is exact. Else the clock tells of those only when the first and the last
// of their units come back: it is a lower bound then, and counts only the calls ahead that
// surely go in time. Get one from [Clock.Forecast].
type Forecast struct {
	core  *core
	whole *limitSet // in force, of which the runs may have a share
	soon  *run
	late  *run // with all units coming back as late as may be; nil: soon is exact
}

// round leaves out what is more exact than a forecast.
func round(d time.Duration) time.Duration { return d - d%exact }

// run is the law at work on a copy.
type run struct {
	limits  *limitSet
	stored  leak.Stored
	at      time.Time     // when the copy was true
	unix    time.Duration // the Unix time then
	born    time.Duration // the bucket's time then
	now     time.Duration // how long after that the law is asked
	returns bool          // the queue asks again when a Fixed limit has come back, as Booking.Returns says
	op      leak.Op
	costs   [1]leak.Units
	into    [1]leak.Charge
}

// farthestForecast is how long a call without a deadline waits from when its turn comes, as in a queue.
const farthestForecast = 24 * time.Hour

// mostEntries is how many of the caller's places are told apart. A log has not many more.
const mostEntries = 64

// asks is how long before the last place is due the law is asked for the next one, as a queue does.
const asks = 5 * time.Millisecond

// exact is how exact a forecast is: places round up, each from the one before.
const exact = time.Microsecond

// Forecast returns a forecast of the calls that go after those that have places. The caller's tickets
// are among those, as far as their calls have not gone. The clock must be [Clock.Known].
func (k *Clock) Forecast(tickets []Ticket) *Forecast {
	f := &Forecast{core: k.core, whole: k.whole, soon: k.run(k.state.Clone())}
	if k.state.Logs != nil || !slices.ContainsFunc(k.limits.law, func(l leak.Limit) bool { return l.Kind != leak.Leaky }) {
		return f
	}
	late := k.state
	late.Logs = k.logs(tickets, true)
	f.soon.stored.State.Logs, f.late = k.logs(tickets, false), k.run(late)
	return f
}

func (k *Clock) run(s leak.State) *run {
	return &run{limits: k.limits, returns: s.Logs != nil && !k.shared, stored: leak.Stored{State: s, Limits: k.limits.law}, at: k.at, unix: k.unix, born: s.At, now: s.Real(max(0, s.Last-asks))}
}

// logs returns logs of which the levels are those that the clock tells. All that it does not know comes
// back with the first unit, or late with the last.
func (k *Clock) logs(tickets []Ticket, late bool) *leak.Logs {
	s, periods := &k.state, k.limits.calendar.at(k.unix)
	var all leak.Logs
	for i := range k.limits.law {
		l, level := &k.limits.law[i], &s.Level[i]
		if l.Kind == leak.Leaky {
			continue
		}
		g := leak.Log{Name: l.Name, Unit: l.Unit, Kind: l.Kind, Zone: l.Zone, Longest: l.Window, Skip: math.MinInt64, Beside: s.Dial() + s.Last}
		switch {
		case l.Kind.Calendar():
			g.Calendar = leak.Calendar{Begin: periods[i].Begin, End: periods[i].End, Next: periods[i].Next, This: level.Level, Off: k.unix - s.At}
			if late {
				g.Calendar.Coming = l.Capacity
			}
		case level.Level <= 0:
		default:
			var own float64
			for _, t := range tickets {
				c, n := &t.call.charge[0], len(g.Entries)
				switch {
				case t.call.version != k.version || c.N[i] <= 0:
					continue
				case n < mostEntries:
					g.Entries = append(g.Entries, leak.Entry{First: c.Place, Last: c.Place, Units: c.N[i]})
				default: // it comes back with the one before, or that with it
					e := &g.Entries[n-1]
					if e.Units += c.N[i]; late {
						e.Last = c.Place
					}
				}
				own += c.N[i]
			}
			from := s.Dial() + time.Duration(level.Top) - l.Window
			if late {
				from = k.before(tickets)
				if l.Kind != leak.Fixed { // whose level tells when its window is over, on which no place counts
					from = min(from, s.Dial()+time.Duration(level.Ret)-l.Window)
				}
			} else if l.Kind == leak.Fixed && s.Speed < 1 { // a window ends with its first call, and an entry with its last
				from -= l.Window / 64
			}
			if unknown := level.Level - own; unknown > l.Capacity*0.5e-9 { // they come back together, and are no calls to give back
				g.Entries = append(g.Entries, leak.Entry{First: from + 1, Last: from, Units: unknown})
			}
			slices.SortStableFunc(g.Entries, func(a, b leak.Entry) int { return cmp.Compare(a.Last, b.Last) })
		}
		all = append(all, g)
	}
	return &all
}

// before returns the latest place of a call that is not among the tickets.
func (k *Clock) before(tickets []Ticket) time.Duration {
	dial := k.state.Dial()
	last := dial + k.state.Last
	for i := len(tickets) - 1; i >= 0; i-- {
		c := &tickets[i].call.charge[0]
		if c.Place != last || tickets[i].call.version != k.version {
			break // others have booked after it
		}
		last = c.Before
	}
	return max(dial, last)
}

// Next returns when a call can go that comes after all that were counted, and counts it if that is not after by;
// zero: a day after its turn comes, as in a queue. Of a call that is too late the time is a lower bound. A cost
// that can never go is a [*CostError].
func (f *Forecast) Next(c *Cost, by time.Time) (at time.Time, ok bool, err error) {
	if err := f.core.check(f.whole, c); err != nil {
		return at, false, err
	}
	if f.soon.limits.lacks(c) { // it waits for the store, or fails with its error
		return f.soon.at, true, nil
	}
	if f.late == nil {
		at, ok = f.soon.next(c, by)
		return at, ok, nil
	}
	soon := f.soon.clone()
	if at, ok = soon.next(c, by); !ok {
		return at, false, nil
	}
	late := f.late.clone()
	if _, sure := late.next(c, by); sure {
		f.soon, f.late = soon, late
	} else { // it may go, and then before the others
		f.late.next(c, time.Time{})
	}
	return at, true, nil
}

// When is Next for a call that is not to be counted.
func (f *Forecast) When(c *Cost) (time.Time, error) {
	g := &Forecast{core: f.core, whole: f.whole, soon: f.soon.clone()}
	at, _, err := g.Next(c, time.Time{})
	return at, err
}

func (r *run) clone() *run {
	c := *r
	c.stored = r.stored.Clone()
	return &c
}

// next books the place of a call, if that is not after by.
func (r *run) next(c *Cost, by time.Time) (time.Time, bool) {
	most := later(r.now, farthestForecast)
	if !by.IsZero() {
		most = by.Sub(r.at)
	}
	r.costs[0] = r.limits.units(c)
	for {
		unix := r.unix + r.now // a wait below 0 books nothing
		r.op = leak.Op{Limits: r.limits.law, Periods: r.limits.calendar.at(unix), Action: leak.Book, Costs: r.costs[:], Wait: max(-1, most-r.now), Returns: r.returns, Into: r.into[:0]}
		reply := r.op.ApplyAt(&r.stored, r.born+r.now, unix)
		if len(reply.Charges) > 0 {
			in, _ := reply.State.Due(reply.Charges[0].Place)
			at := r.at.Add(round(r.now + in))
			r.now += reply.State.Real(max(0, reply.State.Last-asks))
			return at, true
		}
		at := later(r.now, reply.Wait)
		if !reply.Refused || reply.Wait <= 0 || at > most {
			return r.at.Add(round(at)), false
		}
		r.now = at // it is booked no further ahead before
	}
}
