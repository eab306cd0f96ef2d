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
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// moving is a carrier to two nodes. Node a has all keys, but sends those of "moved" to b, which is gone.
type moving struct {
	*porter
	mu    sync.Mutex
	moved bool // before, a has that key, too
	known bool // the client knows that b has it, and asks b in the same Send
	hangs bool // b is silent; else it refuses connections
}

var errRefused = errors.New("connection refused")

func (m *moving) now() moving {
	m.mu.Lock()
	defer m.mu.Unlock()
	return moving{moved: m.moved, known: m.known, hangs: m.hangs}
}

func (m *moving) Send(ctx context.Context, to engine.Node, todo []engine.Attempt) {
	time.Sleep(time.Millisecond)
	now := m.now()
	for i := range todo {
		a := &todo[i]
		switch {
		case a.Key.Bucket != "moved" || !now.moved:
			m.porter.Send(ctx, to, todo[i:i+1])
		case !a.Alone && !now.known:
			a.Err = errMoved
		case now.hangs:
			<-ctx.Done()
			a.Err = ctx.Err()
		default:
			a.Err = errRefused
		}
	}
}

func (m *moving) Take(a *engine.Attempt) engine.Verdict {
	if a.Err == errMoved {
		return engine.Elsewhere
	}
	return m.porter.Take(a)
}

func (m *moving) nodes() *engine.Nodes {
	known := func(key string) engine.Node {
		if now := m.now(); now.known && key == "moved" {
			return place("b")
		}
		return place("a")
	}
	return &engine.Nodes{
		Owner: func(_ context.Context, key string) (engine.Node, engine.Verdict, error) {
			return known(key), engine.Done, nil
		},
		Known:   known,
		Heir:    func(string) engine.Node { return nil },
		Refresh: func() {},
	}
}

// A key moves to a node that is gone. The others of the node that it has left go on, whether the client knows where
// the key is or not.
func TestAKeyThatMovesToANodeThatIsGoneTakesNoOtherAlong(t *testing.T) {
	for _, c := range []struct{ known, hangs bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("known %v, hangs %v", c.known, c.hangs), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := &moving{porter: &porter{newShelf()}}
				var told []leak.StoreEvent
				e := engine.New(engine.Config{
					Carrier: m, Nodes: m.nodes(), Timeout: time.Second, Observe: func(ev leak.StoreEvent) { told = append(told, ev) },
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
						if i < 16 || n == 0 {
							require.NoError(t, err, key)
							slowest[i] = max(slowest[i], time.Since(began))
						} else {
							require.ErrorIs(t, err, leak.ErrAway)
							asked++
						}
						if n == 0 && i == 16 {
							m.mu.Lock()
							m.moved, m.known, m.hangs = true, c.known, c.hangs
							m.mu.Unlock()
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
				synctest.Wait()
				for i, slow := range slowest {
					require.LessOrEqual(t, slow, 300*time.Millisecond, i)
				}
				require.Greater(t, asked, 15, "most calls of the key that moved are refused at once")
				require.NotEmpty(t, told)
				ownOutages := 0
				for _, ev := range told {
					require.Equal(t, leak.EventDown, ev.Kind)
					require.Contains(t, []string{"", "moved"}, ev.Key)
					if ev.Key != "" {
						ownOutages++
					}
				}
				require.LessOrEqual(t, ownOutages, 1)
				require.Equal(t, !c.known, ownOutages == 1, "the client does not know the node")
				for _, o := range e.Stats().Outages {
					require.Equal(t, "b", o.Server)
				}
			})
		})
	}
}

// A node refuses its keys but one, which another node carries out. That one's answers do not bring the node back,
// whether the client learns where the key is or not.
func TestTheAnswerOfAnotherNodeEndsNoOutage(t *testing.T) {
	for _, learns := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			var learned atomic.Bool
			n := &node{porter: &porter{newShelf()}, answer: func(_ int, a *engine.Attempt) error {
				switch {
				case a.Key.Bucket != "moved":
					return errNoSpace
				case !a.Alone && !learned.Load():
					learned.Store(learns)
					return errMoved
				}
				return nil
			}}
			nodes := *alwaysA
			nodes.Known = func(key string) engine.Node {
				if key == "moved" && learned.Load() {
					return place("b")
				}
				return place("a")
			}
			nodes.Owner = func(_ context.Context, key string) (engine.Node, engine.Verdict, error) {
				return nodes.Known(key), engine.Done, nil
			}
			var told []leak.StoreEventKind
			e := engine.New(engine.Config{Carrier: n, Nodes: &nodes, Timeout: time.Second, Observe: func(ev leak.StoreEvent) { told = append(told, ev.Kind) }})
			each(32, func(i int) { // some have the pipeline of the key that has moved
				_, err := e.Update(context.Background(), fmt.Sprint("stays ", i), calls(1))
				require.ErrorIs(t, err, leak.ErrAway)
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
			require.Equal(t, []leak.StoreEventKind{leak.EventDown}, told)
			require.Len(t, e.Stats().Outages, 1)
		})
	}
}

// A node denies access, and another one has its keys from then on. Nobody asks the first one again.
func TestADenialEndsWhenTheKeysHaveMoved(t *testing.T) {
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

// A trip of a key that has moved is refused by the one node while it is on its way to the other, and arrives there
// after the key's next trip. It is too late then: nobody would use what it books.
func TestATripThatIsRefusedIsNotMadeWhereItsKeyHasMoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		s := newShelf()
		var sends atomic.Int32
		n := &node{porter: &porter{s}, answer: func(_ int, a *engine.Attempt) error {
			if a.Key.Bucket != "moved" || len(a.Op.Costs) == 0 {
				return nil
			}
			if sends.Add(1) == 1 {
				time.Sleep(400 * time.Millisecond)
				return errBroken
			}
			time.Sleep(600 * time.Millisecond)
			return nil
		}}
		nodes := *alwaysA
		nodes.Known = func(key string) engine.Node {
			if key == "moved" && time.Since(start) > 200*time.Millisecond {
				return place("b")
			}
			return place("a")
		}
		e := engine.New(engine.Config{Carrier: n, Nodes: &nodes, Timeout: time.Second})
		for i := range 64 { // some have the pipeline of the key that moves
			_, err := e.Update(context.Background(), fmt.Sprint(i), calls(1))
			require.NoError(t, err)
		}
		_, err := e.Update(context.Background(), "moved", calls(1))
		require.ErrorIs(t, err, errBroken)
		_, err = e.Update(context.Background(), "moved", &leak.Op{Limits: ages, Action: leak.Book})
		require.NoError(t, err)
		require.Equal(t, int32(2), sends.Load())
		time.Sleep(time.Second)
		require.Zero(t, s.level("moved"))
	})
}
