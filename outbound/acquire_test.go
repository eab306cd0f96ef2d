package outbound

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// lateStore returns a store whose replies are true after 10 ms, and arrive after takes.
func lateStore(memory *FakeStore, takes time.Duration) StoreFunc {
	const way = 10 * time.Millisecond
	memory.Way = way
	return func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		r, err := memory.Update(ctx, key, op)
		if err != nil {
			return r, err
		}
		r.When, r.Received = time.Now(), time.Now().Add(way)
		if err = sleep(ctx, takes-way); err != nil && len(r.Charges) > 0 { // a store returns charges that its caller does not learn of
			_, _ = memory.Apply(key, &store.Op{Limits: op.Limits, Action: store.Book, Unused: r.Charges})
		}
		return r, err
	}
}

// An Acquire with late replies ends with its ctx, or with its second reply or the first after a second, whichever is later,
// and leaves nothing charged.
func TestAcquire_EndsInTimeWithLateReplies(t *testing.T) {
	for name, c := range map[string]struct {
		takes, ctx time.Duration // 0: the ctx does not end
		most       time.Duration
		want       error
		cancels    bool
	}{
		"no deadline":            {takes: 900 * time.Millisecond, most: 2700 * time.Millisecond},
		"two in a second":        {takes: 500 * time.Millisecond, most: 1500 * time.Millisecond},
		"three in a second":      {takes: 333 * time.Millisecond, most: time.Second},
		"no time for another":    {takes: 990 * time.Millisecond, most: 2970 * time.Millisecond},
		"less time for another":  {takes: 999 * time.Millisecond, most: 2997 * time.Millisecond},
		"a store that is slower": {takes: 3 * time.Second, most: 9 * time.Second},
		"asked for often":        {takes: 150 * time.Millisecond, most: 1050 * time.Millisecond},
		"its ctx ends while it asks again": {
			takes: 300 * time.Millisecond, ctx: 700 * time.Millisecond, most: 700 * time.Millisecond, want: context.DeadlineExceeded},
		"its ctx ends while the charge returns": {
			takes: 900 * time.Millisecond, ctx: 950 * time.Millisecond, most: 950 * time.Millisecond, want: context.DeadlineExceeded},
		"its ctx ends before a second request arrives": {
			takes: 200 * time.Millisecond, ctx: 205 * time.Millisecond, most: 205 * time.Millisecond, want: context.DeadlineExceeded},
		"its ctx is cancelled": {
			takes: 300 * time.Millisecond, ctx: 700 * time.Millisecond, most: 700 * time.Millisecond, want: context.Canceled, cancels: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := new(FakeStore)
			b := Must(NewSharedBucket(lateStore(s, c.takes), "k", Limit{Capacity: 10, LeakRate: 0.001}, InFlight(3)))
			caller, cancel := context.WithCancel(ctx)
			defer cancel()
			switch {
			case c.cancels:
				time.AfterFunc(c.ctx, cancel)
			case c.ctx > 0:
				caller, cancel = context.WithTimeout(ctx, c.ctx)
				defer cancel()
			}
			began := time.Now()
			_, err := b.Acquire(caller, Cost{10})
			took := time.Since(began)
			var broken *StoreError
			if c.want != nil && !errors.Is(err, c.want) || c.want == nil && (!errors.As(err, &broken) || !errors.Is(err, errLate)) {
				t.Errorf("%s: %v", name, err)
			}
			most := c.most
			if c.ctx == 0 {
				most += 3*c.takes + 10*time.Millisecond // each attempt asks for a slot first
			}
			errorIf(t, took > most, "%s: it took %v, want at most %v", name, took, most)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			states := states(t, b)
			for _, is := range states {
				errorIf(t, is.Level > 0.01,
					"%s: %v of %v are left after %d trips", name, is.Level, is.Limit, s.Requests.Load())
			}
		})
	}
}

// A call whose ctx has ended before it comes, or ends while the store has not replied, gets the ctx's
// own error, and counts as failed: there may be capacity.
func TestBucket_AcquireAfterADeadline(t *testing.T) {
	for name, of := range map[string]func() (*Bucket, error){
		"one limit":  func() (*Bucket, error) { return NewBucket("k", PerSecond(1)) },
		"two limits": func() (*Bucket, error) { return NewBucket("k", PerSecond(1), PerHour(100)) },
		"shared":     func() (*Bucket, error) { return NewSharedBucket(store.NewMemory(), "k", PerSecond(1)) },
		"slow":       func() (*Bucket, error) { return NewSharedBucket(&FakeStore{Way: time.Minute}, "k", PerSecond(1)) },
		"slow slots": func() (*Bucket, error) { return NewSharedBucket(&FakeStore{Way: time.Minute}, "k", InFlight(1)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(of())
			late, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			gone, end := context.WithCancel(t.Context())
			time.AfterFunc(2*time.Second, end)
			if !strings.HasPrefix(name, "slow") { // otherwise they end during the request
				time.Sleep(3 * time.Second)
			}
			for ctx, want := range map[context.Context]error{late: context.DeadlineExceeded, gone: context.Canceled} {
				kind := ""
				l := Observe(b, "", func(_ context.Context, e Event) { kind = e.Kind })
				_, err := l.Acquire(ctx, Cost{1})
				errorIf(t, err != want || kind != EventFailed, "%s: %v, %s; want %v", name, err, kind, want)
			}
			time.Sleep(time.Hour) // requests go on
		})
	}
}

// A call through a store takes the bucket one object, which its permit keeps, however many limits there are.
func TestAcquire_InAStoreAllocatesOneObject(t *testing.T) {
	wide := Limit{Capacity: 1e9, LeakRate: 1e9}
	b := Must(NewSharedBucket(store.NewMemory(), "k", wide, wide.Of(0, "second"), wide.Of(0, "third")))
	n := testing.AllocsPerRun(1000, func() {
		p, _ := b.Acquire(ctx, Cost{1})
		p.Done()
	})
	if n > 1 && !raced {
		t.Errorf("%v objects", n)
	}
}
