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
	"github.com/dripfeed/dripfeed/outbound/store"
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

func (n *node) Send(ctx context.Context, todo []engine.Attempt) {
	now := n.now.Add(1)
	defer n.now.Add(-1)
	for most := n.most.Load(); now > most && !n.most.CompareAndSwap(most, now); most = n.most.Load() {
	}
	time.Sleep(time.Millisecond)
	for i := range todo {
		a := &todo[i]
		switch a.Err = n.answer(i, a); a.Err {
		case nil:
			n.porter.Send(ctx, todo[i:i+1])
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
	Known:   func(string) string { return "a" },
	Refresh: func() {},
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
		e := engine.New(engine.Config{Carrier: n, Nodes: alwaysA, Timeout: time.Second, Observe: func(store.StoreEvent) { told.Add(1) }})
		end := time.Now().Add(10 * time.Second)
		each(64, func(i int) {
			key := fmt.Sprint("look ", i)
			if i < 4 {
				key = fmt.Sprint("write ", i)
			}
			for time.Now().Before(end) {
				if _, err := e.Update(context.Background(), key, calls(1)); i < 4 {
					require.ErrorIs(t, err, store.ErrUnavailable)
				}
				time.Sleep(time.Duration(5+i%3) * time.Millisecond)
			}
		})
		synctest.Wait()
		require.Greater(t, told.Load(), int32(16))
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
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.NotContains(t, err.Error(), errLost.Error())
		})
	})
}
