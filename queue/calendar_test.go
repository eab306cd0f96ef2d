package queue

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A call that waits for the period after the next stays in the queue, although nothing can be reserved so
// far ahead yet. A call that cannot leave in time is refused immediately, also while the next hour is full.
func TestCalendar_LongQueueWaitsPeriodByPeriod(t *testing.T) {
	const n = 10
	bothWays(t, []outbound.Limit{outbound.Hourly(n)}, func(t *testing.T, b *outbound.Bucket) {
		q, begin := New(b, Config{}), time.Now() // at midnight
		all := comeAll(5*n, bg, q, 1)
		for _, r := range []struct {
			when        time.Duration
			q           *Queue
			wait, least time.Duration
		}{
			{90 * time.Second, q, 57 * time.Minute, 58 * time.Minute},
			{90 * time.Second, New(b, Config{}), 57 * time.Minute, 58 * time.Minute},
			{time.Hour + time.Second - ms, q, 50 * time.Minute, time.Hour},
		} {
			time.Sleep(r.when - time.Since(begin))
			if c := comeIn(t, r.wait, r.q, 1); c.refused().RetryAfter < r.least || c.took() > 0 {
				t.Errorf("after %v a wait of up to %v: %v after %v", r.when, r.wait, c.ended().err, c.took())
			}
		}
		pass(5 * time.Hour)
		for i, c := range all {
			if want := time.Duration(i/n) * time.Hour; !c.admitted() || c.took() < want || c.took() > want+2*time.Second {
				t.Errorf("call %d leaves after %v: %v", i, c.took(), c.ended().err)
			}
		}
	})
}

// A hold moves reservations over midnight. Their calls book again: the next day has not more calls
// than its limit, and the units that were booked in the day before return.
func TestCalendar_ReservationMovedToAnotherDayIsVoid(t *testing.T) {
	pacific, err := time.LoadLocation("America/Los_Angeles")
	if err != nil {
		t.Fatal(err)
	}
	const n = 100
	midnight := time.Date(2024, 11, 4, 0, 0, 0, 0, pacific) // after a day of 25 hours
	bothWays(t, []outbound.Limit{outbound.Daily(n, pacific), {Capacity: 2, LeakRate: 2}}, func(t *testing.T, b *outbound.Bucket) {
		time.Sleep(time.Until(midnight.Add(-20 * time.Second)))
		all := comeAll(2*n, bg, New(b, Config{}), 1) // some are refused, as more than a day away
		time.Sleep(17200 * ms)                       // with a reservation 2.5 s before midnight
		if err := b.Hold(bg, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		pass(0)
		before, _ := all.admitted()
		pass(12 * time.Hour)
		after, _ := all.admitted()
		if s, err := b.States(bg); err != nil || s[0].Level != n || after-before != n {
			t.Errorf("%d and then %d have left, level %+v (%v)", before, after-before, s, err)
		}
		pass(24 * time.Hour)
		if err := all.history(0).CheckWindow(float64(before+n+1), 12*time.Hour); err != nil {
			t.Error(err)
		}
	})
}
