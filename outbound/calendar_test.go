package outbound

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// until moves the fake clock on.
func until(t *testing.T, when string) {
	t.Helper()
	at, err := time.Parse(time.RFC3339, when)
	if err != nil || at.Before(time.Now()) {
		t.Fatal(when, err)
	}
	time.Sleep(time.Until(at))
}

// A day of a zone may have 23 or 25 hours.
func TestCalendar_DayBeginsAtMidnightOfItsZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("youtube", Daily(10, pacific)))
		until(t, "2024-03-10T00:00:01-08:00") // of 23 hours
		at := went(t, b, 25)
		for i, want := range []string{0: "2024-03-10T08:00:01Z", 9: "2024-03-10T08:00:01Z", 10: "2024-03-11T07:00:01Z", 19: "2024-03-11T07:00:01Z", 20: "2024-03-12T07:00:01Z"} {
			if at := at[i].UTC().Format(time.RFC3339); want != "" && at != want {
				t.Errorf("call %d leaves at %v, want %v", i, at, want)
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

// A month's limit is a budget that is full once it is spent.
func TestCalendar_MonthIsABudget(t *testing.T) {
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
func TestCalendar_StateHasTheReset(t *testing.T) {
	eachBucket(t, func(t *testing.T, mine, other *Bucket) {
		must(t, mine.SetLimits(ctx, Monthly(100, time.UTC), Window(1000, time.Hour)))
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

// Resume ends holds, and returns no units: the API still counts them.
func TestCalendar_ResumeReturnsNoUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute)
		b := Must(NewBucket("k", Hourly(10), Window(5, time.Minute)))
		admit(t, b, 5)
		must(t, errors.Join(b.Hold(ctx, time.Hour), b.Resume(ctx)))
		if all := states(t, b); all[0].Level != 5 || all[1].Level != 5 {
			t.Errorf("%+v", all)
		}
	})
}
