package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// moving is a carrier to two nodes. Node a has all keys, until "moved" goes to b, which is gone.
type moving struct {
	*porter
	mu    sync.Mutex
	moved bool
	known bool // the client knows it; else its first request to a finds out
	hangs bool // b is silent; else it refuses connections
}

var errRefused = errors.New("connection refused")

func (m *moving) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *moving) Send(ctx context.Context, todo []engine.Attempt) {
	time.Sleep(time.Millisecond)
	var moved, hangs bool
	m.set(func() { moved, hangs = m.moved, m.hangs })
	for i := range todo {
		a := &todo[i]
		if a.Key.Bucket != "moved" || !moved {
			m.porter.Send(ctx, todo[i:i+1])
			continue
		}
		m.set(func() { m.known = true }) // a has sent the client to b
		if a.Err = errRefused; hangs {
			<-ctx.Done()
			a.Err = ctx.Err()
		}
	}
}

func (m *moving) nodes() *engine.Nodes {
	known := func(key string) (node string) {
		m.set(func() {
			if node = "a"; m.known && key == "moved" {
				node = "b"
			}
		})
		return node
	}
	return &engine.Nodes{
		Known:   known,
		Refresh: func() {},
	}
}

// A key moves to a node that is gone. The keys of the node that it has left are served meanwhile,
// whether the client knows where the key is or not.
func TestNodes_AKeyThatMovesToANodeThatIsGoneDelaysNoOther(t *testing.T) {
	for _, c := range []struct{ known, hangs bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("known %v, hangs %v", c.known, c.hangs), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := &moving{porter: &porter{newShelf()}}
				var told []store.StoreEvent
				e := engine.New(engine.Config{
					Carrier: m, Nodes: m.nodes(), Timeout: time.Second, Observe: func(ev store.StoreEvent) { told = append(told, ev) },
				})
				end := time.Now().Add(5 * time.Second)
				var slowest [17]time.Duration
				asked := 0             // of "moved", since
				each(17, func(i int) { // the last one is the key that moves
					key := fmt.Sprint("key ", i)
					if i == 16 {
						key = "moved"
					}
					for n := 0; time.Now().Before(end); n++ {
						began := time.Now()
						_, err := e.Update(context.Background(), key, calls(1))
						require.LessOrEqual(t, time.Since(began), time.Second)
						if i < 16 || n == 0 {
							require.NoError(t, err, key)
							slowest[i] = max(slowest[i], time.Since(began))
						} else {
							require.ErrorIs(t, err, store.ErrUnavailable)
							asked++
						}
						if n == 0 && i == 16 {
							m.set(func() { m.moved, m.known, m.hangs = true, c.known, c.hangs })
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
				synctest.Wait()
				for i, slow := range slowest {
					require.LessOrEqual(t, slow, 300*time.Millisecond, i)
				}
				require.Greater(t, asked, 15, "most calls of the key that has moved are refused immediately")
				require.Len(t, told, 1)
				require.Equal(t, store.EventDown, told[0].Kind)
				for _, o := range e.Stats().Outages {
					require.Equal(t, "b", o.Server)
				}
			})
		})
	}
}

// A node refuses all its keys. One of them has moved to another node, whose answers do not end the
// outage.
func TestNodes_TheAnswerOfAnotherNodeEndsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var learned atomic.Bool
		n := &node{porter: &porter{newShelf()}, answer: func(_ int, a *engine.Attempt) error {
			switch {
			case a.Key.Bucket != "moved":
				return errNoSpace
			case !learned.Swap(true):
				return errMoved
			}
			return nil
		}}
		nodes := *alwaysA
		nodes.Known = func(key string) string {
			if key == "moved" && learned.Load() {
				return "b"
			}
			return "a"
		}
		var told []store.StoreEventKind
		e := engine.New(engine.Config{Carrier: n, Nodes: &nodes, Timeout: time.Second, Observe: func(ev store.StoreEvent) { told = append(told, ev.Kind) }})
		each(32, func(i int) { // some have the pipeline of the key that has moved
			_, err := e.Update(context.Background(), fmt.Sprint("stays ", i), calls(1))
			require.ErrorIs(t, err, store.ErrUnavailable)
		})
		answered := 0
		for range 300 {
			if _, err := e.Update(context.Background(), "moved", calls(1)); err == nil {
				answered++
			}
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		require.Greater(t, answered, 1)
		require.Equal(t, []store.StoreEventKind{store.EventDown}, told)
		require.Len(t, e.Stats().Outages, 1)
	})
}

// A node denies access, and another one has its keys from then on. The first is not asked again.
func TestNodes_ADenialEndsWhenTheKeysHaveMoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &spread{porter: &porter{newShelf()}, owner: "a", known: "a", answers: errDenied}
		e := engine.New(engine.Config{Carrier: s, Nodes: s.nodes(), Timeout: time.Second})
		ask := func() error {
			_, err := e.Update(context.Background(), "key", calls(1))
			return err
		}
		require.ErrorIs(t, ask(), errDenied)
		require.Len(t, e.Stats().Outages, 1)
		s.set(func() { s.answers, s.owner, s.known = nil, "b", "b" })
		require.NoError(t, ask())
		require.Nil(t, e.Stats().Outages)
	})
}

// A trip is on its way to the node that its key has left, which hangs, when it is made at the node
// that has the key now. It is made once, and the key's other calls go on.
func TestNodes_ATripGoesOnWhereItsKeyHasMoved(t *testing.T) {
	told := onNodes(t, func(s *spread, ask func() error) {
		hung := make(chan struct{})
		s.set(func() { s.hung = hung })
		time.AfterFunc(100*time.Millisecond, func() { s.set(func() { s.owner, s.known = "b", "b" }) })
		start := time.Now()
		each(3, func(int) { require.NoError(t, ask()) })
		require.Less(t, time.Since(start), 300*time.Millisecond)
		s.set(func() { s.owner = "a" }) // what arrives there late is answered from the record
		close(hung)
		s.set(func() { s.hung = nil })
		time.Sleep(time.Second)
		require.InDelta(t, 4, s.level(""), 0.1)
	})
	require.Empty(t, told)
}

// A node hangs and is replaced while its calls wait: they go on within two seconds.
func TestNodes_CallsFlowAfterAFailover(t *testing.T) {
	onNodes(t, func(s *spread, ask func() error) {
		hung := make(chan struct{})
		s.set(func() { s.hung = hung })
		time.Sleep(3 * time.Second)
		require.ErrorIs(t, ask(), store.ErrUnavailable)
		s.set(func() { s.owner, s.learns = "b", true })
		start := time.Now()
		for ask() != nil {
			time.Sleep(10 * time.Millisecond)
		}
		require.Less(t, time.Since(start), 2*time.Second)
		close(hung)
	})
}
