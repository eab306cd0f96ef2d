package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// ghostly is a carrier whose first attempt at the trip held, or the second one, arrives only once free is closed,
// whatever its context says. What other attempts at this trip come to is chosen by the test.
type ghostly struct {
	*porter
	free   chan struct{}
	held   int64
	apart  bool
	others error // nil: they are carried out
	sent   atomic.Bool
}

func (g *ghostly) Send(ctx context.Context, todo []engine.Attempt) {
	a := &todo[0]
	switch {
	case a.Seq != max(2, g.held):
	case !g.sent.Swap(true):
		<-g.free
	case g.others != nil:
		a.Err = g.others
		return
	}
	g.porter.Send(ctx, todo)
}

func (g *ghostly) Take(a *engine.Attempt) engine.Verdict {
	a.Key.Apart = g.apart
	if errors.Is(a.Err, errBroken) {
		return engine.Failed
	}
	return g.porter.Take(a)
}

// Nothing of an Update that has failed, or was answered otherwise, is carried out after a later one
// of its key has returned, although the server was up all the time.
func TestFence_ALaterUpdateStopsAnEarlierOne(t *testing.T) {
	for name, g := range map[string]*ghostly{
		"the server has refused another attempt": {others: errBroken},
		"the time of a trip apart is up":         {apart: true},
		"the bucket has refused another attempt": {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				g.porter, g.free = &porter{newShelf()}, make(chan struct{})
				g.bare = true
				var told []store.StoreEvent
				e := engine.New(engine.Config{Carrier: g, Timeout: time.Second, Observe: func(ev store.StoreEvent) { told = append(told, ev) }})
				ask := func(n int) error {
					op := calls(n)
					op.Limits = []store.Limit{{Name: "calls", Capacity: 1, Rate: 0.5}}
					_, err := e.Update(context.Background(), "key", op)
					return err
				}
				require.NoError(t, ask(1))
				err := ask(1)
				require.Equal(t, g.others != nil || g.apart, err != nil)
				require.NoError(t, ask(0))
				time.Sleep(10 * time.Second)
				close(g.free)
				time.Sleep(time.Second)
				require.Equal(t, 1., g.calls())
				require.Empty(t, told)
			})
		})
	}
}

// The same, for a key that the engine has forgotten meanwhile.
func TestFence_AForgottenKeyKeepsIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := &ghostly{porter: &porter{newShelf()}, free: make(chan struct{}), others: errBroken}
		e := engine.New(engine.Config{Carrier: g, Timeout: time.Second})
		ask := func(key string, n int) error {
			_, err := e.Update(context.Background(), key, calls(n))
			return err
		}
		require.NoError(t, ask("key", 1))
		require.ErrorIs(t, ask("key", 1), errBroken)
		time.Sleep(2 * time.Minute)
		for i := range 100 {
			require.NoError(t, ask(fmt.Sprint(i), 0))
		}
		require.NoError(t, ask("key", 0))
		close(g.free)
		time.Sleep(time.Second)
		require.Equal(t, 1., g.calls())
	})
}

// A refusal that the engine remembers is not repeated while it is unknown what became of the key's
// last trip.
func TestFence_NoRefusalFromMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := &ghostly{porter: &porter{newShelf()}, free: make(chan struct{}), others: errBroken}
		e := engine.New(engine.Config{Carrier: g, Timeout: time.Second})
		small := []store.Limit{{Name: "calls", Capacity: 1, Rate: 1e-6}}
		ask := func(op *store.Op) (store.Reply, error) {
			op.Limits = small
			return e.Update(context.Background(), "key", op)
		}
		r, err := ask(calls(1))
		require.NoError(t, err)
		g.held = 3
		refused, err := ask(calls(1))
		require.NoError(t, err)
		require.True(t, refused.Refused)
		_, err = ask(&store.Op{Reports: settle(&r.Charges[0], 0.5)})
		require.ErrorIs(t, err, errBroken)
		refused, err = ask(calls(1))
		require.NoError(t, err)
		require.True(t, refused.Refused)
		close(g.free)
		time.Sleep(time.Second)
		require.InDelta(t, 1, g.level("key"), 0.01)
	})
}

// stuck is a carrier whose attempts at the second trip all arrive only once free is closed.
type stuck struct {
	*porter
	free chan struct{}
}

func (c *stuck) Send(ctx context.Context, todo []engine.Attempt) {
	if todo[0].Seq == 2 {
		<-c.free
	}
	c.porter.Send(ctx, todo)
}

// A call that has failed is returned once, even if several attempts bring its booking afterwards.
// Else the second return frees the units of other calls.
func TestFence_LateAttemptsReturnABookingOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &stuck{&porter{newShelf()}, make(chan struct{})}
		e := engine.New(engine.Config{Carrier: s, Timeout: time.Second})
		ask := func(n int) error {
			op := calls(n)
			op.Limits = []store.Limit{{Name: "calls", Capacity: 10, Rate: 1e-6}}
			_, err := e.Update(context.Background(), "key", op)
			return err
		}
		require.NoError(t, ask(3))
		require.ErrorIs(t, ask(1), store.ErrUnavailable)
		repeats := e.Stats().Repeats
		require.Positive(t, repeats)
		close(s.free)
		time.Sleep(5 * time.Second)
		require.Equal(t, 4., s.calls())
		require.InDelta(t, 3, s.level("key"), 0.01)
	})
}

// A refusal from memory is that of the call's own cost.
func TestARefusalFromMemoryIsThatOfItsCost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newShelf().worker(engine.Config{})
		ask := func(cost float64) store.Reply {
			op := &store.Op{Limits: []store.Limit{{Name: "calls", Capacity: 10, Rate: 1}}, Action: store.Book, Costs: []store.Units{{cost}}}
			r, err := e.Update(context.Background(), "key", op)
			require.NoError(t, err)
			return r
		}
		require.False(t, ask(8).Refused)
		require.Equal(t, time.Second, ask(3).Wait)
		trips := e.Stats().Trips.Count
		time.Sleep(time.Second / 4)
		require.Equal(t, 3*time.Second-time.Second/4, ask(5).Wait)
		require.Equal(t, time.Second-time.Second/4, ask(3).Wait)
		require.Equal(t, trips, e.Stats().Trips.Count)
	})
}
