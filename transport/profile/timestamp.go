package profile

import (
	"net/http"
	"strings"
	"time"
)

// timestamp reads a point in time: the three forms of HTTP (RFC 9110 §5.6.7), ISO 8601 with an
// offset, even without seconds, and what JavaScript writes. Its shape selects one of them, so
// timestamp tries one layout only: a layout that does not fit costs an allocation.
func timestamp(v string) (time.Time, bool) {
	layout := ""
	switch {
	case len(v) < len("2006-01-02T15:04Z") || len(v) > 100:
		return time.Time{}, false
	case v[4] == '-' && (v[10] == 'T' || v[10] == 't' || v[10] == ' '):
		return isoTimestamp(v)
	case len(v) == len(http.TimeFormat) && v[3] == ',':
		layout = http.TimeFormat
		// Nearly every response has a Date, and time.Parse takes ten times as long.
		weekday, month := strings.Index("SunMonTueWedThuFriSat", v[:3]), strings.Index("JanFebMarAprMayJunJulAugSepOctNovDec", v[8:11])
		y, d, h, m, s := 100*twoDigits(v[12:])+twoDigits(v[14:]), twoDigits(v[5:]), twoDigits(v[17:]), twoDigits(v[20:]), twoDigits(v[23:])
		if min(weekday, month, y, d, h, m, s) >= 0 && weekday%3+month%3 == 0 && h < 24 && m < 60 && s < 60 &&
			v[4] == ' ' && v[7] == ' ' && v[11] == ' ' && v[16] == ' ' && v[19] == ':' && v[22] == ':' && v[25:] == " GMT" {
			at := time.Date(y, time.Month(month/3+1), d, h, m, s, 0, time.UTC)
			return at, at.Day() == d
		}
	case len(v) == len(time.ANSIC) && v[3] == ' ':
		layout = time.ANSIC
	case strings.HasSuffix(v, " GMT") && strings.Contains(v, "day, "):
		// time.RFC850 would read EST as a zone with an offset of 0.
		layout = "Monday, 02-Jan-06 15:04:05 GMT"
	case len(v) >= len(jsLayout) && v[3] == ' ' && isAlpha(v[0]):
		layout = jsLayout
		var zone string
		v, zone = v[:len(jsLayout)], v[len(jsLayout):]
		if zone != "" && (!strings.HasPrefix(zone, " (") || zone[len(zone)-1] != ')') {
			return time.Time{}, false
		}
	default:
		return time.Time{}, false
	}
	at, err := time.Parse(layout, v)
	return at, err == nil
}

// twoDigits returns the number at the beginning of a text, or one below zero.
func twoDigits(v string) int {
	if !isDigit(v[0]) || !isDigit(v[1]) {
		return -1 << 20
	}
	return 10*int(v[0]-'0') + int(v[1]-'0')
}

const jsLayout = "Mon Jan 02 2006 15:04:05 GMT-0700"

// isoTimestamp reads ISO 8601 as APIs send it: RFC 3339, but without seconds, with a blank
// instead of the T, or with an offset without a colon or minutes, too. Without any offset it
// is no point in time.
func isoTimestamp(v string) (time.Time, bool) {
	const minutes = len("2006-01-02T15:04")
	n := strings.IndexAny(v[minutes:], "Zz+-")
	if n < 0 {
		return time.Time{}, false
	}
	n += minutes
	clock, zone := v[len("2006-01-02T"):n], strings.ToUpper(v[n:])
	if n == minutes {
		clock += ":00"
	}
	switch len(zone) {
	case len("+02"):
		zone += ":00"
	case len("+0200"):
		zone = zone[:3] + ":" + zone[3:]
	}
	at, err := time.Parse(time.RFC3339, v[:len("2006-01-02")]+"T"+clock+zone)
	return at, err == nil
}

// epoch returns the point in time that a number says: seconds since 1970, or milliseconds. It
// returns none for a number that may be a time from now. A simulated clock may show times
// before 2001, whose numbers are less: those count within 40 days of it.
func epoch(n float64, clock func() time.Time) (at time.Time, ok bool) {
	switch {
	case n >= 1e14: // microseconds, or no time at all
		return at, false
	case n >= 1e11:
		return time.UnixMicro(int64(n * 1e3)), true
	}
	at = time.UnixMicro(int64(n * 1e6))
	return at, n >= 1e9 || duration(n, time.Second) > maxReset && between(at, clock()) <= maxReset
}

// between returns how long it is from one point in time to another, saturated, and negative
// if that is over.
func between(from, to time.Time) time.Duration {
	return min(to.Sub(from), forever)
}
