package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var (
	errMoved  = errors.New("another node has the key")
	errDenied = errors.New("no permission")
	errBroken = errors.New("the store's own error")
)

// spread is a carrier to a store of two nodes, a and b, of which one has all keys.
type spread struct {
	*porter
	mu      sync.Mutex
	owner   string        // the node that has the keys
	known   string        // the node that the client takes for the owner
	learns  bool          // a Refresh tells the client the owner
	hung    chan struct{} // until it is closed, a does not answer
	answers error         // instead of carrying anything out
}

func (s *spread) Send(ctx context.Context, todo []engine.Attempt) {
	s.mu.Lock()
	node, owner, hung, answers := s.known, s.owner, s.hung, s.answers
	s.mu.Unlock()
	if node == "a" && hung != nil {
		<-hung
	}
	for i := range todo {
		switch {
		case answers != nil:
			todo[i].Err = answers
		case node != owner:
			todo[i].Err = errMoved
		default:
			s.porter.Send(ctx, todo[i:i+1])
		}
	}
}

func (s *spread) Take(a *engine.Attempt) engine.Verdict {
	switch a.Err {
	case errMoved:
		return engine.Elsewhere
	case errDenied:
		return engine.Denied
	case errBroken:
		return engine.Failed
	}
	return s.porter.Take(a)
}

func (s *spread) nodes() *engine.Nodes {
	known := func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.known
	}
	return &engine.Nodes{
		Known: func(string) string { return known() },
		Refresh: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.learns {
				s.known = s.owner
			}
		},
	}
}

// set changes a spread.
func (s *spread) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// onNodes runs a test of an engine on two nodes, and returns what it has told.
func onNodes(t *testing.T, f func(s *spread, ask func() error)) (told []store.StoreEventKind) {
	bubble(t, func(t *testing.T) {
		s := &spread{porter: &porter{newShelf()}, owner: "a", known: "a"}
		e := engine.New(engine.Config{
			Carrier: s, Nodes: s.nodes(), Timeout: time.Second, Observe: func(ev store.StoreEvent) { told = append(told, ev.Kind) },
		})
		ask := func() error {
			_, err := e.Update(context.Background(), "", calls(1)) // a key like any other
			return err
		}
		require.NoError(t, ask())
		f(s, ask)
		synctest.Wait()
	})
	return told
}

func TestAKeyThatHasMovedIsAskedForWhereItIs(t *testing.T) {
	told := onNodes(t, func(s *spread, ask func() error) {
		s.set(func() { s.owner, s.learns = "b", true })
		start := time.Now()
		require.NoError(t, ask())
		require.Less(t, time.Since(start), 100*time.Millisecond)
		require.InDelta(t, 2, s.level(""), 0.1)
	})
	require.Empty(t, told)
}

func TestTheKeysOfANodeThatHangsGoToTheNodeThatIsPromoted(t *testing.T) {
	told := onNodes(t, func(s *spread, ask func() error) {
		hung := make(chan struct{})
		s.set(func() { s.hung = hung })
		require.ErrorIs(t, ask(), store.ErrUnavailable)
		s.set(func() { s.owner, s.learns = "b", true })
		for err, start := ask(), time.Now(); err != nil; err = ask() {
			require.Less(t, time.Since(start), time.Second)
			time.Sleep(10 * time.Millisecond)
		}
		for range 10 {
			require.NoError(t, ask())
		}
		s.set(func() { s.owner, s.known = "a", "a" }) // back again, and b says so
		close(hung)
		s.set(func() { s.hung = nil })
		start := time.Now()
		require.NoError(t, ask())
		require.Less(t, time.Since(start), 100*time.Millisecond)
	})
	require.Equal(t, []store.StoreEventKind{store.EventDown, store.EventUp}, told)
}

func TestErrorsThatNoWaitCuresComeAtOnce(t *testing.T) {
	for err, want := range map[error][]store.StoreEventKind{errDenied: {store.EventDenied}, errBroken: nil} {
		told := onNodes(t, func(s *spread, ask func() error) {
			s.set(func() { s.answers = err })
			start := time.Now()
			for range 3 {
				got := ask()
				require.ErrorIs(t, got, err)
				require.NotErrorIs(t, got, store.ErrUnavailable)
			}
			require.Zero(t, time.Since(start))
			s.set(func() { s.answers = nil })
			require.NoError(t, ask())
		})
		require.Equal(t, want, told)
	}
}
