package watch

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// When a quota will be used up.
func TestForecast_IsShown(t *testing.T) {
	question(t, "A quota that will be used up has a metric from early on. From 80 % on the page and an event say so, and the log", func(t *testing.T, board *Board) {
		var log lines
		b := bucket(t, outbound.Daily(1_000, time.UTC))
		defer b.Observe(Log(log.logger()))()
		l := board.Add("api", b)
		time.Sleep(2 * time.Second)
		for i := range 810 {
			if i == 750 {
				exports(t, board, `limit_used_up_in_seconds{limiter="api",limit="1000 per day UTC"} 15000`)
				l := only(t, board)
				errorIf(t, len(l.Trouble) > 0 || l.Severity != Calm, "at 75 %%: %v", l.Trouble)
			}
			time.Sleep(time.Minute)
			take(t, l)
		}
		synctest.Wait()
		is := only(t, board)
		want := "1000 per day UTC is used up in 3 h 10 min, if calls go on leaving as fast."
		errorIf(t, len(is.Trouble) != 1 || is.Trouble[0] != want || is.Severity != Busy, "%q, want %q", is.Trouble, want)
		s := board.Snapshot(bg, Query{})
		errorIf(t, len(s.Events) != 1 || s.Events[0].Kind != outbound.EventRunsOut, "events %+v", s.Events)
		all := log.all()
		errorIf(t, len(all) != 1 || !strings.Contains(all[0], `limit="1000 per day UTC" in=3h20m`), "%q", all)
	})
	question(t, "A Keyed has no forecast for its keys. A key whose bucket New observes has one, on the page and in its Explain", func(t *testing.T, board *Board) {
		keyed := &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(key, outbound.Daily(100, time.UTC))
			if key == "observed" {
				t.Cleanup(b.Observe(func(outbound.Event) {}))
			}
			return b, err
		}}
		of := AddKeyed(board, "tenants", keyed, itself)
		for range 50 {
			time.Sleep(10 * time.Minute)
			take(t, of("observed"))
			take(t, of("plain"))
		}
		keys := 0
		for _, l := range board.Snapshot(bg, Query{}).Limiters {
			if l.Label == "" {
				continue
			}
			keys++
			var e outbound.Explanation
			err := keyed.Use(l.Label, func(b outbound.Limiter) (err error) {
				e, err = b.(*outbound.Bucket).Explain(bg, outbound.Cost{1})
				return err
			})
			if sees := l.Limits[0].UsedUpIn > 8*time.Hour; err != nil || sees != (l.Label == "observed") || e.States[0].UsedUpIn != l.Limits[0].UsedUpIn {
				t.Errorf("%s is used up in %v, and by its Explain in %v (%v)", l.Label, l.Limits[0].UsedUpIn, e.States[0].UsedUpIn, err)
			}
		}
		errorIf(t, keys != 2, "%d keys have a row, want 2", keys)
	})
}
