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

// locking is a carrier to keys of which some are locked. A trip that meets a lock does nothing,
// and the key's next trip waits until the lock is free.
type locking struct {
	*porter
	mu     sync.Mutex
	locked map[string]chan struct{} // by key; closed when the lock is free
	sends  int                      // that wait for a lock now
	most   int                      // trips in one Send that waits
	down   error                    // what the server answers to all
}

func (l *locking) set(down error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

func (l *locking) lock(key string) (free func()) {
	until := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locked[key] = until
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.locked, key)
		close(until)
	}
}

func (l *locking) Compose(t *engine.Trip) { t.State = t.Key.Apart }

func (l *locking) Send(ctx context.Context, todo []engine.Attempt) {
	for i := range todo {
		l.mu.Lock()
		until := l.locked[todo[i].Key.Bucket]
		if down := l.down; down != nil || until == nil {
			l.mu.Unlock()
			if todo[i].Err = down; down == nil {
				l.porter.Send(ctx, todo[i:i+1])
			}
			continue
		}
		if !todo[i].State.(bool) {
			l.mu.Unlock()
			todo[i].Err = errRace
			continue
		}
		l.sends++
		l.most = max(l.most, len(todo))
		l.mu.Unlock()
		select {
		case <-until:
			l.mu.Lock()
			todo[i].Err = l.down
			l.mu.Unlock()
			if todo[i].Err == nil {
				l.porter.Send(ctx, todo[i:i+1])
			}
		case <-time.After(450 * time.Millisecond):
			todo[i].Err = errRace
		}
		l.mu.Lock()
		l.sends--
		l.mu.Unlock()
	}
}

func (l *locking) Take(a *engine.Attempt) engine.Verdict {
	switch a.Err {
	case errRace:
		a.Key.Apart = true
		return engine.Anew
	case nil:
		a.Key.Apart = false
	}
	return l.porter.Take(a)
}

func TestALockedKeyDelaysNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		l := &locking{porter: &porter{s}, locked: make(map[string]chan struct{})}
		var told []store.StoreEventKind
		e := engine.New(engine.Config{Carrier: l, Timeout: time.Second, Observe: func(ev store.StoreEvent) { told = append(told, ev.Kind) }})
		const stuck, late = 20, 5 // keys that are locked for too long, and of those the ones that are free in time
		var wg sync.WaitGroup
		var free []func()
		start := time.Now()
		for i := range stuck {
			key := fmt.Sprint("locked ", i)
			unlock := l.lock(key)
			if i < late {
				free = append(free, unlock)
			} else {
				defer unlock()
			}
			wg.Go(func() {
				_, err := e.Update(context.Background(), key, calls(1))
				if i < late {
					require.NoError(t, err)
					require.Equal(t, time.Second/2, time.Since(start))
					return
				}
				require.ErrorIs(t, err, errRace)
				require.NotErrorIs(t, err, store.ErrUnavailable)
				require.LessOrEqual(t, time.Since(start), time.Second)
			})
		}
		synctest.Wait()
		require.Equal(t, stuck, l.sends)
		require.Equal(t, 1, l.most, "a trip that waits goes by itself")
		each(100, func(i int) {
			_, err := e.Update(context.Background(), fmt.Sprint(i), calls(1))
			require.NoError(t, err)
			require.Zero(t, time.Since(start), "it need not wait for a locked key")
		})
		time.Sleep(time.Second / 2)
		for _, unlock := range free {
			unlock()
		}
		wg.Wait()
		for i := range late { // from then on such a key goes with the others
			_, err := e.Update(context.Background(), fmt.Sprint("locked ", i), calls(1))
			require.NoError(t, err)
			require.InDelta(t, 2, s.level(fmt.Sprint("locked ", i)), 0.1)
		}
		synctest.Wait()
		require.Empty(t, told)
	})
}

// What a key was told before the server fell silent is not why its operations fail.
func TestAKeyThatWasLockedIsAwayOnceTheServerIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &locking{porter: &porter{newShelf()}, locked: make(map[string]chan struct{})}
		e := engine.New(engine.Config{Carrier: &silent{locking: l}, Timeout: time.Second})
		defer l.lock("key")()
		each(3, func(i int) {
			time.Sleep(time.Duration(i) * 100 * time.Millisecond)
			_, err := e.Update(context.Background(), "key", calls(1))
			require.ErrorIs(t, err, store.ErrUnavailable)
		})
	})
}

// silent answers one trip.
type silent struct {
	*locking
	asked atomic.Bool
}

func (s *silent) Send(ctx context.Context, todo []engine.Attempt) {
	if s.asked.Swap(true) {
		<-ctx.Done()
		todo[0].Err = ctx.Err()
		return
	}
	s.locking.Send(ctx, todo)
}

func (s *silent) Take(a *engine.Attempt) engine.Verdict {
	if errors.Is(a.Err, context.DeadlineExceeded) {
		return engine.Later
	}
	return s.locking.Take(a)
}

func TestApart_TripFailsWhileServerIsUnavailable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &locking{porter: &porter{newShelf()}, locked: make(map[string]chan struct{})}
		var told []store.StoreEventKind
		e := engine.New(engine.Config{Carrier: l, Timeout: time.Second, Observe: func(ev store.StoreEvent) { told = append(told, ev.Kind) }})
		ask := func() error {
			_, err := e.Update(context.Background(), "key", calls(1))
			return err
		}
		unlock := l.lock("key")
		time.AfterFunc(time.Second/10, func() {
			l.set(errLost)
			unlock()
		})
		err := ask()
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.ErrorContains(t, err, errLost.Error())
		require.Empty(t, told)
		require.ErrorIs(t, ask(), store.ErrUnavailable)
		synctest.Wait()
		require.Equal(t, []store.StoreEventKind{store.EventDown}, told)
		l.set(nil)
		time.Sleep(time.Second)
		require.NoError(t, ask())
		synctest.Wait()
		require.Equal(t, []store.StoreEventKind{store.EventDown, store.EventUp}, told)
	})
}
