package outboundtest_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"
	_ "time/tzdata"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	must(t, err)
	return z
}

// From one call to the next a day the rule tells how long its periods last.
func TestCalendarWindow_LastsAsLongAsThePeriod(t *testing.T) {
	const h = time.Hour
	for _, test := range []struct {
		period Period
		zone   string
		begin  string // of the first period, in RFC 3339
		want   []time.Duration
	}{
		{Day, "UTC", "2024-02-28T00:00:00Z", []time.Duration{24 * h, 24 * h, 24 * h}},
		{Day, "Europe/Berlin", "2026-03-28T00:00:00+01:00", []time.Duration{24 * h, 23 * h, 24 * h}},
		{Day, "Europe/Berlin", "2026-10-24T00:00:00+02:00", []time.Duration{24 * h, 25 * h, 24 * h}},
		{Day, "America/Los_Angeles", "2026-03-07T00:00:00-08:00", []time.Duration{24 * h, 23 * h, 24 * h}},
		{Day, "America/Sao_Paulo", "2018-11-03T00:00:00-03:00", []time.Duration{24 * h, 23 * h, 24 * h}}, // no midnight on the 4th
		{Day, "America/Sao_Paulo", "2018-02-17T00:00:00-02:00", []time.Duration{25 * h, 24 * h}},         // at midnight it was 23:00 again
		{Day, "Africa/Cairo", "2023-04-27T00:00:00+02:00", []time.Duration{24 * h, 23 * h, 24 * h}},      // no midnight on the 28th
		{Day, "Asia/Beirut", "2022-03-26T00:00:00+02:00", []time.Duration{24 * h, 23 * h, 24 * h}},       // no midnight on the 27th
		{Day, "America/Havana", "2024-11-02T00:00:00-04:00", []time.Duration{24 * h, 25 * h, 24 * h}},    // midnight came twice on the 3rd
		{Day, "America/St_Johns", "2008-11-01T00:00:00-02:30", []time.Duration{24 * h, 25 * h}},          // the 2nd began, and a minute later the 1st came again
		{Day, "Pacific/Apia", "2011-12-29T00:00:00-10:00", []time.Duration{24 * h, 24 * h}},              // there was no 30th
		{Day, "Australia/Lord_Howe", "2026-04-05T00:00:00+11:00", []time.Duration{24*h + 30*time.Minute, 24 * h}},
		{Month, "UTC", "2024-01-01T00:00:00Z", []time.Duration{31 * 24 * h, 29 * 24 * h, 31 * 24 * h, 30 * 24 * h}},
		{Month, "UTC", "1900-02-01T00:00:00Z", []time.Duration{28 * 24 * h, 31 * 24 * h}},
		{Month, "UTC", "2026-11-01T00:00:00Z", []time.Duration{30 * 24 * h, 31 * 24 * h, 31 * 24 * h, 28 * 24 * h}},
		{Month, "Europe/Berlin", "2026-03-01T00:00:00+01:00", []time.Duration{31*24*h - h, 30 * 24 * h}},
		{Week, "UTC", "2026-11-30T00:00:00Z", []time.Duration{7 * 24 * h, 7 * 24 * h}},
		{Week, "Europe/Berlin", "2026-03-23T00:00:00+01:00", []time.Duration{7*24*h - h, 7 * 24 * h}},
		{Hour, "UTC", "2026-12-31T23:00:00Z", []time.Duration{h, h}},
		{Hour, "Asia/Kathmandu", "2026-07-01T10:00:00+05:45", []time.Duration{h, h}},
		{Hour, "Europe/Berlin", "2026-10-25T02:00:00+02:00", []time.Duration{h, h, h}},                                // comes twice
		{Hour, "America/St_Johns", "2008-11-01T23:00:00-02:30", []time.Duration{h, time.Minute, 59 * time.Minute, h}}, // until 00:01, when it was 23:01 again
		{Hour, "Australia/Lord_Howe", "2026-04-05T01:00:00+11:00", []time.Duration{h, h / 2, h}},                      // half of it does
		{Hour, "Australia/Lord_Howe", "2026-10-04T01:00:00+10:30", []time.Duration{h, h / 2, h}},                      // half an hour is missing
	} {
		bubble(t, fmt.Sprint(test.period, " ", test.zone, " ", test.begin), func(t *testing.T) {
			begin, err := time.Parse(time.RFC3339, test.begin)
			must(t, err)
			// The bubble begins in the year 2000. Only its clock can be moved on.
			skew := time.Until(begin.Add(-time.Second))
			var length time.Duration
			tells := func(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
				length = d.Counts[0].Window
				next.ServeHTTP(w, r)
			}
			api := &API{Rules: []Rule{CalendarWindow(1, test.period, zone(t, test.zone))}, Skew: skew, Vendor: tells}
			status, _ := callAPI(t, api, 1)
			fatalIf(t, status != http.StatusOK, "status %d in the period before", status)
			_, after := callAPI(t, api, 1)
			fatalIf(t, after != "1", "a second before the period: Retry-After %q", after)
			time.Sleep(time.Second)
			for i, want := range test.want {
				status, _ := callAPI(t, api, 1)
				fatalIf(t, status != http.StatusOK, "at the beginning of period %d: status %d", i, status)
				if _, after := callAPI(t, api, 1); after != strconv.Itoa(int(want.Seconds())) || length != want {
					t.Fatalf("period %d: Retry-After %q, length %v, want %v", i, after, length, want)
				}
				time.Sleep(want - 1)
				if status, after := callAPI(t, api, 1); status != http.StatusTooManyRequests || after != "1" {
					t.Fatalf("at the end of period %d: status %d, Retry-After %q", i, status, after)
				}
				time.Sleep(1 * time.Nanosecond)
			}
		})
	}
}

// A period counts as other rules do, and has ended once.
func TestCalendarWindow_Counts(t *testing.T) {
	bubble(t, "A minute after midnight it was 23:01 again: that hour is of the new day", func(t *testing.T) {
		begin := time.Date(2008, 11, 2, 2, 30, 0, 0, time.UTC)
		end := time.Date(2008, 11, 3, 3, 30, 0, 0, time.UTC)
		api := &API{Rules: []Rule{CalendarWindow(1, Day, zone(t, "America/St_Johns"))}, Skew: time.Until(begin.Add(30 * time.Minute))}
		callAPI(t, api, 1)
		if _, after := callAPI(t, api, 1); after != strconv.Itoa(int(end.Sub(begin).Seconds())-30*60) {
			t.Errorf("Retry-After %q, want %v", after, end.Sub(begin)-30*time.Minute)
		}
	})
	bubble(t, "A period counts units, keys and settled costs as other rules do", func(t *testing.T) {
		path, used := "/a", 0.
		var count Count
		api := &API{
			Rules: []Rule{CalendarWindow(10, Month, time.UTC).Of("tokens", byHeader).
				By(func(*http.Request) string { return path }).
				Settle(func(*http.Request) float64 { return used })},
			Vendor: func(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
				count = d.Counts[0]
				next.ServeHTTP(w, r)
			},
		}
		want := func(cost float64, status int, remaining float64, length time.Duration) {
			t.Helper()
			if got, _ := callAPI(t, api, cost); got != status || count.Remaining != remaining || count.Window != length {
				t.Errorf("%g tokens: status %d, %g of a window of %v remain, want %d, %g, %v", cost, got, count.Remaining, count.Window, status, remaining, length)
			}
		}
		const day = 24 * time.Hour
		want(9, 200, 10, 31*day)
		used = 4
		want(10, 200, 6, 31*day)
		want(6, 200, 2, 31*day)
		want(3, 429, 2, 31*day)
		path = "/b"
		want(3, 200, 6, 31*day)
		path = "/a"
		time.Sleep(31*day - 1)
		want(3, 429, 2, 31*day)
		time.Sleep(1 * time.Nanosecond)
		want(10, 200, 6, 29*day)
		errorIf(t, count.Reset != 29*day, "reset in %v, want 29 days", count.Reset)
	})
}

// Departures at random around a night in which midnight comes twice, against a count of each
// period.
func TestHistory_CheckCalendarAgreesWithACount(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	z := zone(t, "America/Havana")
	utc := func(day, hour int) time.Time { return time.Date(2024, 11, day, hour, 0, 0, 0, time.UTC) }
	ends := map[Period][]time.Time{
		Day:   {utc(1, 4), utc(2, 4), utc(3, 4), utc(4, 5), utc(5, 5)},
		Month: {time.Date(2024, 10, 1, 4, 0, 0, 0, time.UTC), utc(1, 4), time.Date(2024, 12, 1, 5, 0, 0, 0, time.UTC)},
	}
	for h := range 80 {
		ends[Hour] = append(ends[Hour], utc(1, h))
	}
	kept, broken := 0, 0
	for range 3000 {
		skew := time.Duration(random.IntN(3)) * 30 * time.Second
		var all []time.Time
		var h History
		for range random.IntN(12) {
			at := utc(2, 20).Add(time.Duration(random.IntN(30)) * time.Hour).Add(time.Duration(random.IntN(5)-2) * 30 * time.Second)
			all = append(all, at)
			h.Add(at, 1)
		}
		for period, ends := range ends {
			most := 0
			for i, end := range ends[1:] {
				n := 0
				for _, at := range all {
					if !at.Before(ends[i].Add(-skew)) && at.Before(end.Add(skew)) {
						n++
					}
				}
				most = max(most, n)
			}
			for n := max(1, most-1); n <= most+1; n++ {
				err := h.CheckCalendar(float64(n), period, z, skew)
				fatalIf(t, (err != nil) != (most > n),
					"%v, skew %v: at most %d in a %v, checked against %d: %v", all, skew, most, period, n, err)
				excess, ok := errors.AsType[*Excess](err)
				if ok && (excess.Over != float64(most-n) || excess.Departures != most || excess.Allowed != float64(n)) {
					t.Fatalf("%v, skew %v: at most %d in a %v, checked against %d: %+v", all, skew, most, period, n, excess)
				}
				if ok {
					broken++
				} else {
					kept++
				}
			}
		}
	}
	errorIf(t, broken < 1000 || kept < 1000, "%d broken laws and %d that were kept prove little", broken, kept)
}

// CheckWindow and CheckCalendar name what is too much.
func TestHistory_CheckWindow(t *testing.T) {
	t.Run("CheckWindow compares the fullest window of a length with the limit", func(t *testing.T) {
		h := historyOf([]point{{0, 3}, {1_000_000, 2}, {1_999_999, 4}, {2_999_999, 5}})
		for length, most := range map[time.Duration]float64{
			time.Microsecond: 5, time.Second: 6, time.Second + 1: 9, 2 * time.Second: 11, 3 * time.Second: 14,
		} {
			if err := h.CheckWindow(most, length); err != nil {
				t.Errorf("at most %g in any %v: %v", most, length, err)
			}
			err := h.CheckWindow(most-1, length)
			excess, ok := errors.AsType[*Excess](err)
			errorIf(t, !ok || excess.Over != 1 || excess.Units != most, "at most %g in any %v: %v", most-1, length, err)
		}
		errorIs(t, new(History).CheckWindow(1, time.Second), nil, "the error")
	})
	t.Run("The error of a window or a period has its beginning and its excess", func(t *testing.T) {
		h := historyOf([]point{{0, 3}, {2_000_000, 2}})
		for want, err := range map[string]error{
			"outboundtest: 5 units left within 2s from 2000-01-01T12:00:00Z, 1 above the 4 of any 1m0s":                                         h.CheckWindow(4, time.Minute),
			"outboundtest: 5 units left within 2s from 2000-01-01T12:00:00Z, 3 above the 2 of the day that begins at 2000-01-01T00:00:00+09:00": h.CheckCalendar(2, Day, zone(t, "Asia/Tokyo"), 0),
		} {
			errorIf(t, err == nil || err.Error() != want, "got %v, want %s", err, want)
		}
	})
	t.Run("An invalid limit, window, skew, period or zone panics", func(t *testing.T) {
		var h History
		for _, bad := range []float64{math.NaN(), math.Inf(1), -1, 0} {
			wantPanic(t, "limit of a window", func() { _ = h.CheckWindow(bad, time.Second) })
			wantPanic(t, "limit of a period", func() { _ = h.CheckCalendar(bad, Day, time.UTC, 0) })
		}
		for _, bad := range []time.Duration{0, -1, math.MaxInt64, math.MinInt64} {
			wantPanic(t, "a window of", func() { _ = h.CheckWindow(1, bad) })
		}
		for _, bad := range []time.Duration{-1, time.Hour + 1, math.MaxInt64, math.MinInt64} {
			wantPanic(t, "a skew of", func() { _ = h.CheckCalendar(1, Day, time.UTC, bad) })
		}
		wantPanic(t, "must be Hour, Day, Month or Week", func() { _ = h.CheckCalendar(1, 5, time.UTC, 0) })
		wantPanic(t, "a month in no zone", func() { _ = h.CheckCalendar(1, Month, nil, 0) })
	})
}

// Each minute of a year is in the period of the latest date that the zone's clocks have shown.
func TestHistory_CheckCalendarAgreesWithZones(t *testing.T) {
	for name, year := range map[string]int{
		"America/Sao_Paulo": 2018, "America/Havana": 2024, "America/St_Johns": 2008, "Pacific/Apia": 2011, "Asia/Beirut": 2022, "Africa/Cairo": 2023,
	} {
		z := zone(t, name)
		var days, months History
		date := func(at time.Time) []int {
			y, m, d := at.In(z).Date()
			return []int{y, int(m), d}
		}
		at := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		end := at.AddDate(1, 0, 0)
		for latest := date(at); at.Before(end); at = at.Add(time.Minute) {
			now := date(at)
			if slices.Compare(now, latest) <= 0 {
				continue
			}
			// One unit at both ends of each period.
			if now[1] != latest[1] {
				months.Add(at, 1)
				months.Add(at.Add(-1), 1)
			}
			days.Add(at, 1)
			days.Add(at.Add(-1), 1)
			latest = now
		}
		for period, h := range map[Period]*History{Day: &days, Month: &months} {
			errorIs(t, h.CheckCalendar(2, period, z, 0), nil, "%s", name)
			n := h.Len()
			errorIf(t, n < 22, "%s: %d ends of a %v in a year", name, n, period)
		}
	}
}
