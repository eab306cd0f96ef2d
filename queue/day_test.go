package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A level that is wrong, by whatever fault, or a limit that takes months: who has not
// said how long to wait hears of it, and does not wait for ever.
func TestNobodyWaitsForMoreThanADayUnlessAsked(t *testing.T) {
	const day = 24 * time.Hour
	month := outbound.Limit{Capacity: 10, LeakRate: 10 / (30 * day).Seconds()}
	for name, of := range map[string]func() *outbound.Bucket{
		"in memory": func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("k", month)) },
		"shared": func() *outbound.Bucket {
			return outbound.Must(outbound.NewSharedBucket(outbound.NewMemory(), "k", month))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := of()
			if _, err := b.Fillup(bg, outbound.Cost{10}); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			q := New(b, Config{})
			var refused [5]error
			for i := range refused {
				go func() { _, refused[i] = q.Acquire(bg, outbound.Cost{10}) }()
			}
			synctest.Wait()
			time.Sleep(time.Second)
			for i, err := range refused {
				var full *outbound.ThrottledError
				if !errors.As(err, &full) || !errors.Is(err, ErrFar) || full.RetryAfter < 29*day {
					t.Errorf("%s: the call %d: %v", name, i, err)
				}
			}
			if s, err := b.State(bg); err != nil || s.Level > 10 || q.Len() != 0 {
				t.Errorf("%s: level %v (%v), %d wait", name, s.Level, err, q.Len())
			}
			// One that fits within a day waits for it.
			if p, err := q.Acquire(bg, outbound.Cost{0.3}); err != nil || time.Since(begin) < day/2 {
				t.Errorf("%s: within a day: %v after %v", name, err, time.Since(begin))
			} else {
				p.Done()
			}
			asked, cancel := context.WithTimeout(bg, 40*day)
			defer cancel()
			for how, c := range map[string]struct {
				q   *Queue
				ctx context.Context
			}{"MaxWait": {New(b, Config{MaxWait: 40 * day}), bg}, "a deadline": {q, asked}} {
				begin = time.Now()
				if _, err := c.q.Acquire(c.ctx, outbound.Cost{1}); err != nil || time.Since(begin) < 2*day {
					t.Errorf("%s, by %s: %v after %v", name, how, err, time.Since(begin))
				}
			}
		})
	}
}
