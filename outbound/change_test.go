package outbound

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// changeLog collects a bucket's events.
type changeLog struct {
	mu    sync.Mutex
	all   []Event
	texts []string // of changes of limits, as of the last expect
}

func (c *changeLog) add(x Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, x)
}

// expect compares the events since the last time. It asks for the state first, which reports the end of a hold and the
// changes of another process.
func (c *changeLog) expect(t *testing.T, b *Bucket, what string, want ...Event) {
	t.Helper()
	states(t, b)
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.texts = nil
	for i := range c.all {
		if e := &c.all[i]; e.Kind == EventLimits {
			c.texts = append(c.texts, e.Before+" -> "+e.Limits)
			e.Before, e.Limits = "", ""
		}
	}
	errorIf(t, !slices.Equal(c.all, want), "%s: events %+v\nwant %+v", what, c.all, want)
	c.all = nil
}

// eachBucket runs f with a bucket with a word, one without, and the buckets of two processes.
func eachBucket(t *testing.T, f func(t *testing.T, mine, other *Bucket)) {
	one := Limit{Capacity: 10, LeakRate: 1}
	for name, limits := range map[string][]Limit{"one limit": {one}, "two limits": {one, one.Of(1, "other")}, "shared": {one}} {
		bubble(t, name, func(t *testing.T) {
			mine := Must(NewBucket("k", limits...))
			other := mine
			if name == "shared" {
				s := store.NewMemory()
				mine, other = Must(NewSharedBucket(s, "k", limits...)), Must(NewSharedBucket(s, "k", limits...))
			}
			f(t, mine, other)
		})
	}
}

// An observer learns once of each change, and of nothing else.
func TestBucketObserve_Reports(t *testing.T) {
	for name, does := range map[string]func(t *testing.T, mine, other *Bucket, c *changeLog){
		"a hold, a longer one, and the end by time or by a Resume": func(t *testing.T, mine, other *Bucket, c *changeLog) {
			c.expect(t, mine, "nothing has happened")
			hold := func(d time.Duration) { must(t, other.Hold(ctx, d)) }
			hold(time.Minute)
			c.expect(t, mine, "held", Event{Kind: EventHeld, Hold: time.Minute})
			hold(time.Second)
			c.expect(t, mine, "held for less than it is")
			time.Sleep(10 * time.Second)
			hold(time.Minute)
			c.expect(t, mine, "held for longer", Event{Kind: EventExtended, Hold: time.Minute})
			time.Sleep(time.Minute - 1)
			c.expect(t, mine, "a nanosecond before the end")
			time.Sleep(time.Nanosecond)
			c.expect(t, mine, "at the end", Event{Kind: EventReleased, Hold: 70 * time.Second})
			hold(time.Second)
			c.expect(t, mine, "held again", Event{Kind: EventHeld, Hold: time.Second})
			time.Sleep(time.Minute)
			hold(time.Hour)
			c.expect(t, mine, "held long after an end that no operation has seen", Event{Kind: EventReleased, Hold: time.Second}, Event{Kind: EventHeld, Hold: time.Hour})
			must(t, other.Resume(ctx))
			c.expect(t, mine, "resumed", Event{Kind: EventResumed})
			time.Sleep(3 * time.Hour)
			c.expect(t, mine, "idle for long")
		},
		"a refusal is a hold with its reason and a lower speed, and what is forgotten is no event": func(t *testing.T, mine, other *Bucket, c *changeLog) {
			p := mustAcquire(t, other)
			p.Done()
			p = mustAcquire(t, other)
			p.Answered(Answer{Kind: AnswerRefused, Wait: 5 * time.Second, Reason: "rate"})
			p.Done()
			c.expect(t, mine, "refused", Event{Kind: EventHeld, Hold: 5 * time.Second, Reason: "rate"}, Event{Kind: EventSlowed, Speed: 0.9})
			p.Refused(2 * time.Second)
			c.expect(t, mine, "refused with less")
			time.Sleep(5 * time.Hour) // all of it is forgotten, and a new life begins
			c.expect(t, mine, "forgotten", Event{Kind: EventReleased, Hold: 5 * time.Second})
			mustAcquire(t, mine).Done()
			mustAcquire(t, mine).Done()
			time.Sleep(time.Minute)
			c.expect(t, mine, "as new")
		},
		"an exhausted quota is a hold with that reason": func(t *testing.T, mine, other *Bucket, c *changeLog) {
			p := mustAcquire(t, other)
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{9, 9, 0, 0}, Wait: time.Minute}) // the zeros are of units that no limit counts
			c.expect(t, mine, "enough remains")
			for range 3 {
				mustAcquire(t, other)
			}
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{3, 3, -1, -1}, Wait: time.Minute})
			c.expect(t, mine, "as much as has left since", Event{Kind: EventHeld, Hold: time.Minute, Reason: "exhausted"})
		},
		"each change of limits, and none for the same limits": func(t *testing.T, mine, other *Bucket, c *changeLog) {
			c.expect(t, mine, "nothing")
			set := func(limits ...Limit) { must(t, other.SetLimits(ctx, limits...)) }
			set(Limit{Capacity: 10, LeakRate: 2})
			c.expect(t, mine, "set", Event{Kind: EventLimits})
			set(Limit{Capacity: 10, LeakRate: 2})
			c.expect(t, mine, "set to what they are")
			set(Limit{Capacity: 10, LeakRate: 2}, Limit{Capacity: 5, LeakRate: 2, Name: "more"})
			c.expect(t, mine, "one more", Event{Kind: EventLimits})
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachBucket(t, func(t *testing.T, mine, other *Bucket) {
				var c changeLog
				defer mine.Observe(c.add)()
				does(t, mine, other, &c)
			})
		})
	}
}

// A new observer first learns what is in force, and a stopped one learns nothing more.
func TestBucketObserve_ReportsWhatIsInForce(t *testing.T) {
	eachBucket(t, func(t *testing.T, mine, other *Bucket) {
		p := mustAcquire(t, other)
		p.Done()
		p = mustAcquire(t, other)
		p.Refused(time.Minute)
		var early, late changeLog
		defer mine.Observe(early.add)()
		stop := mine.Observe(late.add)
		early.expect(t, mine, "in force", Event{Kind: EventHeld, Hold: time.Minute, Reason: "rate"}, Event{Kind: EventSlowed, Speed: 0.9})
		stop()
		stop()
		must(t, other.Resume(ctx))
		early.expect(t, mine, "resumed", Event{Kind: EventResumed})
		late.expect(t, mine, "until it was stopped", Event{Kind: EventHeld, Hold: time.Minute, Reason: "rate"}, Event{Kind: EventSlowed, Speed: 0.9})
	})
}

// A function that observes a bucket costs it little, and is told the truth.
func TestBucketObserve_Functions(t *testing.T) {
	bubble(t, "A key that the store has lost reports no Resume", func(t *testing.T) {
		s := new(FakeStore)
		mine, other := Must(NewSharedBucket(s, "k", Limit{Capacity: 10, LeakRate: 1})), Must(NewSharedBucket(s, "k", Limit{Capacity: 10, LeakRate: 1}))
		var c changeLog
		defer mine.Observe(c.add)()
		c.expect(t, mine, "nothing has happened")
		time.Sleep(time.Second)
		s.Lose()
		mustAcquire(t, other).Refused(time.Minute)
		c.expect(t, mine, "held", Event{Kind: EventHeld, Hold: time.Minute, Reason: "rate"})
	})
	bubble(t, "A slow function delays no call, and may use the bucket", func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
		var c changeLog
		defer b.Observe(func(x Event) {
			c.add(x)
			time.Sleep(time.Second)
			if x.Kind == EventHeld {
				_ = b.Resume(ctx)
			}
		})()
		begin := time.Now()
		_ = b.Hold(ctx, time.Hour)
		_, err := b.Acquire(ctx, Cost{1})
		errorIf(t, err == nil || time.Since(begin) != 0, "after %v: %v", time.Since(begin), err)
		time.Sleep(time.Minute)
		errorIs(t, errOf(b.Acquire(ctx, Cost{1})), nil, "the error")
		c.expect(t, b, "all", Event{Kind: EventHeld, Hold: time.Hour}, Event{Kind: EventResumed})
	})
	bubble(t, "A slow function is called with one change after the other, and once more at most when it is stopped", func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
		var calls, running atomic.Int32
		stop := b.Observe(func(Event) {
			calls.Add(1)
			errorIf(t, running.Add(1) > 1, "two changes at the same time")
			time.Sleep(time.Second)
			running.Add(-1)
		})
		for range 3 {
			must(t, errors.Join(b.Hold(ctx, time.Hour), b.Resume(ctx)))
		}
		time.Sleep(1500 * time.Millisecond)
		stop()
		time.Sleep(time.Minute)
		n := calls.Load()
		errorIf(t, n < 2 || n > 3, "%d changes, the second during stop", n)
	})
	t.Run("A nil function costs a bucket nothing, and a stopped one is dropped", func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
		b.Observe(nil)()
		errorIf(t, b.core.Slow(), "a nil function has made a slowPath")
		b.Observe(func(Event) {})()
		errorIf(t, b.core.Observed() != nil, "what was stopped is kept")
	})
	t.Run("A permit that is dropped without Done is an event, once", func(t *testing.T) {
		b := Must(NewBucket("k", InFlight(2)))
		events := make(chan Event, 10)
		defer b.Observe(func(e Event) { events <- e })()
		mustAcquire(t, b).Done()
		forget(t, b)
		eventually(t, "idle", b.Idle)
		states(t, b)
		select {
		case c := <-events:
			errorIf(t, c != (Event{Kind: EventForgotten, Calls: 1}), "events %+v", c)
		case <-time.After(time.Minute):
			t.Error("no event")
		}
		states(t, b)
		errorIf(t, len(events) > 0, "%d more events", len(events))
	})
}
