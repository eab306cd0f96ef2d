package jobs

import (
	"fmt"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// All workers were away, and come back to a load of nine tenths of the rate. The jobs that are late
// do not lose their turn to those that come on time, again and again.
func TestOrder_LateJobsAreNotOvertakenForLong(t *testing.T) {
	limit := outbound.Limit{Capacity: 1, LeakRate: 10}
	bothWays(t, Config{}, []outbound.Limit{limit}, func(t *testing.T, line func() *Scheduler) {
		const late = 600
		lines, s, news := []*Scheduler{line(), line(), line()}, &punctual{t: t}, &punctual{t: t}
		places := book(t, lines[0], late)
		time.Sleep(70 * time.Second)
		begin := time.Now()
		for i, p := range places {
			s.start(fmt.Sprint(i), lines[i%3], p.Ticket, one)
		}
		news.jobs.Go(func() {
			for i := range 9 * 300 {
				time.Sleep(time.Second / 9)
				news.startIn(0, fmt.Sprint(i), lines[i%3], "", one)
			}
		})
		s.jobs.Wait()
		took := time.Since(begin)
		t.Logf("%d late jobs take %v, %d runs, and up to %d of one", late, took, s.sum(), s.most())
		if took > 2*time.Minute || s.most() > 20 { // 60 s at the rate alone
			t.Errorf("%d late jobs take %v, and up to %d runs", late, took, s.most())
		}
		news.jobs.Wait()
		if took = time.Since(begin); took > 345*time.Second || news.most() > 20 { // 330 s at the rate alone
			t.Errorf("with the others it is %v, and up to %d runs", took, news.most())
		}
		for at, units := range news.history.All() {
			s.history.Add(at, units)
		}
		s.check(limit)
	})
}
