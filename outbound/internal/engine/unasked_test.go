package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// idling is a carrier of a server that is silent. It asks nobody for the key "idle".
type idling struct{}

func (idling) Compose(*engine.Trip) {}

func (idling) Send(ctx context.Context, todo []engine.Attempt) {
	for i := range todo {
		if a := &todo[i]; a.Key.Bucket == "idle" {
			time.Sleep(10 * time.Millisecond)
			a.Unasked, a.Err = true, errRace
		} else {
			<-ctx.Done()
			a.Err = ctx.Err()
		}
	}
}

func (idling) Take(a *engine.Attempt) engine.Verdict {
	if a.Key.Apart = a.Unasked; a.Unasked {
		return engine.Anew
	}
	return engine.Later
}

func (idling) Unavailable(cause error) error { return errors.Join(store.ErrUnavailable, cause) }

// An attempt that has asked nobody does not tell that a server which was away is back.
func TestAnAttemptThatAsksNobodyEndsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told []store.StoreEventKind
		e := engine.New(engine.Config{Carrier: idling{}, Timeout: time.Second, Observe: func(ev store.StoreEvent) { told = append(told, ev.Kind) }})
		_, err := e.Update(context.Background(), "key", calls(1))
		require.ErrorIs(t, err, store.ErrUnavailable)
		time.Sleep(time.Second)
		_, err = e.Update(context.Background(), "idle", calls(1))
		require.Error(t, err)
		synctest.Wait()
		require.Equal(t, []store.StoreEventKind{store.EventDown}, told)
		require.Len(t, e.Stats().Outages, 1)
		require.Zero(t, e.Stats().Trips.Count)
	})
}

// ending is a carrier of a server whose rows are locked, until it is killed. Later it is not even asked.
type ending struct{ since time.Time }

func (*ending) Compose(*engine.Trip) {}

func (c *ending) Send(_ context.Context, todo []engine.Attempt) {
	time.Sleep(10 * time.Millisecond)
	for i := range todo {
		switch a, since := &todo[i], time.Since(c.since); {
		case since > 800*time.Millisecond:
			a.Unasked, a.Err = true, errRace
		case since > 400*time.Millisecond:
			a.Err = errLost
		default:
			a.Err = errRace
		}
	}
}

func (*ending) Take(a *engine.Attempt) engine.Verdict {
	if a.Err == errRace {
		return engine.Anew
	}
	return engine.Later
}

func (*ending) Unavailable(cause error) error { return errors.Join(store.ErrUnavailable, cause) }

// The trip that finds a server away goes on for longer than a caller waits who has had an answer before. That caller
// hears that the server is away, and not what was so before.
func TestACallerHearsTheLatestReason(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := engine.New(engine.Config{Carrier: &ending{time.Now()}, Timeout: time.Second})
		_, err := e.Update(context.Background(), "key", calls(1))
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.ErrorIs(t, err, errLost)
	})
}

// The same, where the latest attempts ask nobody.
func TestAnAttemptThatAsksNobodyIsNoReason(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := engine.New(engine.Config{Carrier: &ending{time.Now().Add(-300 * time.Millisecond)}, Timeout: time.Second})
		_, err := e.Update(context.Background(), "key", calls(1))
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.ErrorIs(t, err, errLost)
	})
}

// barred is a carrier of a server that has locked the row of each key but "key".
type barred struct{}

func (barred) Compose(*engine.Trip) {}

func (barred) Send(_ context.Context, todo []engine.Attempt) {
	time.Sleep(100 * time.Millisecond)
	for i := range todo {
		todo[i].Err = errRace
	}
}

func (barred) Take(a *engine.Attempt) engine.Verdict {
	if a.Key.Bucket == "key" {
		return engine.Failed
	}
	a.Key.Apart = true
	return engine.Later
}

func (barred) Unavailable(cause error) error {
	if cause == errRace {
		return cause
	}
	return errors.Join(store.ErrUnavailable, cause)
}

// A caller may have waited for another batch, so that its time is up before its trip's. It hears that its row is locked,
// and not that the server is away.
func TestACallerHearsTheReasonOfATripThatGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := engine.New(engine.Config{Carrier: barred{}, Timeout: time.Second})
		each(8, func(i int) { // some have one pipeline
			key := "key"
			if i > 0 {
				time.Sleep(50 * time.Millisecond)
				key = string(rune('a' + i))
			}
			_, err := e.Update(context.Background(), key, calls(1))
			require.ErrorIs(t, err, errRace)
			require.NotErrorIs(t, err, store.ErrUnavailable, key)
		})
	})
}
