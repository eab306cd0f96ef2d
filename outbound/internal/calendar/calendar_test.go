package calendar

import (
	"math"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// periodAt returns the period of a limit with this Zone.
func periodAt(kind store.Kind, spec string, sec int64) store.Period {
	return New([]store.Limit{{Kind: kind, Zone: spec}}).At(time.Duration(sec) * time.Second)[0]
}

func zone(name string) *time.Location {
	z, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return z
}

// The periods of days and months that clocks change in, by what they are known to be.
func TestCalendar_FollowsTheClocksOfItsZone(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		kind  store.Kind
		zone  string
		at    string // a time in the first period
		begin string
		long  [2]time.Duration // that period, and those after it
	}{
		{store.Daily, "UTC", "2024-02-28T23:59:59Z", "2024-02-28T00:00:00Z", [2]time.Duration{day, day}},
		{store.Daily, "America/Los_Angeles", "2024-03-10T09:00:00Z", "2024-03-10T08:00:00Z", [2]time.Duration{23 * time.Hour, day}},
		{store.Daily, "America/Los_Angeles", "2024-11-02T12:00:00-07:00", "2024-11-02T07:00:00Z", [2]time.Duration{day, 25 * time.Hour}},
		// Midnight does not exist.
		{store.Daily, "America/Havana", "2024-03-09T12:00:00-05:00", "2024-03-09T05:00:00Z", [2]time.Duration{day, 23 * time.Hour}},
		{store.Daily, "America/Havana", "2024-03-10T05:00:00Z", "2024-03-10T05:00:00Z", [2]time.Duration{23 * time.Hour, day}},
		{store.Daily, "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-04T03:00:00Z", [2]time.Duration{23 * time.Hour, day}},
		// Midnight comes twice: the day begins with the first.
		{store.Daily, "America/Havana", "2024-11-03T05:30:00Z", "2024-11-03T04:00:00Z", [2]time.Duration{25 * time.Hour, day}},
		// Clocks go back at midnight, and show the last hour of the day before once more.
		{store.Daily, "America/Sao_Paulo", "2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", [2]time.Duration{25 * time.Hour, day}},
		// Clocks go back a minute after midnight, and the day before is not begun again.
		{store.Daily, "America/St_Johns", "2010-11-07T02:45:00Z", "2010-11-07T02:30:00Z", [2]time.Duration{25 * time.Hour, day}},
		// A zone leaves a day out.
		{store.Daily, "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", [2]time.Duration{day, day}},
		// Half an hour.
		{store.Daily, "Australia/Lord_Howe", "2024-04-07T00:00:00Z", "2024-04-06T13:00:00Z", [2]time.Duration{day + 30*time.Minute, day}},
		{store.Daily, "Asia/Kathmandu", "2024-01-01T00:00:00Z", "2023-12-31T18:15:00Z", [2]time.Duration{day, day}},
		{store.Monthly, "UTC", "2024-01-31T23:00:00Z", "2024-01-01T00:00:00Z", [2]time.Duration{31 * day, 29 * day}},
		{store.Monthly, "UTC", "2023-01-29T00:00:00Z", "2023-01-01T00:00:00Z", [2]time.Duration{31 * day, 28 * day}},
		{store.Monthly, "UTC", "2024-12-31T23:59:59Z", "2024-12-01T00:00:00Z", [2]time.Duration{31 * day, 31 * day}},
		{store.Monthly, "Europe/Berlin", "2024-02-29T23:30:00Z", "2024-02-29T23:00:00Z", [2]time.Duration{31*day - time.Hour, 30 * day}},
		{store.Monthly, "Pacific/Kiritimati", "2024-01-31T10:00:00Z", "2024-01-31T10:00:00Z", [2]time.Duration{29 * day, 31 * day}},
		// Days of billing that a month lacks: docs.stripe.com/billing/subscriptions/billing-cycle, "the
		// 31st … the last day of the month".
		{store.Monthly, "UTC from day 31", "2026-01-31T00:00:00Z", "2026-01-31T00:00:00Z", [2]time.Duration{28 * day, 31 * day}},
		{store.Monthly, "UTC from day 31", "2026-01-30T23:59:59Z", "2025-12-31T00:00:00Z", [2]time.Duration{31 * day, 28 * day}},
		{store.Monthly, "UTC from day 29", "2024-03-01T00:00:00Z", "2024-02-29T00:00:00Z", [2]time.Duration{29 * day, 31 * day}},
		{store.Monthly, "Europe/Berlin from day 15", "2026-03-14T22:59:59Z", "2026-02-14T23:00:00Z", [2]time.Duration{28 * day, 31*day - time.Hour}},
		{store.Weekly, "UTC", "2026-11-29T12:00:00Z", "2026-11-23T00:00:00Z", [2]time.Duration{7 * day, 7 * day}},
		{store.Weekly, "UTC", "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", [2]time.Duration{7 * day, 7 * day}},
		{store.Weekly, "UTC from day 7", "2026-11-28T23:59:59Z", "2026-11-22T00:00:00Z", [2]time.Duration{7 * day, 7 * day}},
		{store.Weekly, "Europe/Berlin from day 7", "2026-03-23T00:00:00Z", "2026-03-21T23:00:00Z", [2]time.Duration{7 * day, 7*day - time.Hour}},
		{store.Hourly, "UTC", "2024-03-10T09:59:59Z", "2024-03-10T09:00:00Z", [2]time.Duration{time.Hour, time.Hour}},
		{store.Hourly, "UTC", "1969-12-31T23:59:59Z", "1969-12-31T23:00:00Z", [2]time.Duration{time.Hour, time.Hour}},
	} {
		p := periodAt(c.kind, c.zone, instant(t, c.at))
		begin := instant(t, c.begin)
		want := store.Period{Begin: begin}
		for i, end := range []*int64{&want.End, &want.Next} {
			begin += int64(c.long[i] / time.Second)
			*end = begin
		}
		if p != want {
			t.Errorf("%v %s at %s begins at %v and is %v, %v long", c.kind, c.zone, c.at, time.Unix(p.Begin, 0).UTC(),
				time.Duration(p.End-p.Begin)*time.Second, time.Duration(p.Next-p.End)*time.Second)
		}
	}
}

func instant(t *testing.T, s string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at.Unix()
}

// Each period begins where the one before ends, also where clocks change. Between two changes only
// the days of the first week and of the last are checked.
func TestCalendar_HasNoGaps(t *testing.T) {
	const week = 7 * 24 * 60 * 60
	for _, name := range []string{"UTC", "America/Los_Angeles", "America/Havana", "America/St_Johns", "America/Sao_Paulo", "Pacific/Apia", "Pacific/Kwajalein",
		"Africa/Cairo", "Africa/Casablanca", "Antarctica/Troll", "Asia/Manila", "America/Juneau", "Asia/Gaza", "Europe/Dublin"} {
		for _, r := range []rule{{store.Daily, nil, 1}, {store.Monthly, nil, 1}, {store.Monthly, nil, 31}, {store.Weekly, nil, 1}, {store.Weekly, nil, 7}} {
			r.zone = zone(name)
			at := time.Date(1867, 1, 1, 0, 0, 0, 0, time.UTC).Unix() // and Alaska's and Samoa's change of the date line
			last := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
			p := r.period(at)
			for p.Begin < last {
				q := r.period(p.End)
				if q.Begin != p.End || q.End != p.Next || r.period(p.End-1) != p || p.End <= p.Begin {
					t.Fatalf("%s: %+v is followed by %+v, and its last second is in %+v", name, p, q, r.period(p.End-1))
				}
				if _, _, d := time.Unix(p.Begin, 0).In(r.zone).Date(); r.kind == store.Monthly && r.day == 1 && d > 2 {
					t.Fatalf("%s: a month begins on day %d", name, d)
				}
				p = q
				begin, change := time.Unix(p.Begin, 0).In(r.zone).ZoneBounds()
				if near := change.Unix() - week; r.kind == store.Daily && !change.IsZero() && p.Begin > begin.Unix()+week && p.End < near {
					p = r.period(near)
				}
			}
		}
	}
}

// A look at the calendar allocates nothing, and has a period for each limit by the calendar.
func TestCalendar_AllocatesNothing(t *testing.T) {
	c := New([]store.Limit{{}, {Kind: store.Daily, Zone: "America/Los_Angeles"}, {Kind: store.Hourly}})
	at := Stamp(time.Now())
	if n := testing.AllocsPerRun(100, func() { c.At(at) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if p := c.At(at); p[0] != (store.Period{}) || p[1] != periodAt(store.Daily, "America/Los_Angeles", int64((at-store.Slack)/time.Second)) {
		t.Errorf("%+v", p)
	}
}

// A machine's clock may be set to any time. Times beyond the calendar have its first or last period.
func TestCalendar_FarTimes(t *testing.T) {
	limits := []store.Limit{{Kind: store.Daily, Zone: "America/Los_Angeles", Capacity: 1}, {Kind: store.Monthly, Zone: "UTC", Capacity: 1, Name: "month"}, {Kind: store.Hourly, Capacity: 1, Name: "hour"}}
	c := New(limits)
	for _, at := range []time.Time{{}, time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(9_151_000_000_000_000_000, 0).UTC()} {
		op := store.Op{Limits: limits, Periods: c.At(Stamp(at)), Action: store.Book, Costs: []store.Units{{1, 1, 1}}}
		if r := op.ApplyAt(new(store.Stored), 0, Stamp(at)); r.Untimely {
			t.Errorf("%v: %+v", at, r)
		}
	}
	for _, unix := range []time.Duration{math.MinInt64, math.MinInt64 + 1, -1, 0, math.MaxInt64} {
		if p := c.At(unix); len(p) != 3 || !(p[0].Begin < p[0].End && p[0].End < p[0].Next) {
			t.Errorf("%v: %+v", unix, p)
		}
	}
}
