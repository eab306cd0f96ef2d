package engine_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// newCluster returns a carrier to two nodes, of which a has all keys, as the client knows.
func newCluster() *carrier {
	c := newCarrier()
	c.owner, c.known = "a", "a"
	return c
}

// onNodes runs a test of an engine on two nodes with a key in use, and returns the kinds of its events.
func onNodes(t *testing.T, f func(t *testing.T, c *carrier, e *engine.Engine)) (kinds []store.StoreEventKind) {
	bubble(t, func(t *testing.T) {
		c := newCluster()
		e := c.start(time.Second)
		require.NoError(t, try(e, "key"))
		f(t, c, e)
		kinds = c.reported()
	})
	return kinds
}

// If the keys have moved, a call goes on where they are.
func TestNodes_MovedKeyIsAskedForWhereItIs(t *testing.T) {
	require.Empty(t, onNodes(t, func(t *testing.T, c *carrier, e *engine.Engine) {
		c.set(func() { c.owner, c.learns = "b", true })
		start := time.Now()
		require.NoError(t, try(e, "key"))
		require.Less(t, time.Since(start), 100*time.Millisecond)
		require.InDelta(t, 2, c.level("key"), 0.1)
	}))
}

// A trip is on its way to the node that its key has left, which hangs, when it is made at the node
// that has the key now. It is made once, and the key's other calls go on.
func TestNodes_TripGoesOnWhereItsKeyHasMoved(t *testing.T) {
	require.Empty(t, onNodes(t, func(t *testing.T, c *carrier, e *engine.Engine) {
		free := c.hang()
		time.AfterFunc(100*time.Millisecond, func() { c.set(func() { c.owner, c.known = "b", "b" }) })
		start := time.Now()
		each(3, func(int) { require.NoError(t, try(e, "key")) })
		require.Less(t, time.Since(start), 300*time.Millisecond)
		c.set(func() { c.owner, c.known = "a", "a" }) // what arrives there late is answered from the record
		free()
		time.Sleep(time.Second)
		require.InDelta(t, 4, c.level("key"), 0.1)
	}))
}

// The keys of a node that hangs go to the node that is promoted: their calls flow again within a
// second, and the return of the keys delays none.
func TestNodes_CallsFlowAfterAFailover(t *testing.T) {
	kinds := onNodes(t, func(t *testing.T, c *carrier, e *engine.Engine) {
		free := c.hang()
		require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
		time.Sleep(3 * time.Second)
		require.ErrorIs(t, try(e, "key"), store.ErrUnavailable)
		c.set(func() { c.owner, c.learns = "b", true })
		for err, start := try(e, "key"), time.Now(); err != nil; err = try(e, "key") {
			require.Less(t, time.Since(start), time.Second)
			time.Sleep(10 * time.Millisecond)
		}
		for range 10 {
			require.NoError(t, try(e, "key"))
		}
		c.set(func() { c.owner, c.known = "a", "a" })
		free()
		start := time.Now()
		require.NoError(t, try(e, "key"))
		require.Less(t, time.Since(start), 100*time.Millisecond)
	})
	require.Equal(t, []store.StoreEventKind{store.EventDown, store.EventUp}, kinds)
}

// Errors that a wait does not cure come immediately.
func TestNodes_ErrorsThatNoWaitCuresComeImmediately(t *testing.T) {
	for err, want := range map[error][]store.StoreEventKind{errDenied: {store.EventDenied}, errBroken: nil} {
		require.Equal(t, want, onNodes(t, func(t *testing.T, c *carrier, e *engine.Engine) {
			c.set(func() { c.fails = err })
			start := time.Now()
			for range 3 {
				got := try(e, "key")
				require.ErrorIs(t, got, err)
				require.NotErrorIs(t, got, store.ErrUnavailable)
			}
			require.Zero(t, time.Since(start))
			c.set(func() { c.fails = nil })
			require.NoError(t, try(e, "key"))
		}))
	}
}

// A node denies access, and another one has its keys from then on. The first is not asked again.
func TestNodes_DenialEndsWhenTheKeysHaveMoved(t *testing.T) {
	onNodes(t, func(t *testing.T, c *carrier, e *engine.Engine) {
		c.set(func() { c.fails = errDenied })
		require.ErrorIs(t, try(e, "key"), errDenied)
		require.Len(t, e.Stats().Outages, 1)
		c.set(func() { c.fails, c.owner, c.known = nil, "b", "b" })
		require.NoError(t, try(e, "key"))
		require.Nil(t, e.Stats().Outages)
	})
}

// A key moves to a node that is gone. The keys of the node that it has left are served meanwhile,
// whether the client knows where the key is or not.
func TestNodes_KeyOnANodeThatIsGoneDelaysNoOther(t *testing.T) {
	for _, test := range []struct{ known, hangs bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("known %v, hangs %v", test.known, test.hangs), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var moved, known atomic.Bool
				errRefused := errors.New("connection refused")
				c := newCluster().answers(func(_ int, a *engine.Attempt) error {
					switch {
					case a.Key.Bucket != "moved" || !moved.Load():
						return nil
					case test.hangs:
						known.Store(true) // a has sent the client to b
						return errSilent
					}
					known.Store(true)
					return errRefused
				})
				c.nodeOf = func(key string) string {
					if key == "moved" && known.Load() {
						return "b"
					}
					return "a"
				}
				e := c.start(time.Second)
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
						err := try(e, key)
						require.LessOrEqual(t, time.Since(began), time.Second)
						if i < 16 || n == 0 {
							require.NoError(t, err, key)
							slowest[i] = max(slowest[i], time.Since(began))
						} else {
							require.ErrorIs(t, err, store.ErrUnavailable)
							asked++
						}
						if n == 0 && i == 16 {
							moved.Store(true)
							known.Store(test.known)
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
				for i, slow := range slowest {
					require.LessOrEqual(t, slow, 300*time.Millisecond, i)
				}
				require.Greater(t, asked, 15, "most calls of the key that has moved are refused immediately")
				require.Equal(t, []store.StoreEventKind{store.EventDown}, c.reported())
				for _, o := range e.Stats().Outages {
					require.Equal(t, "b", o.Server)
				}
			})
		})
	}
}

// A node refuses all its keys. One of them has moved to another node, whose answers do not end the
// outage.
func TestNodes_AnswerOfAnotherNodeEndsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var learned atomic.Bool
		c := newCluster().answers(func(_ int, a *engine.Attempt) error {
			switch {
			case a.Key.Bucket != "moved":
				return errLost
			case !learned.Swap(true):
				return errMoved
			}
			return nil
		})
		c.nodeOf = func(key string) string {
			if key == "moved" && learned.Load() {
				return "b"
			}
			return "a"
		}
		e := c.start(time.Second)
		each(32, func(i int) { // some have the pipeline of the key that has moved
			require.ErrorIs(t, try(e, fmt.Sprint("stays ", i)), store.ErrUnavailable)
		})
		answered := 0
		for range 300 {
			if try(e, "moved") == nil {
				answered++
			}
			time.Sleep(10 * time.Millisecond)
		}
		require.Greater(t, answered, 1)
		require.Equal(t, []store.StoreEventKind{store.EventDown}, c.reported())
		require.Len(t, e.Stats().Outages, 1)
	})
}

// A node answers some trips of each Send, and then the connection breaks. Few Sends run at a time.
func TestNodes_FewSendsRunAtANode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		c := newCluster().answers(func(i int, a *engine.Attempt) error {
			switch {
			case time.Since(start) > 3*time.Millisecond:
				return errSilent
			case i < 10:
				return nil
			}
			return errLost
		})
		e := c.start(time.Second)
		each(200, func(i int) { _ = try(e, fmt.Sprint(i)) })
		require.LessOrEqual(t, c.most, 16)
	})
}

// A node carries out what writes nothing, and refuses writers. So it is unavailable, and available
// again, repeatedly.
func TestNodes_NodeThatRefusesWritersIsUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster().answers(func(_ int, a *engine.Attempt) error {
			if a.Key.Bucket[0] == 'w' {
				return errLost
			}
			return nil
		})
		e := c.start(time.Second)
		end := time.Now().Add(10 * time.Second)
		each(64, func(i int) {
			key := fmt.Sprint("look ", i)
			if i < 4 {
				key = fmt.Sprint("write ", i)
			}
			for time.Now().Before(end) {
				if err := try(e, key); i < 4 {
					require.ErrorIs(t, err, store.ErrUnavailable)
				}
				time.Sleep(time.Duration(5+i%3) * time.Millisecond)
			}
		})
		require.Greater(t, len(c.reported()), 16)
	})
}

// A row that other processes always write first delays no other.
func TestApart_RowThatOthersWriteDelaysNoOther(t *testing.T) {
	running(t, time.Second, func(t *testing.T, c *carrier, e *engine.Engine) {
		c.answers(func(_ int, a *engine.Attempt) error {
			if a.Key.Bucket == "hot" {
				return errRace
			}
			return nil
		})
		start := time.Now()
		each(100, func(i int) {
			if i == 0 {
				_, err := e.Update(bg, "hot", &store.Op{Limits: []store.Limit{ages}})
				require.ErrorIs(t, err, errRace)
				require.NotErrorIs(t, err, store.ErrUnavailable)
				require.Equal(t, time.Second, time.Since(start))
				return
			}
			require.NoError(t, try(e, fmt.Sprint(i)))
			require.Less(t, time.Since(start), 20*time.Millisecond)
		})
		require.Empty(t, c.reported())
	})
}
