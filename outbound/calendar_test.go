package outbound

import (
	"errors"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// until moves the fake clock on.
func until(t *testing.T, when string) {
	t.Helper()
	at, err := time.Parse(time.RFC3339, when)
	fatalIf(t, err != nil || at.Before(time.Now()), "%v %v", when, err)
	time.Sleep(time.Until(at))
}

// A period is that of the zone, and an API counts in it.
func TestCalendar_PeriodsOfItsZone(t *testing.T) {
	bubble(t, "A day of a zone may have 23 or 25 hours", func(t *testing.T) {
		b := Must(NewBucket("youtube", Daily(10, pacific)))
		until(t, "2024-03-10T00:00:01-08:00") // of 23 hours
		at := went(t, b, 25)
		for i, want := range []string{0: "2024-03-10T08:00:01Z", 9: "2024-03-10T08:00:01Z", 10: "2024-03-11T07:00:01Z", 19: "2024-03-11T07:00:01Z", 20: "2024-03-12T07:00:01Z"} {
			if at := at[i].UTC().Format(time.RFC3339); want != "" && at != want {
				t.Errorf("call %d leaves at %v, want %v", i, at, want)
			}
		}
	})
	bubble(t, "Resume ends holds, and returns no units: the API still counts them", func(t *testing.T) {
		time.Sleep(time.Minute)
		b := Must(NewBucket("k", Hourly(10), Window(5, time.Minute)))
		admit(t, b, 5)
		must(t, errors.Join(b.Hold(ctx, time.Hour), b.Resume(ctx)))
		equal(t, levels(t, b), [2]float64{5, 5}, "levels")
	})
}

// A month from the day of billing on, and a week from Sunday, in memory, in a store, and with other
// limits: the 31st of January, the last of February, the 31st of March.
func TestCalendar_BeginsOnTheDayOfFrom(t *testing.T) {
	eachBucket(t, func(t *testing.T, mine, other *Bucket) {
		must(t, mine.SetLimits(ctx, Monthly(20, time.UTC).From(31), Weekly(10, time.UTC).From(7)))
		until(t, "2000-01-29T12:00:00Z") // a Saturday
		for i, want := range []string{0: "01-29T12:00:00Z", 9: "01-29T12:00:00Z", 10: "01-30T00:00:01Z", 19: "01-30T00:00:01Z",
			20: "02-06T00:00:01Z", 30: "02-13T00:00:01Z", 39: "02-13T00:00:01Z", 40: "02-29T00:00:01Z", 50: "03-05T00:00:01Z", 60: "03-31T00:00:01Z"} {
			at := went(t, []*Bucket{mine, other}[i%2], 1)[0].UTC().Format("01-02T15:04:05Z")
			errorIf(t, want != "" && at != want, "call %d leaves at %v, want %v", i, at, want)
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
				s := states(t, b)[0]
				errorIf(t, s.EmptyIn != time.Until(reset), "%v: reset in %v, want %v", at, s.EmptyIn, time.Until(reset))
				admit(t, b, 10)
				if s := states(t, b)[0]; s.EmptyIn != time.Until(reset) || s.NextIn != 0 {
					t.Errorf("%v, used: reset in %v, want %v; %+v", at, s.EmptyIn, time.Until(reset), s)
				}
			}
		}
		s, err := mine.Fillup(ctx, Cost{100})
		errorIf(t, err != nil || !s.Full || s.EmptyIn != 2500*time.Millisecond || s.NextIn < s.EmptyIn, "%+v, %v", s, err)
		time.Sleep(2500 * time.Millisecond)
		s = states(t, mine)[0]
		errorIf(t, s.EmptyIn != 31*24*time.Hour || s.Level != 0, "%+v", s)
	})
}
