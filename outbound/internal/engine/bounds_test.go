package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// node is a carrier to a node whose answers the test chooses. A Send whose answer is errSilent hangs as long as it may.
type node struct {
	*porter
	answer    func(i int, a *engine.Attempt) error // to the i-th attempt of a Send; nil: it carries it out
	now, most atomic.Int32                         // Sends at once
}

var (
	errSilent  = errors.New("silent")
	errNoSpace = errors.New("no room to write")
)

func (n *node) Send(ctx context.Context, to engine.Node, todo []engine.Attempt) {
	now := n.now.Add(1)
	defer n.now.Add(-1)
	for most := n.most.Load(); now > most && !n.most.CompareAndSwap(most, now); most = n.most.Load() {
	}
	time.Sleep(time.Millisecond)
	for i := range todo {
		a := &todo[i]
		switch a.Err = n.answer(i, a); a.Err {
		case nil:
			n.porter.Send(ctx, to, todo[i:i+1])
		case errSilent:
			<-ctx.Done()
			a.Err = ctx.Err()
		}
	}
}

func (n *node) Take(a *engine.Attempt) engine.Verdict {
	switch a.Err {
	case errMoved:
		return engine.Elsewhere
	case errBroken:
		return engine.Failed
	}
	return n.porter.Take(a)
}

// alwaysA is a client that takes the node a for the owner of all keys.
var alwaysA = &engine.Nodes{
	Owner: func(context.Context, string) (engine.Node, engine.Verdict, error) {
		return place("a"), engine.Done, nil
	},
	Known:   func(string) engine.Node { return place("a") },
	Heir:    func(string) engine.Node { return nil },
	Refresh: func() {},
}

// However many keys move to a node that hangs, the client is busy with few Sends.
func TestTheAttemptsAtKeysThatHaveMovedAreFew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := &node{porter: &porter{newShelf()}, answer: func(_ int, a *engine.Attempt) error {
			if a.Alone {
				return errSilent
			}
			return errMoved
		}}
		e := engine.New(engine.Config{Carrier: n, Nodes: alwaysA, Timeout: time.Second})
		each(1000, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond / 2)
			began := time.Now()
			_, err := e.Update(context.Background(), fmt.Sprint(i), calls(1))
			require.ErrorIs(t, err, leak.ErrAway)
			require.LessOrEqual(t, time.Since(began), time.Second)
		})
		require.LessOrEqual(t, n.most.Load(), int32(16+64))
	})
}

// Of keys that move, those whose node answers go, whatever becomes of the others. Of the others one is told.
func TestKeysThatMoveToAHealthyNodeDoNotWaitForOthers(t *testing.T) {
	for _, learns := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			start := time.Now()
			n := &node{porter: &porter{newShelf()}, answer: func(_ int, a *engine.Attempt) error {
				switch name := a.Key.Bucket[0]; {
				case name == 's':
					return nil
				case !a.Alone:
					return errMoved
				case name == 'h':
					return errSilent
				}
				return nil
			}}
			nodes := *alwaysA
			if learns {
				nodes.Known = func(key string) engine.Node {
					if key[0] == 's' || time.Since(start) < 5*time.Millisecond {
						return place("a")
					}
					return place(map[byte]string{'h': "hung", 'w': "well"}[key[0]])
				}
				nodes.Owner = func(_ context.Context, key string) (engine.Node, engine.Verdict, error) {
					return nodes.Known(key), engine.Done, nil
				}
			}
			var events, failed, slow atomic.Int32
			e := engine.New(engine.Config{Carrier: n, Nodes: &nodes, Timeout: time.Second, Observe: func(leak.StoreEvent) { events.Add(1) }})
			each(96, func(i int) {
				key := fmt.Sprint([]string{"stays ", "hung ", "well "}[i%3], i)
				for time.Since(start) < 5*time.Second {
					began := time.Now()
					_, err := e.Update(context.Background(), key, calls(1))
					// At first nobody knows which keys do not answer, and these may take all places.
					if i%3 != 1 && err != nil && (i%3 == 0 || time.Since(start) > 2*time.Second) {
						failed.Add(1)
					}
					if i%3 != 1 && time.Since(began) > 300*time.Millisecond {
						slow.Add(1)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
			require.LessOrEqual(t, events.Load(), int32(8))
			require.Zero(t, failed.Load())
			require.Zero(t, slow.Load())
		})
	}
}

// A node answers some trips of each Send, and then the connection breaks. That is no reason to part the others.
func TestTheAttemptsAtANodeThatAnswersSomeAreFew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		n := &node{porter: &porter{newShelf()}, answer: func(i int, a *engine.Attempt) error {
			switch {
			case time.Since(start) > 3*time.Millisecond:
				return errSilent
			case i < 10:
				return nil
			}
			return errLost
		}}
		e := engine.New(engine.Config{Carrier: n, Nodes: alwaysA, Timeout: time.Second})
		each(200, func(i int) { _, _ = e.Update(context.Background(), fmt.Sprint(i), calls(1)) })
		require.LessOrEqual(t, n.most.Load(), int32(16))
	})
}

// A node carries out what writes nothing, and refuses writers. So it is away, and back, again and again.
func TestANodeThatRefusesWritersIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := &node{porter: &porter{newShelf()}, answer: func(_ int, a *engine.Attempt) error {
			if a.Key.Bucket[0] == 'w' {
				return errNoSpace
			}
			return nil
		}}
		var told atomic.Int32
		e := engine.New(engine.Config{Carrier: n, Nodes: alwaysA, Timeout: time.Second, Observe: func(leak.StoreEvent) { told.Add(1) }})
		end := time.Now().Add(10 * time.Second)
		each(64, func(i int) {
			key := fmt.Sprint("look ", i)
			if i < 4 {
				key = fmt.Sprint("write ", i)
			}
			for time.Now().Before(end) {
				if _, err := e.Update(context.Background(), key, calls(1)); i < 4 {
					require.ErrorIs(t, err, leak.ErrAway)
				}
				time.Sleep(time.Duration(5+i%3) * time.Millisecond)
			}
		})
		synctest.Wait()
		require.Greater(t, told.Load(), int32(16))
	})
}

// A key whose node does not answer is back once it does.
func TestAKeyThatHasMovedIsBackOnceItsNodeAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var back atomic.Bool
		n := &node{porter: &porter{newShelf()}, answer: func(_ int, a *engine.Attempt) error {
			switch {
			case !a.Alone:
				return errMoved
			case back.Load():
				return nil
			}
			return errSilent
		}}
		var told []leak.StoreEvent
		e := engine.New(engine.Config{Carrier: n, Nodes: alwaysA, Timeout: time.Second, Observe: func(ev leak.StoreEvent) {
			ev.Err = nil
			told = append(told, ev)
		}})
		ask := func() error {
			_, err := e.Update(context.Background(), "moved", calls(1))
			return err
		}
		for range 3 {
			require.ErrorIs(t, ask(), leak.ErrAway)
			began := time.Now()
			require.ErrorIs(t, ask(), leak.ErrAway)
			require.Zero(t, time.Since(began), "it is known to be away")
			time.Sleep(time.Second / 4)
		}
		back.Store(true)
		require.NoError(t, ask())
		synctest.Wait()
		require.Equal(t, []leak.StoreEvent{{Kind: leak.EventDown, Key: "moved"}, {Kind: leak.EventUp, Key: "moved"}}, told)
	})
}

// What a key was told before the store answered it is not why a later trip has no answer.
func TestAnAnswerEndsTheReasonBeforeIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		n := &node{porter: &porter{newShelf()}}
		var answered atomic.Bool
		n.answer = func(int, *engine.Attempt) error {
			switch {
			case answered.Load():
				return errSilent
			case time.Since(start) > 800*time.Millisecond:
				answered.Store(true)
				return errBroken
			}
			return errLost
		}
		e := engine.New(engine.Config{Carrier: n, Timeout: time.Second})
		each(2, func(i int) { // the second one waits for the trip of the first
			time.Sleep(time.Duration(i) * 400 * time.Millisecond)
			_, err := e.Update(context.Background(), "key", calls(1))
			if i == 0 {
				require.ErrorIs(t, err, errBroken)
				return
			}
			require.ErrorIs(t, err, leak.ErrAway)
			require.NotContains(t, err.Error(), errLost.Error())
		})
	})
}
