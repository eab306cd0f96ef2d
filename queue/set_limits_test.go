package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A waiting call above the capacity of new limits is refused immediately, and the others leave.
func TestSetLimits_RefusesACostAboveTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1})
		q := New(b, Config{})
		admitted(t, q, 10)
		all := calls{come(bg, q, 1), come(bg, q, 9), come(bg, q, 2)}
		must(t, b.SetLimits(bg, outbound.Limit{Capacity: 5, LeakRate: 1}))
		if synctest.Wait(); !errors.Is(all[1].ended().err, outbound.ErrTooLarge) || q.Len() != 2 {
			t.Errorf("%d wait at the change, and the large call has %v", q.Len(), all[1].ended().err)
		}
		pass(time.Minute)
		if n, _ := all.admitted(); n != 2 {
			t.Errorf("%v, %v", all[0].ended().err, all[2].ended().err)
		}
	})
}

// A reservation far away that was booked under the old limits binds no call. Waiting calls leave by
// the new limits, immediately if this process has set them, else within newsCheck.
func TestSetLimits_RaisedLimitCountsForWaitingCalls(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		bothWays(t, []outbound.Limit{outbound.PerHour(1)}, func(t *testing.T, b *outbound.Bucket) {
			most := time.Second + 500*ms // reservations within the next second stay as they are
			setter := b
			if elsewhere {
				m := store.NewMemory()
				b, setter = shared(t, m, outbound.PerHour(1)), shared(t, m, outbound.PerHour(1))
				most += newsCheck
			}
			all := comeAll(4, bg, New(b, Config{}), 1)
			time.Sleep(10*time.Minute + 3*time.Second)
			must(t, setter.SetLimits(bg, outbound.PerSecond(10)))
			pass(most)
			if n, _ := all.admitted(); n != 4 {
				t.Errorf("elsewhere %v: %d left %v after the change", elsewhere, n, most)
			}
			noError(t, all.history(0).Check(1, 10, 0.05))
			pass(3 * time.Hour)
		})
	}
}

// A program that reads its configuration each second sets the same limits each second. That delays no call.
func TestSetLimits_ReloadEachSecondCostsNoCall(t *testing.T) {
	limits := []outbound.Limit{outbound.PerSecond(10), outbound.PerHour(5_000).Burst(500).Of(0, "hour")}
	for _, every := range []time.Duration{time.Hour, time.Second, 50 * ms} {
		bothWays(t, limits, func(t *testing.T, b *outbound.Bucket) {
			ctx, cancel := context.WithCancel(bg)
			go func() {
				for time.Sleep(every); ctx.Err() == nil; time.Sleep(every) {
					noError(t, b.SetLimits(bg, limits...))
				}
			}()
			all := comeAll(20, bg, New(b, Config{}), 1)
			pass(2 * time.Second)
			for i, c := range all {
				if want := time.Duration(i)*101*ms + ms; !c.admitted() || c.took() > want {
					t.Errorf("with a reload every %v call %d takes %v: %v", every, i, c.took(), c.ended().err)
				}
			}
			cancel()
			pass(every)
		})
	}
}

// A limit that is lowered leaves the reservations of the next second as they are.
func TestSetLimits_LoweredLimitKeepsNearReservations(t *testing.T) {
	bothWays(t, []outbound.Limit{{Capacity: 1, LeakRate: 2}}, func(t *testing.T, b *outbound.Bucket) {
		all := comeAll(2, bg, New(b, Config{MaxWait: time.Second}), 1)
		pass(100 * ms)
		must(t, b.SetLimits(bg, outbound.Limit{Capacity: 1, LeakRate: 0.1}))
		pass(time.Minute)
		all[1].wantWait(t, 500*ms)
	})
}
