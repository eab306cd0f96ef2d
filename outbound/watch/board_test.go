package watch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// A board shows any limiter, and changes none.
func TestAdd_ShowsAnyLimiter(t *testing.T) {
	question(t, "A nil limiter is an error of each call", func(t *testing.T, b *Board) {
		_, err := b.Add("api", nil).Acquire(bg, outbound.Cost{1})
		errorIf(t, !errors.Is(err, outbound.ErrInvalid), "%v", err)
		s := only(t, b)
		errorIf(t, s.Calls.ByError["invalid"] != 1 || s.Explain != nil, "%+v", s)
	})
	question(t, "A Keyed may drop what it could drop without the board", func(t *testing.T, b *Board) {
		idle := func(l outbound.Limiter) bool {
			i, ok := l.(interface{ Idle() bool })
			return ok && i.Idle()
		}
		l := b.Add("bucket", bucket(t, outbound.PerHour(1)))
		errorIf(t, !idle(l) || !idle(AddKeyed(b, "tenants", tenants(10, outbound.PerHour(1)), nil)("a")),
			"an empty bucket is not idle")
		if take(t, l); idle(l) || idle(b.Add("own", limiterFunc(nil))) {
			t.Error("a full bucket is idle, or a limiter without Idle")
		}
	})
	question(t, "A limiter may be observed on either side of the board", func(t *testing.T, b *Board) {
		observe := func(l outbound.Limiter) outbound.Limiter {
			return outbound.Observe(l, "", func(context.Context, outbound.Event) {})
		}
		own := bucket(t, outbound.PerHour(1))
		l := observe(b.Add("bucket", observe(observe(own))))
		b.Add("queue", observe(queue.New(own, queue.Config{})))
		take(t, l)
		hold(t, own, time.Hour)
		synctest.Wait()
		s := b.Snapshot(bg, Query{})
		for _, l := range s.Limiters {
			errorIf(t, !l.Bucket || len(l.Limits) != 1 || l.HeldFor != time.Hour || (l.Queue != nil) != (l.Name == "queue"),
				"%+v", l)
		}
		errorIf(t, len(s.Events) != 2, "%d events", len(s.Events))
		found, ok := outbound.As[*outbound.Bucket](l)
		errorIf(t, !ok || found != own, "%v, %v", found, ok)
		tenants := &outbound.Keyed[string]{}
		of := AddKeyed(b, "tenants", tenants, nil)
		type user interface {
			Use(func(outbound.Limiter) error) error
		}
		u, ok := outbound.As[user](of("acme"))
		errorIf(t, !ok || u != tenants.For("acme").(user), "%v, %v", u, ok)
	})
	question(t, "If several goroutines add a name at the same time, the last one counts. The events of the other buckets are ignored", func(t *testing.T, b *Board) {
		buckets := make([]*outbound.Bucket, 20)
		var all sync.WaitGroup
		for i := range buckets {
			buckets[i] = bucket(t, outbound.PerSecond(1))
			all.Go(func() { b.Add("api", buckets[i]) })
		}
		all.Wait()
		for _, one := range buckets {
			hold(t, one, time.Hour)
		}
		time.Sleep(time.Second)
		shown := bucketIn(b.shown[0].limiter)
		check(t, shown.Resume(bg))
		synctest.Wait()
		s := b.Snapshot(bg, Query{})
		errorIf(t, len(s.Events) != 2 || s.Events[0].Kind != "resumed", "%+v", s.Events)
	})
	question(t, "Under the race detector this fails if an action looks at a name while it is added", func(t *testing.T, b *Board) {
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { b.Add("api", bucket(t, outbound.PerSecond(1))) })
			all.Go(func() { AddKeyed(b, "api", tenants(5, outbound.PerSecond(1)), nil) })
			all.Go(func() { b.bucketOf("api", "") })
			all.Go(func() { b.Snapshot(bg, Query{}) })
		}
		all.Wait()
		l := only(t, b)
		errorIf(t, l.Name != "api", "%+v", l)
	})
	question(t, "No text has the key of a bucket, which may be a secret", func(t *testing.T, b *Board) {
		b.Add("api", bucket(t, outbound.PerHour(1)))
		away := newStore()
		away.fail(errors.New(`row "secret-key" is locked`))
		b.Add("away", shared(t, away, "secret-key", outbound.PerSecond(1)))
		b.Add("small", bucket(t, outbound.Limit{Capacity: 0.5, LeakRate: 1}))
		text := jsonOf(t, b.Snapshot(bg, Query{})) + metricsOf(b)
		errorIf(t, strings.Contains(text, "secret"), "%v", text)
		if l := called(t, b, "small"); l.Explain.Because != "never" || !strings.Contains(l.Explain.String(), `"small"`) {
			t.Errorf("%+v", l)
		}
		for range 5 { // a store that fails is asked once a second, however many look
			l := called(t, b, "away")
			errorIf(t, !strings.Contains(l.Err, "is locked") || l.Severity != Stopped || len(l.Trouble) == 0, "%+v", l)
		}
		equal(t, away.trips.Load(), 1, "requests within a second")
	})
}

// A name that is added again goes on with its counters, and has the state of the new limiter. The hold and the events of
// the former bucket are not its own.
func TestAdd_NameAgainContinuesCounting(t *testing.T) {
	for name, again := range map[string]func(*Board) outbound.Limiter{
		"Add": func(b *Board) outbound.Limiter {
			return b.Add("api", bucket(t, outbound.Limit{Capacity: 7, LeakRate: 1}))
		},
		"AddKeyed": func(b *Board) outbound.Limiter {
			return AddKeyed(b, "api", tenants(5, outbound.PerSecond(1)), nil)("a")
		},
	} {
		bubble(t, name, func(t *testing.T) {
			var b Board
			old := bucket(t, outbound.PerSecond(1))
			take(t, b.Add("api", old))
			hold(t, old, time.Hour)
			synctest.Wait()
			time.Sleep(time.Minute)
			take(t, again(&b))
			time.Sleep(time.Minute)
			s := called(t, &b, "api")
			errorIf(t, s.HeldTime != time.Minute || s.Calls.Admitted != 2 || name == "Add" && s.Limits[0].Capacity != 7, "%+v", s)
			errorIf(t, b.shown[0].meter.until != 0, "the hold is in force")
			events := len(b.events)
			hold(t, old, 2*time.Hour)
			synctest.Wait()
			errorIf(t, len(b.events) != events, "an event of a limiter that is not shown: %+v", b.events)
		})
	}
}
