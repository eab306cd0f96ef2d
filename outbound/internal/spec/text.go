package spec

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// String returns the limit in the words that Parse reads.
func (l Limit) String() string {
	name := l.Name
	if strconv.Quote(name) != `"`+name+`"` || strings.TrimSpace(name) != name || strings.Contains(name, "(unit ") {
		name = strconv.Quote(name)
	}
	if l.Unit != 0 {
		name = strings.TrimLeft(fmt.Sprintf("%s (unit %d)", name, l.Unit), " ")
	}
	if name != "" {
		name += ": "
	}
	if l.Version != 0 {
		return fmt.Sprintf("%s%s, version %d", name, l.says(), l.Version)
	}
	return name + l.says()
}

// says is String without the name, the unit and the version.
func (l Limit) says() string {
	n := digits(l.Capacity)
	switch {
	case l.InFlight && l.N != 0:
		return digits(l.N) + " in flight, adaptive"
	case l.InFlight && l.window != 0:
		return n + " in flight, " + Short(l.window) + " lease"
	case l.InFlight:
		return n + " in flight"
	case l.Kind != store.Leaky:
		return n + l.shape()
	case l.window == 0:
		return n + " burst, " + leakRate(l.LeakRate)
	case l.Capacity == 1:
		return digits(l.N) + l.shape()
	}
	return digits(l.N) + l.shape() + ", " + n + " burst"
}

// Label names the limit in words: its name, or what it says, such as "10 per 1s".
func (l Limit) Label() string {
	switch {
	case l.Name != "":
		return l.Name
	case l.Kind == store.Leaky && l.window != 0 && !l.InFlight:
		return digits(l.N) + l.shape()
	}
	return l.says()
}

// shape is the label without its number. It identifies a limit without a name.
func (l Limit) shape() string {
	switch {
	case l.Kind.Calendar():
		return l.period()
	case l.Kind == store.Window:
		return " in any " + Short(l.window)
	case l.Kind == store.Fixed:
		return " in " + Short(l.window) + " from the first"
	case l.window == 0 || l.InFlight:
		return ""
	}
	return " per " + Short(l.window)
}

// period names the period of a calendar: " per day Europe/Berlin".
func (l Limit) period() string {
	switch l.Kind {
	case store.Hourly:
		return " per hour UTC"
	case store.Daily:
		return " per day " + l.zone
	case store.Weekly:
		return " per week " + l.zone
	}
	return " per month " + l.zone
}

// timeUnit is a unit of time that has names in the text of a limit.
type timeUnit struct {
	short, long string
	time.Duration
}

var timeUnits = [...]timeUnit{{"/s", "second", time.Second}, {"/m", "minute", time.Minute}, {"/h", "hour", time.Hour}}

// leakRate writes a rate in units per second so that the text gives the same number: by the minute
// or the hour if its text by the second is long.
func leakRate(perSecond float64) string {
	best := digits(perSecond) + "/s"
	for _, u := range timeUnits[1:] {
		if len(best) <= 8 {
			break
		}
		n, _ := strconv.ParseFloat(strconv.FormatFloat(perSecond*u.Seconds(), 'g', 15, 64), 64)
		if s := digits(n) + u.short; len(s) < len(best) && n/u.Seconds() == perSecond {
			best = s
		}
	}
	return best
}

// Short is a duration without the zeros at its end: "1h".
func Short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// digits writes a number so that it is read as the same.
func digits(f float64) string {
	if math.Abs(f) < 1e-6 {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// Number writes a number with six digits at most.
func Number(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }

// Quote makes a key of any bytes fit for one line of a log, as its first 64 bytes.
func Quote(key string) string {
	const most = 64
	if len(key) > most {
		return strconv.Quote(key[:most]) + "…"
	}
	return strconv.Quote(key)
}
