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

// reading is a carrier of a server that only reads. It refuses steps that are older than a second.
type reading struct{}

var (
	errReading = errors.New("the server only reads")
	errAged    = errors.New("the step is too old")
)

func (reading) Compose(t *engine.Trip) { t.State = time.Now() }

func (reading) Send(_ context.Context, todo []engine.Attempt) {
	time.Sleep(time.Millisecond)
	for i := range todo {
		if a := &todo[i]; time.Since(a.State.(time.Time)) > time.Second {
			a.Err = errAged
		} else {
			a.Err = errReading
		}
	}
}

func (reading) Take(a *engine.Attempt) engine.Verdict {
	if a.Err == errAged {
		return engine.Anew
	}
	return engine.Later
}

func (reading) Unavailable(cause error) error { return errors.Join(store.ErrUnavailable, cause) }

// A server that only reads is down after Config.Timeout, however long that is: then calls fail
// immediately, and an event reports it.
func TestEngine_ServerThatOnlyReadsIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		events := make(chan store.StoreEvent, 100)
		e := engine.New(engine.Config{Carrier: reading{}, Timeout: 5 * time.Second, Observe: func(v store.StoreEvent) { events <- v }})
		began := time.Now()
		_, err := e.Update(context.Background(), "key", calls(1))
		require.ErrorIs(t, err, errReading)
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		synctest.Wait()
		require.Len(t, events, 1)
		require.ErrorIs(t, (<-events).Err, errReading)
		began = time.Now()
		_, err = e.Update(context.Background(), "key", calls(1))
		require.ErrorIs(t, err, errReading)
		require.Zero(t, time.Since(began))
		for time.Since(began) < 20*time.Second { // further attempts find the same
			_, err = e.Update(context.Background(), "key", calls(1))
			require.ErrorIs(t, err, errReading)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		require.Empty(t, events)
	})
}
