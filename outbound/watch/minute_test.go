package watch

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Each call is counted once when many come at the same time into a new second, long after its mark was used, while a
// board looks.
func TestMinute_CountsEachCallOnce(t *testing.T) {
	var m meter
	const callers, calls = 4, 20
	read := func(at time.Duration) *Minute {
		var l Limiter
		m.read(&l, at, true)
		return l.Minute
	}
	for sec := range 3 * keptSeconds {
		at := before + time.Duration(sec)*time.Second + time.Second/2
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range calls {
					m.admit(at, 20*time.Millisecond, &outbound.Cost{2})
				}
			})
		}
		all.Go(func() {
			for _, s := range read(at).Seconds {
				errorIf(t, s.Admitted > callers*calls, "%d calls in a second", s.Admitted)
			}
		})
		all.Wait()
		r, sum := read(at), uint64(0)
		for _, s := range r.Seconds {
			sum += s.Admitted
		}
		if n := uint64(callers * calls * min(60, sec+1)); r.Seconds[59].Admitted != callers*calls || sum != n || r.Sum.Admitted != n {
			t.Fatalf("second %d: %d calls, %d and %d in the minute, want %d", sec, r.Seconds[59].Admitted, sum, r.Sum.Admitted, n)
		}
		if used := m.used(at, time.Minute, 0); sec > 60 && used != 2*callers*calls*60.5 { // half of the first second lies in it
			t.Fatalf("second %d: %v units in a minute", sec, used)
		}
	}
	m.admit(before, 0, &outbound.Cost{1}) // a call that comes late is counted in the latest second
	r := read(before + 3*keptSeconds*time.Second - 1)
	errorIf(t, r.Seconds[59].Admitted != callers*calls+1 || r.Sum.Admitted != 60*callers*calls+1, "%+v", r)
}

// A second in which nothing happened counts nothing, and has no mark.
func TestMinute_QuietSecondCountsNothing(t *testing.T) {
	var m meter
	at := func(sec int) time.Duration { return before + time.Duration(sec)*time.Second }
	for _, sec := range []int{0, 1, 30, 100, 101, 101, 159} {
		m.admit(at(sec), 0, &outbound.Cost{1})
	}
	for now, want := range map[int]map[int]uint64{
		159: {100: 1, 101: 2, 159: 1}, 160: {101: 2, 159: 1}, 161: {159: 1}, 218: {159: 1}, 219: {}, 1000: {},
	} {
		var l Limiter
		m.read(&l, at(now), true)
		sum := uint64(0)
		for i, s := range l.Minute.Seconds {
			sum += s.Admitted
			errorIf(t, s.Admitted != want[now-59+i], "at %d: %d calls in second %d", now, s.Admitted, now-59+i)
		}
		errorIf(t, l.Minute.Sum.Admitted != sum || (l.Minute.P50 < 0) != (sum == 0), "at %d: %+v", now, l.Minute)
	}
}

// The quantiles are those of the waits in the last minute.
func TestMinute_QuantilesOfWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		wait := time.Duration(0)
		l := b.Add("api", limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
			time.Sleep(wait)
			return outbound.Permit{}, nil
		}))
		acquire := func(n int, w time.Duration) {
			wait = w
			for range n {
				take(t, l)
			}
		}
		expect := func(p50, p99 time.Duration) {
			t.Helper()
			m := only(t, &b).Minute
			near := func(got, want time.Duration) bool { return got >= min(want, want*3/4) && got <= max(want, want*4/3) }
			errorIf(t, !near(m.P50, p50) || !near(m.P99, p99),
				"p50 %v and p99 %v, want about %v and %v", m.P50, m.P99, p50, p99)
		}
		expect(-1, -1)
		acquire(98, 0)
		acquire(2, 400*time.Millisecond)
		expect(0, 300*time.Millisecond)
		time.Sleep(65 * time.Second)
		if m := only(t, &b).Minute; m.P50 >= 0 || m.P99 >= 0 {
			t.Errorf("a quiet minute: %v, %v", m.P50, m.P99)
		}
		acquire(5, 10*time.Second)
		expect(8*time.Second, 10*time.Second)
	})
}
