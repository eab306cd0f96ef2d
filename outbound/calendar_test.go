package outbound

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// The periods of days and months that clocks change in, by what they are known to be.
func TestPeriodsFollowTheClocksOfTheirZone(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		kind  store.Kind
		zone  string
		at    string // a moment of the first period
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
		// It comes twice: the day begins with the first.
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
		{store.Hourly, "UTC", "2024-03-10T09:59:59Z", "2024-03-10T09:00:00Z", [2]time.Duration{time.Hour, time.Hour}},
		{store.Hourly, "UTC", "1969-12-31T23:59:59Z", "1969-12-31T23:00:00Z", [2]time.Duration{time.Hour, time.Hour}},
	} {
		p := period(c.kind, zone(c.zone), instant(t, c.at))
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

// Whatever clocks do, each period begins where the one before ends, and holds the moment it
// was asked for. Between two changes of the clocks, only the days of the first week and of the
// last are looked at.
func TestPeriodsFollowEachOtherWithoutAGap(t *testing.T) {
	const week = 7 * 24 * 60 * 60
	for _, name := range []string{"UTC", "America/Los_Angeles", "America/Havana", "America/St_Johns", "America/Sao_Paulo", "Pacific/Apia", "Pacific/Kwajalein",
		"Africa/Cairo", "Africa/Casablanca", "Antarctica/Troll", "Asia/Manila", "America/Juneau", "Asia/Gaza", "Europe/Dublin"} {
		for _, kind := range []store.Kind{store.Daily, store.Monthly} {
			z := zone(name)
			at := time.Date(1867, 1, 1, 0, 0, 0, 0, time.UTC).Unix() // and Alaska's and Samoa's change of the date line
			last := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
			p := period(kind, z, at)
			for p.Begin < last {
				q := period(kind, z, p.End)
				if q.Begin != p.End || q.End != p.Next || period(kind, z, p.End-1) != p || p.End <= p.Begin {
					t.Fatalf("%s: %+v is followed by %+v, and its last second is in %+v", name, p, q, period(kind, z, p.End-1))
				}
				if _, _, d := time.Unix(p.Begin, 0).In(z).Date(); kind == store.Monthly && d > 2 {
					t.Fatalf("%s: a month begins on day %d", name, d)
				}
				p = q
				begin, change := time.Unix(p.Begin, 0).In(z).ZoneBounds()
				if near := change.Unix() - week; kind == store.Daily && !change.IsZero() && p.Begin > begin.Unix()+week && p.End < near {
					p = period(kind, z, near)
				}
			}
		}
	}
}

// until moves the fake clock on.
func until(t *testing.T, when string) {
	t.Helper()
	at, err := time.Parse(time.RFC3339, when)
	if err != nil || at.Before(time.Now()) {
		t.Fatal(when, err)
	}
	time.Sleep(time.Until(at))
}

func TestADayIsANewOneAtMidnightOfItsZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("youtube", Daily(10, pacific)))
		until(t, "2024-03-10T00:00:01-08:00") // of 23 hours
		at := went(t, b, 25)
		for i, want := range []string{0: "2024-03-10T08:00:01Z", 9: "2024-03-10T08:00:01Z", 10: "2024-03-11T07:00:01Z", 19: "2024-03-11T07:00:01Z", 20: "2024-03-12T07:00:01Z"} {
			if want != "" && at[i].Unix() != instant(t, want) {
				t.Errorf("call %d goes at %v, want %v", i, at[i].UTC(), want)
			}
		}
	})
}

// Clocks differ by up to a second, so no call leaves within a second of a reset.
func TestCalendar_ShutsAroundReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Hourly(10)))
		until(t, "2024-06-01T00:59:58.999Z")
		admit(t, b, 2)
		for range 200 {
			time.Sleep(10 * time.Millisecond) // from 0.991 s before the hour to 0.999 s after it
			_, err := b.Acquire(ctx, Cost{1})
			var full *ThrottledError
			if !errors.As(err, &full) || full.RetryAfter != time.Until(time.Date(2024, 6, 1, 1, 0, 1, 0, time.UTC)) || full.Limit != "10 per hour UTC" {
				t.Fatalf("%v: %v", time.Now().UTC(), err)
			}
		}
		time.Sleep(time.Millisecond)
		admit(t, b, 10)
	})
}

func TestAMonthIsABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("spend", Monthly(100, time.UTC)))
		until(t, "2024-02-29T12:00:00Z")
		for i := range 11 {
			s, err := b.Fillup(ctx, Cost{10})
			if err != nil || s.Level != min(100, 10*float64(i+1)) || s.Full != (i >= 9) || s.EmptyIn != 12*time.Hour+store.Slack {
				t.Errorf("after %d: %+v, %v", i, s, err)
			}
		}
		if s := states(t, b)[0]; s.Full || s.Remaining != 0 || s.NextIn != s.EmptyIn {
			t.Errorf("%+v", s)
		}
		if b.Idle() {
			t.Error("a budget that is spent is idle")
		}
		until(t, "2024-03-01T00:00:01Z")
		if s := states(t, b)[0]; s.Level != 0 || s.EmptyIn != 31*24*time.Hour || s.NextIn != 0 || !b.Idle() {
			t.Errorf("%+v, idle %v", s, b.Idle())
		}
	})
}

// EmptyIn of a calendar is the reset, also where nothing is used, and where calls around it
// count in the next period as well.
func TestAStateOfACalendarTellsTheReset(t *testing.T) {
	eachBucket(t, func(t *testing.T, mine, other *Bucket) {
		if err := mine.SetLimits(ctx, Monthly(100, time.UTC), Window(1000, time.Hour)); err != nil {
			t.Fatal(err)
		}
		until(t, "2024-02-20T00:00:00Z")
		reset := time.Date(2024, 3, 1, 0, 0, 0, 0, time.UTC).Add(store.Slack)
		for _, at := range []string{"2024-02-20T00:00:00Z", "2024-02-29T23:59:58.5Z"} {
			until(t, at)
			for _, b := range []*Bucket{mine, other} {
				if s := states(t, b)[0]; s.EmptyIn != time.Until(reset) {
					t.Errorf("%v: reset in %v, want %v", at, s.EmptyIn, time.Until(reset))
				}
				admit(t, b, 10)
				if s := states(t, b)[0]; s.EmptyIn != time.Until(reset) || s.NextIn != 0 {
					t.Errorf("%v, used: reset in %v, want %v; %+v", at, s.EmptyIn, time.Until(reset), s)
				}
			}
		}
		s, err := mine.Fillup(ctx, Cost{100})
		if err != nil || !s.Full || s.EmptyIn != 2500*time.Millisecond || s.NextIn < s.EmptyIn {
			t.Errorf("%+v, %v", s, err)
		}
		time.Sleep(2500 * time.Millisecond)
		if s := states(t, mine)[0]; s.EmptyIn != 31*24*time.Hour || s.Level != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Resume ends holds. The API goes on counting.
func TestAResumeGivesNoCalendarUnitsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute)
		b := Must(NewBucket("k", Hourly(10), Window(5, time.Minute)))
		admit(t, b, 5)
		if err := errors.Join(b.Hold(ctx, time.Hour), b.Resume(ctx)); err != nil {
			t.Fatal(err)
		}
		if all := states(t, b); all[0].Level != 5 || all[1].Level != 5 {
			t.Errorf("%+v", all)
		}
	})
}

func TestADecisionByTheCalendarDoesNotAllocateForIt(t *testing.T) {
	c := newCalendar([]store.Limit{{}, {Kind: store.Daily, Zone: "America/Los_Angeles"}, {Kind: store.Hourly}})
	at := unixOf(time.Now())
	if n := testing.AllocsPerRun(100, func() { c.at(at) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if p := c.at(at); p[0] != (store.Period{}) || p[1] != period(store.Daily, pacific, int64((at-store.Slack)/time.Second)) {
		t.Errorf("%+v", p)
	}
}

// A machine's clock may be set to any time. The calendar then stands at its end.
func TestAClockFarFromOurTimeBreaksNothing(t *testing.T) {
	c := newCalendar([]store.Limit{{Kind: store.Daily, Zone: "America/Los_Angeles", Capacity: 1}, {Kind: store.Monthly, Zone: "UTC", Capacity: 1}, {Kind: store.Hourly, Capacity: 1}})
	for _, at := range []time.Time{{}, time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(290_000_000_000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		op := store.Op{Limits: []store.Limit{{Kind: store.Daily, Zone: "America/Los_Angeles", Capacity: 1}, {Kind: store.Monthly, Zone: "UTC", Capacity: 1, Name: "month"}, {Kind: store.Hourly, Capacity: 1, Name: "hour"}},
			Periods: c.at(unixOf(at)), Action: store.Book, Costs: []store.Units{{1, 1, 1}}}
		if r := op.ApplyAt(new(store.Stored), 0, unixOf(at)); r.Untimely {
			t.Errorf("%v: %+v", at, r)
		}
	}
	for _, unix := range []time.Duration{math.MinInt64, math.MinInt64 + 1, -1, 0, math.MaxInt64} {
		if p := c.at(unix); len(p) != 3 || !(p[0].Begin < p[0].End && p[0].End < p[0].Next) {
			t.Errorf("%v: %+v", unix, p)
		}
	}
}
