package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Parse returns the limit of a text, as String prints it, and what is wrong with it, or "".
func Parse(s string) (l Limit, flaw string) {
	if l, flaw = parse(s); flaw == "" {
		flaw = l.Check()
	}
	return l, flaw
}

// parse returns the limit of a text, and what is wrong with the text, or "".
func parse(s string) (l Limit, flaw string) {
	name, unit, s, flaw := cutName(s)
	if flaw != "" {
		return l, flaw
	}
	if i := strings.LastIndex(s, ", version "); i >= 0 {
		if l, flaw = parse(s[:i]); flaw == "" {
			if l.Version, _ = strconv.Atoi(s[i+len(", version "):]); l.Version < 1 {
				flaw = Quote(s[i+2:]) + ` is not like "version 1"`
			}
		}
		return l.Of(unit, name), flaw
	}
	if front, ok := strings.CutSuffix(s, ", adaptive"); ok {
		l, flaw := parse(front)
		return l.Adaptive().Of(unit, name), flaw
	}
	rate, option, more := strings.Cut(s, ",")
	rate, option = strings.TrimSpace(rate), strings.TrimSpace(option)
	if strings.HasSuffix(rate, " burst") {
		rate, option = option, rate
	}
	burst, lease := 0.0, time.Duration(0)
	if of, ok := strings.CutSuffix(option, " burst"); ok {
		if burst, flaw = parseNumber(of); flaw == "" && !(burst > 0) {
			flaw = "a burst of " + Number(burst) + " is not above 0"
		}
	} else if of, ok := strings.CutSuffix(option, " lease"); ok {
		lease, flaw = parseTime(strings.TrimSpace(of))
	} else if more {
		flaw = `it is not like "60 per 1m, 5 burst" or "40 burst, 2/s"`
	}
	if flaw != "" {
		return l, flaw
	}
	words := strings.Fields(rate)
	if len(words) == 1 {
		if i := strings.IndexByte(words[0], '/'); i > 0 {
			words = []string{words[0][:i], words[0][i:]}
		}
	}
	if len(words) == 0 {
		return l, noForm
	}
	n, flaw := parseNumber(words[0])
	if flaw == "" {
		l, flaw = ofWords(n, words[1:], burst)
	}
	if lease != 0 {
		l = l.Lease(lease)
	}
	return l.Of(unit, name), flaw
}

const noForm = `it is not like "10 per 1s", "100 in any 1m", "40 burst, 2/s", "5 in flight" or "10000 per day UTC"`

// cutName returns the name and the unit that a text begins with, and the rest.
func cutName(s string) (name string, unit int, rest, flaw string) {
	s = strings.TrimSpace(s)
	quoted := ""
	if strings.HasPrefix(s, `"`) {
		quoted, _ = strconv.QuotedPrefix(s)
		name, _ = strconv.Unquote(quoted)
		s = s[len(quoted):]
	}
	i := strings.LastIndex(s, ":")
	if i < 0 {
		if quoted != "" {
			flaw = "a name ends with a colon"
		}
		return name, 0, s, flaw
	}
	head, rest := strings.TrimSpace(s[:i]), strings.TrimSpace(s[i+1:])
	if of, ok := strings.CutSuffix(head, ")"); ok {
		if j := strings.LastIndex(of, "(unit "); j >= 0 {
			var err error
			if unit, err = strconv.Atoi(of[j+len("(unit "):]); err != nil {
				return "", 0, "", Quote(head[j:]) + ` is not like "(unit 1)"`
			}
			head = strings.TrimSpace(head[:j])
		}
	}
	switch {
	case quoted == "":
		name = head
	case head != "":
		flaw = Quote(head) + " follows its name"
	}
	return name, unit, rest, flaw
}

// parseNumber returns the number that a text is, and what is wrong with the text, or "".
func parseNumber(s string) (n float64, flaw string) {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || strings.ContainsAny(s, "xX") { // a hexadecimal number is a slip
		return 0, Quote(s) + " is not a number that a limit can have"
	}
	return n, ""
}

// parseTime returns the duration that a text is, above 0, and what is wrong with the text, or "".
func parseTime(s string) (d time.Duration, flaw string) {
	for _, u := range timeUnits {
		if s == u.long {
			return u.Duration, ""
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, ""
	}
	return 0, Quote(s) + ` is not a duration above 0, such as "1m30s"`
}

// ofWords returns the limit of what follows a number, and what is wrong with that, or "".
// If burst is zero, there is none.
func ofWords(n float64, words []string, burst float64) (l Limit, flaw string) {
	is := func(like ...string) bool { // a word that may be any is ""
		return slices.EqualFunc(words, like, func(a, b string) bool { return a == b || b == "" })
	}
	var d time.Duration
	switch {
	case is("in", "flight"):
		if l = InFlight(n); n > 0 && n != math.Trunc(n) {
			flaw = "a number of calls in flight is whole, not " + Number(n)
		}
	case is("in", "any", ""):
		if d, flaw = parseTime(words[2]); flaw == "" {
			l = Window(store.Window, "Window", n, d)
		}
	case is("in", "", "from", "the", "first"):
		if d, flaw = parseTime(words[1]); flaw == "" {
			l = Window(store.Fixed, "FixedWindow", n, d)
		}
	case is("per", "hour", "UTC"):
		l = Calendar(store.Hourly, "Hourly", n, time.UTC)
	case len(words) > 2 && words[0] == "per" && calendarUnits[words[1]] != 0:
		l = Limit{Capacity: n, Form: Form{Kind: calendarUnits[words[1]], zone: words[2]}}.intact()
		if is("per", "", "", "from", "day", "") {
			day, _ := strconv.Atoi(words[5])
			l = l.From(day)
		} else if len(words) > 3 {
			flaw = noForm
		}
	case is("per", "") && calendarUnits[words[1]] != 0:
		return l, "a " + words[1] + ` needs its time zone, as in "10000 per ` + words[1] + ` Europe/Berlin"`
	case is("per", ""):
		if d, flaw = parseTime(words[1]); flaw != "" {
			break
		}
		if l = Per(n, d); l.flaw == "" && n < burst && burst > 1 {
			return Limit{Capacity: burst, LeakRate: n / d.Seconds()}, ""
		}
	case is("/s"), is("/m"), is("/h"):
		if burst == 0 {
			return l, `write "10 per 1s" or, with the size of a burst, "1 burst, 10/s"`
		}
		i := slices.IndexFunc(timeUnits[:], func(u timeUnit) bool { return u.short == words[0] })
		return Limit{Capacity: burst, LeakRate: n / timeUnits[i].Seconds()}, ""
	default:
		return l, noForm
	}
	if burst != 0 && flaw == "" {
		l = l.Burst(burst)
	}
	return l, flaw
}

// calendarUnits has the calendars that need a time zone, by the name of their period.
var calendarUnits = map[string]store.Kind{"day": store.Daily, "week": store.Weekly, "month": store.Monthly}

// object is a limit as a JSON object.
type object struct {
	N           float64 `json:"n"`
	Per         string  `json:"per"`
	Zone        string  `json:"zone"`
	FromDay     int     `json:"from_day"`
	Window      string  `json:"window"`
	FixedWindow string  `json:"fixed_window"`
	InFlight    float64 `json:"in_flight"`
	Lease       string  `json:"lease"`
	Adaptive    bool    `json:"adaptive"`
	Burst       float64 `json:"burst"`
	Capacity    float64 `json:"capacity"`
	LeakRate    float64 `json:"leak_rate"`
	Unit        int     `json:"unit"`
	Name        string  `json:"name"`
	Version     int     `json:"version"`
}

// text returns the limit as Parse reads it, and what is wrong with the object, or "".
func (o *object) text() (text, flaw string) {
	counts, forms := o.N != 0, 0
	add := func(set, counted bool, format string, args ...any) {
		if set {
			forms++
			text, counts = fmt.Sprintf(format, args...), counts == counted
		}
	}
	n := digits(o.N)
	add(o.Per != "" && o.Zone == "", true, "%s per %s", n, o.Per)
	add(o.Zone != "" && o.FromDay == 0, true, "%s per %s %s", n, o.Per, o.Zone)
	add(o.FromDay != 0, true, "%s per %s %s from day %d", n, o.Per, o.Zone, o.FromDay)
	add(o.Window != "", true, "%s in any %s", n, o.Window)
	add(o.FixedWindow != "", true, "%s in %s from the first", n, o.FixedWindow)
	add(o.InFlight != 0 && o.Lease == "", false, "%s in flight", digits(o.InFlight))
	add(o.Lease != "", false, "%s in flight, %s lease", digits(o.InFlight), o.Lease)
	add(o.Capacity != 0 || o.LeakRate != 0, false, "%s burst, %s/s", digits(o.Capacity), digits(o.LeakRate))
	if forms != 1 || !counts {
		return "", `it has n with "per", "window" or "fixed_window", or else "in_flight", or "capacity" with "leak_rate"`
	}
	if o.Adaptive {
		text += ", adaptive"
	}
	if o.Burst != 0 {
		text += ", " + digits(o.Burst) + " burst"
	}
	if o.Version != 0 {
		text += ", version " + strconv.Itoa(o.Version)
	}
	return fmt.Sprintf("%q (unit %d): %s", o.Name, o.Unit, text), ""
}

// ParseJSON returns the text of a limit that is a JSON object or a string, as Parse reads it, and
// what is wrong with it, or "".
func ParseJSON(data []byte) (text, flaw string) {
	if bytes.HasPrefix(data, []byte(`"`)) {
		if err := json.Unmarshal(data, &text); err != nil {
			return "", err.Error()
		}
		return text, ""
	}
	var o object
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return "", err.Error()
	}
	return o.text()
}
