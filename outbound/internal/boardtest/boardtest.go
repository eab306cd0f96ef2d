// Package boardtest fills a [watch.Board] for the tests of the packages that export its metrics.
package boardtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/ledger"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
)

// Secret is the key of each bucket, which stays out of metrics and spans.
const Secret = "secret-key"

// Bucket returns a bucket whose key is Secret.
func Bucket(limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewBucket(Secret, limits...))
}

// Limiter is a function that is a limiter.
type Limiter func(context.Context, outbound.Cost) (outbound.Permit, error)

func (f Limiter) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return f(ctx, c)
}

// Store is a store that has counted Counted.
type Store struct {
	store.Store
	Counted store.StoreStats
}

// Stats returns Counted.
func (s Store) Stats() store.StoreStats { return s.Counted }

// Fill adds limiters and a store to a board, so that each metric has a sample. Two names are long
// and not valid UTF-8. A call waits in a queue for 10 s, so t must be that of a synctest bubble.
func Fill(t *testing.T, b *watch.Board) {
	t.Helper()
	call := func(l outbound.Limiter) outbound.Permit {
		p, _ := l.Acquire(t.Context(), outbound.Cost{1, 2})
		return p
	}
	hostile := "a \"name\"\\ with \xff\n" + strings.Repeat("x", 300)
	api := b.Add(hostile, Bucket(outbound.PerHour(100).Burst(50).Of(1, "tokens"), outbound.Window(1, time.Hour), outbound.InFlight(5)))
	p := call(api)
	call(api) // is over the limit
	p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
	for _, policy := range []string{"core", hostile} {
		p.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{Policy: policy, Unit: "requests", Limit: 100, Remaining: 40, Reset: time.Hour}})
	}
	tenant := watch.AddKeyed(b, "tenants", &outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) {
		return Bucket(outbound.PerSecond(1)), nil
	}}, nil)
	call(tenant(1))
	call(tenant(2))
	call(b.Add("broken", Limiter(func(context.Context, outbound.Cost) (p outbound.Permit, err error) {
		return p, errors.New("broken")
	})))
	stuck := b.Add("stuck", queue.New(Bucket(outbound.PerHour(1)), queue.Config{MaxWait: 2 * time.Hour}))
	call(stuck)
	go call(stuck)
	book := &ledger.Ledger{Name: "paid", Price: outbound.Cost{0, 0.5}}
	p = call(book.Limiter(outbound.Unlimited{}, func(context.Context) string { return hostile }))
	p.Settle(outbound.Cost{0, 3})
	b.Ledgers = append(b.Ledgers, book, &ledger.Ledger{Name: "paid"}) // the second would have the same series
	s := Store{store.NewMemory(), store.StoreStats{Answered: 9, Repeats: 2, Failed: 1,
		Requests: store.Times{Count: 7, Time: 3 * time.Second, Within: [len(store.TimeBounds)]uint64{0: 2, 12: 4}}}}
	if err := b.AddStore(hostile, &fallback.Store{Store: s}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
}
