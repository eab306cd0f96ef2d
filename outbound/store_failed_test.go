package outbound

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var errNotWritten = errors.New("not written")

// A request that the store computes and fails to write changes no charge of another call.
func TestStore_FailedWriteLeavesCharges(t *testing.T) {
	type request func(b *Bucket, p *Permit, other []Ticket) error
	for name, fails := range map[string]request{
		"another's move": func(b *Bucket, _ *Permit, other []Ticket) error {
			return b.Book(ctx, &BookRequest{Move: other[0], Costs: []Cost{{1}}, Wait: time.Hour})
		},
		"another's return": func(b *Bucket, _ *Permit, other []Ticket) error { return b.Book(ctx, &BookRequest{Unused: other}) },
		"a hold":           func(b *Bucket, p *Permit, _ []Ticket) error { p.Hold(time.Second); return errNotWritten },
	} {
		s := new(FakeStore)
		b := Must(NewSharedBucket(s, "key", Limit{Capacity: 100, LeakRate: 1e-6}))
		k := BookRequest{Costs: []Cost{{4}, {1}}, Wait: time.Hour, Horizon: time.Hour}
		must(t, b.Book(ctx, &k))
		p := k.Tickets[0].Permit()
		s.Fail(errNotWritten, false)
		if err := fails(b, &p, k.Tickets[1:]); err == nil {
			t.Errorf("%s did not fail", name)
		}
		s.Fail(nil, false)
		p.Settle(Cost{9})
		if n := level(t, b, 0); math.Abs(n-10) > 0.01 {
			t.Errorf("after %s that failed, a call of 4 is settled to 9: level %v, want 10", name, n)
		}
	}
}

// A reservation whose move has failed is not returned, because it may have been moved.
func TestBook_FailedMoveReturnsNothing(t *testing.T) {
	s := new(FakeStore)
	b := Must(NewSharedBucket(s, "key", Limit{Capacity: 100, LeakRate: 1e-6}))
	k := BookRequest{Costs: []Cost{{4}}, Wait: time.Hour}
	must(t, b.Book(ctx, &k))
	s.Fail(errNotWritten, false)
	if err := b.Book(ctx, &BookRequest{Move: k.Tickets[0], Costs: []Cost{{4}}, Wait: time.Hour}); !errors.Is(err, errNotWritten) {
		t.Fatal(err)
	}
	s.Fail(nil, false)
	must(t, b.Book(ctx, &BookRequest{Unused: k.Tickets[:1]}))
	if n := level(t, b, 0); math.Abs(n-4) > 0.01 {
		t.Errorf("level %v, want 4", n)
	}
}

// A store that returns neither a decision nor an error admits no call.
func TestStore_ReplyWithoutDecisionIsAnError(t *testing.T) {
	b := Must(NewSharedBucket(StoreFunc(func(context.Context, string, *store.Op) (store.Reply, error) {
		return store.Reply{Limit: -1, State: store.New(0, 1)}, nil
	}), "k", Limit{Capacity: 1, LeakRate: 1}))
	_, err := b.Acquire(ctx, Cost{1})
	if _, broken := errors.AsType[*StoreError](err); !broken {
		t.Error(err)
	}
}
