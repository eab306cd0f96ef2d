package profile

import (
	"math"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A number is digits with or without decimals.
func TestNumber_DigitsAndDecimals(t *testing.T) {
	for v, want := range map[string]float64{
		"0": 0, "007": 7, "1.5": 1.5, "0.04512": 0.04512, "596.0": 596, "999999999999999": 999999999999999,
		"12345678901234567890": 12345678901234567890, "99999999999999999999.99": 1e20, "1." + strings.Repeat("0", 100): 1,
	} {
		got, ok := number(v)
		errorIf(t, !ok || got != want, "%q: %v %v, want %v", v, got, ok, want)
	}
	for _, v := range []string{"", ".", "1.", ".5", "-1", "+1", "1e3", "1E3", "0x1", "NaN", "nan", "Inf", "1_000", "1,5", " 1", "1 ", "٣", "1.2.3", "1.-2", "100000000000000000000000"} {
		got, ok := number(v)
		errorIf(t, ok, "%q was read as %v", v, got)
	}
}

// Durations are rounded up, and saturate.
func TestDuration_RoundsUpAndSaturates(t *testing.T) {
	for _, c := range []struct {
		n    float64
		unit time.Duration
		want time.Duration
	}{
		{0, time.Second, 0}, {1.5, time.Second, 1500 * time.Millisecond}, {1e-10, time.Second, 1}, {0.3, time.Nanosecond, 1},
		{2147483647, time.Second, 2147483647 * time.Second}, {2147483648, time.Second, forever}, {9223372037, time.Second, forever},
		{1e20, time.Hour, forever}, {math.Inf(1), 1, forever}, {math.NaN(), 1, forever},
	} {
		got := duration(c.n, c.unit)
		errorIf(t, got != c.want, "%v times %v: %v, want %v", c.n, c.unit, got, c.want)
	}
}

// A name is of bounded length and printable.
func TestName_BoundedAndPrintable(t *testing.T) {
	for v, want := range map[string]string{
		"": "", "core": "core", "Überbucket": "Überbucket", "a\x00b\r\nc\x7f\u0085\u2028d": "abcd", "a\xff\xfeb": "ab",
		strings.Repeat("n", 200): strings.Repeat("n", 128), strings.Repeat("ü", 100): strings.Repeat("ü", 64),
		"x" + strings.Repeat("ü", 100):    "x" + strings.Repeat("ü", 63),
		strings.Repeat("😀", 40):           strings.Repeat("😀", 32),
		"xy" + strings.Repeat("😀", 40):    "xy" + strings.Repeat("😀", 31),
		strings.Repeat("\xff", 200) + "x": "",
	} {
		got := clean(v)
		errorIf(t, got != want, "%q: %q, want %q", v, got, want)
	}
}

// timestamp tries one layout only, and must not read less by that.
func FuzzTimestamp(f *testing.F) {
	for _, v := range []string{
		"Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "2026-09-01T12:00:00Z", "2026-09-01T12:00:00.123456789+02:00",
		"2026-09-01T12:00Z", "2026-09-01 12:00:00+0200", "2026-09-01T12:00:00+02", "Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)", "Tue Sep 16 2021 09:02:42 GMT-0100",
		"9999-12-31T23:59:59Z", "0000-01-01T00:00Z", "Sunday, 06-Nov-94 08:49:37 EST", "2026-09-01t12:00:00z", "6m0s", "12ms", "1788264090.5", "1h1h", "250µs",
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		at, ok := timestamp(v)
		if want, err := http.ParseTime(v); err == nil && strings.HasSuffix(v, "GMT") && len(v) == len(http.TimeFormat) && v[3] == ',' {
			errorIf(t, !ok || !at.Equal(want), "%q: %v %v, want %v", v, at, ok, want)
		} else if ok && err == nil && !at.Equal(want) {
			t.Errorf("%q: %v, want %v", v, at, want)
		}
		// Go accepts an hour of one digit, which RFC 3339 does not.
		if want, err := time.Parse(time.RFC3339, v); err == nil && v[13] == ':' && (!ok || !at.Equal(want)) {
			t.Errorf("%q: %v %v, want %v", v, at, ok, want)
		}
		errorIf(t, ok && strings.HasSuffix(v, "EST"), "%q was read", v)
		d := between(at, time.Unix(0, 0))
		errorIf(t, d > forever, "%v until 1970", d)
		if d, ok := goDuration(v); ok {
			want, err := time.ParseDuration(v)
			errorIf(t, err != nil || d != min(want, forever), "%q: %v, want %v, %v", v, d, want, err)
		}
		if n, ok := number(v); ok {
			exact, err := strconv.ParseFloat(v, 64)
			errorIf(t, err != nil || n != exact || strings.Trim(v, "0123456789.") != "",
				"%q: %v, want %v, %v", v, n, exact, err)
			// A duration is never too short: the API refuses a call that comes early.
			if want, _, err := big.ParseFloat(v, 10, 200, big.ToNegativeInf); err == nil && n < 1e6 {
				want.Mul(want, big.NewFloat(1e9))
				if got := new(big.Float).SetInt64(int64(duration(n, time.Second)) + 1); got.Cmp(want) < 0 {
					t.Errorf("%q: %v is too short", v, duration(n, time.Second))
				}
			}
		}
		if name := clean(v); len(name) > maxName || !utf8.ValidString(name) || strings.ContainsAny(name, "\r\n\x00\x1b") || clean(name) != name {
			t.Errorf("%q: the name %q", v, name)
		}
	})
}
