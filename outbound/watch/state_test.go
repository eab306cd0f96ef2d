package watch

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// How a board learns the state of buckets.
func TestSnapshot_AsksTheStoreLittle(t *testing.T) {
	question(t, "A look asks the store once for each shared bucket that it shows, and for no other", func(t *testing.T, b *Board) {
		// Without a look there is no request, and looks within a second share one.
		s := newStore()
		for i := range 10 {
			b.Add("api "+strconv.Itoa(i), queue.New(shared(t, s, strconv.Itoa(i), outbound.PerSecond(1)), queue.Config{}))
		}
		time.Sleep(time.Hour)
		equal(t, s.trips.Load(), 0, "requests without a look")
		for range 3 {
			s := b.Snapshot(bg, Query{Rows: 4})
			errorIf(t, len(s.Limiters) != 4 || s.Hidden != 6 || s.Limiters[0].Explain == nil || !s.Limiters[0].Shared, "%+v", s)
		}
		equal(t, s.trips.Load(), 4, "requests for 4 limiters within a second")
		time.Sleep(time.Second)
		b.Snapshot(bg, Query{Rows: 4})
		equal(t, s.trips.Load(), 8, "requests for 4 limiters in two seconds")
	})
	question(t, "With a store that hangs, a look ends within a second, and says how old the state is. Looks at the same time share a request for each bucket", func(t *testing.T, b *Board) {
		s := newStore()
		for i := range 20 {
			b.Add("api "+strconv.Itoa(i), shared(t, s, strconv.Itoa(i), outbound.PerSecond(1)))
		}
		b.Snapshot(bg, Query{})
		s.hangs.Store(true)
		time.Sleep(10 * time.Second)
		begin := time.Now()
		var all sync.WaitGroup
		for i := range 20 {
			time.Sleep(10 * time.Millisecond)
			all.Go(func() {
				if i%2 == 0 {
					metricsOf(b)
					return
				}
				s := b.Snapshot(bg, Query{})
				for _, l := range s.Limiters {
					errorIf(t, l.Err != "no answer within 800ms" || l.Severity != Stopped || s.At.Sub(l.Explain.AsOf) < 10*time.Second || !strings.HasPrefix(l.Trouble[0], "Its store does not answer"),
						"%+v", l)
				}
			})
		}
		all.Wait()
		if n := s.trips.Load(); n != 40 || time.Since(begin) > patience+10*time.Millisecond {
			t.Errorf("%d requests, want 2 for each bucket; %v", n, time.Since(begin))
		}
		s.hangs.Store(false)
		time.Sleep(time.Second)
		if s := b.Snapshot(bg, Query{}); s.Limiters[0].Err != "" {
			t.Errorf("after the store is available again: %+v", s.Limiters[0])
		}
	})
	question(t, "Two names around one shared bucket each show what is their own", func(t *testing.T, b *Board) {
		one := shared(t, newStore(), "k", outbound.PerMinute(1))
		b.Add("bucket", one)
		stop := wait(b.Add("queue", queue.New(one, queue.Config{})), 3)
		defer stop()
		time.Sleep(time.Second)
		for name, want := range map[string]int{"bucket": 0, "queue": 2} {
			l := called(t, b, name)
			errorIf(t, l.Explain.Ahead != want, "%s: %d are ahead, want %d", name, l.Explain.Ahead, want)
		}
	})
	question(t, "What is left of a hold passes while the store is unavailable, and no metric has an unknown value", func(t *testing.T, b *Board) {
		s := newStore()
		one := shared(t, s, "k", outbound.PerSecond(1))
		b.Add("api", one)
		hold(t, one, time.Hour)
		l := only(t, b)
		fatalIf(t, l.HeldFor != time.Hour, "held for %v", l.HeldFor)
		s.fail(store.ErrUnavailable)
		time.Sleep(50 * time.Second)
		if l := only(t, b); l.HeldFor != 59*time.Minute+10*time.Second || !strings.Contains(l.Trouble[0], "50 s old") {
			t.Errorf("held for %v: %q", l.HeldFor, l.Trouble)
		}
		lacks(t, b, "hold_remaining_seconds{", "speed{", "limit_level{")
	})
	bubble(t, "A limiter whose Explain panics does not end the program, and later looks ask it again", func(t *testing.T) {
		for _, one := range []*outbound.Bucket{shared(t, newStore(), "k", outbound.PerSecond(1)), bucket(t, outbound.PerSecond(1))} {
			var b Board
			x := &explaining{bucket: one, explain: func() (outbound.Explanation, error) { panic("own") }}
			b.Add("api", x)
			l := only(t, &b)
			errorIf(t, l.Err == "", "%+v", l)
			x.explain = func() (outbound.Explanation, error) { return outbound.Explanation{}, nil }
			time.Sleep(time.Second)
			l = only(t, &b)
			errorIf(t, l.Err != "" || l.Explain == nil, "%+v", l)
		}
	})
	question(t, "States that no look shows are dropped", func(t *testing.T, b *Board) {
		of := AddKeyed(b, "api", &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			return outbound.NewSharedBucket(newStore(), key, outbound.PerSecond(1))
		}}, func(key string) string { return "key " + key })
		for i := range 20 {
			take(t, of(strconv.Itoa(i)))
		}
		b.Snapshot(bg, Query{})
		equal(t, len(b.shown[0].states), 20, "states are remembered")
		time.Sleep(2 * time.Minute)
		b.Snapshot(bg, Query{Search: "key 7"})
		equal(t, len(b.shown[0].states), 1, "states are remembered")
	})
	question(t, "A look whose request has ended reports no failure of a store, and sees as much", func(t *testing.T, b *Board) {
		b.Add("api", shared(t, newStore(), "k", outbound.PerSecond(1)))
		ctx, cancel := context.WithCancel(bg)
		cancel()
		l := b.Snapshot(ctx, Query{}).Limiters[0]
		errorIf(t, l.Severity != Calm || l.Err != "" || l.Explain == nil, "%+v", l)
	})
	question(t, "The trouble of a limiter without a store names no store", func(t *testing.T, b *Board) {
		b.Add("api", queue.New(bucket(t, outbound.PerSecond(1)), queue.Config{MaxLen: -1}))
		l := only(t, b)
		text := strings.Join(l.Trouble, " ")
		errorIf(t, l.Severity != Stopped || strings.Contains(text, "store") || !strings.Contains(text, "invalid argument"), "%+v", l)
		var none *queue.Queue
		b.Add("none", none)
		n := len(b.Snapshot(bg, Query{}).Limiters)
		errorIf(t, n != 2, "%d are shown", n)
	})
}

// explaining is a limiter with an Explain of its own.
type explaining struct {
	limiterFunc
	bucket  *outbound.Bucket
	explain func() (outbound.Explanation, error)
}

func (e *explaining) Bucket() *outbound.Bucket { return e.bucket }

func (e *explaining) Explain(context.Context, outbound.Cost) (outbound.Explanation, error) {
	return e.explain()
}
