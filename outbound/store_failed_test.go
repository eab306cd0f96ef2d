package outbound

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var errNotWritten = errors.New("not written")

// unwritten is a store that computes with Apply, and may then fail to write.
type unwritten struct {
	mu   sync.Mutex
	row  []byte
	fail error
}

// fails has all writes from now on fail with err, or none if it is nil. It returns what was set before.
func (u *unwritten) fails(err error) (was error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was, u.fail = u.fail, err
	return was
}

func (u *unwritten) Update(_ context.Context, _ string, op *store.Op) (store.Reply, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var s store.Stored
	if len(u.row) > 0 {
		if err := json.Unmarshal(u.row, &s); err != nil {
			s.State.Speed = -1
		}
	}
	r := op.Apply(&s, now())
	if u.fail != nil {
		return store.Reply{}, u.fail
	}
	row, err := json.Marshal(s)
	u.row = row
	return r, err
}

func TestStore_FailedWriteLeavesCharges(t *testing.T) {
	limit := Limit{Capacity: 100, LeakRate: 1e-6}
	another := func(b *Bucket) []Ticket {
		k := BookRequest{Costs: []Cost{{1}}, Wait: time.Hour}
		u := b.slowPath().shared.store.(*unwritten)
		was := u.fails(nil)
		if err := b.Book(ctx, &k); err != nil {
			t.Fatal(err)
		}
		u.fails(was)
		return k.Tickets
	}
	for name, c := range map[string]struct {
		fails func(b *Bucket, p *Permit) error
		want  float64
	}{
		"another's move": {func(b *Bucket, _ *Permit) error {
			return b.Book(ctx, &BookRequest{Move: another(b)[0], Costs: []Cost{{1}}, Wait: time.Hour})
		}, 10},
		"a hold":           {func(b *Bucket, p *Permit) error { p.Hold(time.Second); return errors.New("lost") }, 9},
		"another's return": {func(b *Bucket, _ *Permit) error { return b.Book(ctx, &BookRequest{Back: another(b)}) }, 10},
	} {
		u := new(unwritten)
		b := Must(NewSharedBucket(u, "key", limit))
		k := BookRequest{Costs: []Cost{{4}}, Wait: time.Hour}
		if err := b.Book(ctx, &k); err != nil {
			t.Fatal(err)
		}
		p := k.Tickets[0].Permit()
		u.fails(errNotWritten)
		if err := c.fails(b, &p); err == nil {
			t.Errorf("%s did not fail", name)
		}
		u.fails(nil)
		p.Settle(Cost{9})
		if s, err := b.State(ctx); err != nil || math.Abs(s.Level-c.want) > 0.01 {
			t.Errorf("after %s that failed, a call of 4 is settled to 9: level %v, %v; want %v", name, s.Level, err, c.want)
		}
	}
}

// Nobody knows whether a place was moved whose trip has failed: it goes back no more.
func TestBook_FailedMoveReturnsNothing(t *testing.T) {
	u := new(unwritten)
	b := Must(NewSharedBucket(u, "key", Limit{Capacity: 100, LeakRate: 1e-6}))
	k := BookRequest{Costs: []Cost{{4}}, Wait: time.Hour}
	if err := b.Book(ctx, &k); err != nil {
		t.Fatal(err)
	}
	ticket := k.Tickets[0]
	u.fails(errNotWritten)
	if err := b.Book(ctx, &BookRequest{Move: ticket, Costs: []Cost{{4}}, Wait: time.Hour}); !errors.Is(err, errNotWritten) {
		t.Fatal(err)
	}
	u.fails(nil)
	if err := b.Book(ctx, &BookRequest{Back: []Ticket{ticket}}); err != nil {
		t.Fatal(err)
	}
	if s, err := b.State(ctx); err != nil || math.Abs(s.Level-4) > 0.01 {
		t.Errorf("level %v, %v; want 4", s.Level, err)
	}
}
