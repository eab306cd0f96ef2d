package transport

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const noon = "Tue, 01 Sep 2026 12:00:00 GMT"

func TestRetryAfterIsReadStrictly(t *testing.T) {
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		// Seconds.
		{"120", noon, 2 * time.Minute},
		{" 7\t", noon, 7 * time.Second},
		{"007", noon, 7 * time.Second},
		{"0", noon, 0},
		{"1.5", noon, 1500 * time.Millisecond},
		{"2.0", noon, 2 * time.Second},
		{"0.25", noon, 250 * time.Millisecond},
		{"0.0000000001", noon, 1}, // rounded up, never cut to no wait at all
		{"1.3333333333333333", noon, 1333333334},
		{"1.0000000000000000", noon, time.Second},
		{"999999999", noon, 999999999 * time.Second},
		{"9223372036", noon, 9223372036 * time.Second},
		{"9223372036.9", noon, math.MaxInt64},
		{"9223372037", noon, math.MaxInt64}, // ns beyond int64
		{"99999999999999999999", noon, math.MaxInt64},
		// Dates: a second is added.
		{"Tue, 01 Sep 2026 12:02:00 GMT", noon, 121 * time.Second},
		{"Tuesday, 01-Sep-26 12:02:00 GMT", noon, 121 * time.Second},
		{"Tue Sep  1 12:02:00 2026", noon, 121 * time.Second},
		{"2026-09-01T12:02:00Z", noon, 121 * time.Second},
		{"2026-09-01T14:02:00+02:00", noon, 121 * time.Second},
		{"Tue, 01 Sep 2026 12:02:00 GMT", "Tuesday, 01-Sep-26 12:01:00 GMT", 61 * time.Second},
		{"Sat, 01 Jan 2000 00:01:00 GMT", "", 61 * time.Second}, // the bubble's clock
		{"Sat, 01 Jan 2000 00:01:00 GMT", "yesterday", 61 * time.Second},
		{"Fri, 31 Dec 1999 23:59:59 GMT", noon, 0},
		{noon, noon, 0},
		{"Fri, 31 Dec 9999 23:59:59 GMT", noon, math.MaxInt64},
		{"Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", math.MaxInt64},
		// What is not understood.
		{"", noon, 0}, {" ", noon, 0}, {"soon", noon, 0}, {"-1", noon, 0}, {"+5", noon, 0}, {"1e9", noon, 0}, {"0x10", noon, 0},
		{"NaN", noon, 0}, {"Inf", noon, 0}, {"Infinity", noon, 0}, {"1_000", noon, 0}, {"\"30\"", noon, 0}, {"３０", noon, 0},
		{"1.", noon, 0}, {".5", noon, 0}, {"1.5.5", noon, 0}, {"1,5", noon, 0}, {"5 s", noon, 0}, {"5\x00", noon, 0}, {"1.-5", noon, 0},
		{"Tue, 01 Sep 2026 12:02:00 EST", noon, 0}, {"Tue, 31 Feb 2026 12:00:00 GMT", noon, 0},
		{"999999999999999999999", noon, 0}, // 21 digits
		{strings.Repeat("9", 8192), noon, 0},
		{"1." + strings.Repeat("0", 8192), noon, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := http.Header{"Retry-After": {c.value}, "Date": {c.date}}
			if got := retryAfter(h); got != c.want {
				t.Errorf("Retry-After %.40q, Date %q: %v, want %v", c.value, c.date, got, c.want)
			}
		})
	}
}

func TestLongestOfSeveralRetryAftersCounts(t *testing.T) {
	for want, values := range map[time.Duration][]string{
		time.Minute:      {"10", "60"},
		time.Hour:        {"3600", "60"},
		15 * time.Second: {"soon", "15", "-1"},
		time.Second:      append(strings.Split(strings.Repeat("1 ", maxLines), " ")[:maxLines], "100"), // beyond the lines that are read
		0:                {},
	} {
		if got := retryAfter(http.Header{"Retry-After": values}); got != want {
			t.Errorf("%q: %v, want %v", values, got, want)
		}
	}
}

func TestWhatTheAPISaysIsPassedOn(t *testing.T) {
	for _, c := range []struct {
		status int
		header []string
		want   string
	}{
		{200, nil, ""},
		{200, []string{"Retry-After", "10"}, ""}, // a hint for polling
		{302, []string{"Retry-After", "10"}, ""},
		{403, []string{"Retry-After", "10"}, ""}, // OnResponse knows better
		{429, nil, "refused 0s, "},
		{429, []string{"Retry-After", "10"}, "refused 10s, "},
		{429, []string{"Retry-After", "0"}, "refused 0s, "},
		{429, []string{"Retry-After", "-9"}, "refused 0s, "},
		{429, []string{"Retry-After", "7200"}, "refused 1h0m0s, "},
		{429, []string{"Retry-After", "99999999999"}, "refused 1h0m0s, "},
		{503, nil, ""},
		{503, []string{"Retry-After", "10"}, "refused 10s, "},
		{503, []string{"Retry-After", "0"}, ""},
		{503, []string{"Retry-After", "soon"}, ""},
		{500, []string{"Retry-After", "10"}, ""},
		// Out of a cache.
		{429, []string{"Retry-After", "10", "Age", "3"}, ""},
		{503, []string{"Retry-After", "10", "X-From-Cache", "1"}, ""},
		{429, []string{"Retry-After", "10", "Age", "0"}, "refused 10s, "},
		{429, []string{"Retry-After", "10", "Age", "-3"}, "refused 10s, "},
		{429, []string{"Retry-After", "10", "Age", "old"}, "refused 10s, "},
	} {
		for _, watch := range []bool{false, true} {
			r := new(recorder)
			rt := &Transport{Base: answer(c.status, nil, c.header...), Limiter: r}
			if watch {
				rt.OnResponse = func(*http.Response, *outbound.Permit) {}
			}
			trip(t, rt)
			if want, got := "acquire 1, "+c.want+"done", r.heard(); got != want {
				t.Errorf("%d %q: heard %q, want %q", c.status, c.header, got, want)
			}
		}
	}
}

func TestMaxHoldBoundsWhatAResponseCanCause(t *testing.T) {
	for maxHold, want := range map[time.Duration]time.Duration{
		0: time.Hour, -time.Second: time.Hour, time.Minute: time.Minute, 3 * time.Hour: 2 * time.Hour,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(10)))
			trip(t, &Transport{Base: answer(429, nil, "Retry-After", "7200"), Limiter: b, MaxHold: maxHold})
			var full *outbound.ThrottledError
			if _, err := b.Acquire(t.Context(), outbound.Cost{1}); !errors.As(err, &full) || !full.Held || full.RetryAfter.Round(time.Second) != want {
				t.Errorf("MaxHold %v: %v, want a hold of %v", maxHold, err, want)
			}
		})
	}
}

func TestRefusalByTheAPIHoldsAllWhoShareTheBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 10}))
		ours := &Transport{Base: answer(200, nil), Limiter: b}
		trip(t, ours)
		trip(t, &Transport{Base: answer(429, nil, "Retry-After", "30"), Limiter: b})
		_, err := ours.RoundTrip(newRequest(t, nil))
		var full *outbound.ThrottledError
		if !errors.As(err, &full) || !full.Held || full.RetryAfter < 30*time.Second {
			t.Fatalf("%v, want a hold of 30s", err)
		}
		time.Sleep(full.RetryAfter)
		trip(t, ours)
	})
}

// The second refusal in a row is held for twice as long, unless a call has
// succeeded between them.
func TestResponseThatIsNoRefusalIsASuccessAndAnErrorIsNone(t *testing.T) {
	for name, c := range map[string]struct {
		between base
		want    time.Duration
	}{
		"answered":   {answer(200, nil), time.Second},
		"not there":  {answer(404, nil), time.Second},
		"not at all": {func(*http.Request) (*http.Response, error) { return nil, errors.New("reset") }, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 100}))
			held := func() time.Duration {
				trip(t, &Transport{Base: answer(429, nil), Limiter: b})
				var full *outbound.ThrottledError
				if _, err := b.Acquire(t.Context(), outbound.Cost{1}); !errors.As(err, &full) || !full.Held {
					t.Fatalf("%s: %v", name, err)
				}
				return full.RetryAfter
			}
			time.Sleep(held() + time.Minute)
			_, _ = (&Transport{Base: c.between, Limiter: b}).RoundTrip(newRequest(t, nil))
			if got := held().Round(100 * time.Millisecond); got != c.want {
				t.Errorf("%s: then held for %v, want %v", name, got, c.want)
			}
		})
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, v := range []string{"120", "1.5", "-1", "9223372037", "99999999999999999999.9999999999", noon, "Tuesday, 01-Sep-26 12:02:00 GMT", "2026-09-01T12:02:00Z", "NaN", "0x1p4"} {
		f.Add(v, "10", noon, uint16(429))
	}
	f.Fuzz(func(t *testing.T, first, second, date string, status uint16) {
		h := http.Header{"Retry-After": {first, second}, "Date": {date}}
		d := retryAfter(h)
		if d < 0 {
			t.Fatalf("negative: %v", d)
		}
		if one := retryAfter(http.Header{"Retry-After": {second}, "Date": {date}}); allDigits(second) && d < one {
			t.Fatalf("a further line has shortened %v to %v", one, d)
		}
		if got, refused := refusal(&http.Response{StatusCode: int(status), Header: h}); got < 0 || refused && status != 429 && status != 503 {
			t.Fatalf("status %d is a refusal with %v", status, got)
		}
		// Digits with a sign, an exponent or anything else around them are no number.
		if _, ok := delaySeconds(first); ok && strings.Trim(first, "0123456789.") != "" {
			t.Fatalf("%q was read as a number", first)
		}
	})
}
