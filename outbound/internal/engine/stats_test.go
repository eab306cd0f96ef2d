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

// requireGrown requires that no count of a later Stats is less than that of an earlier one.
func requireGrown(t *testing.T, was, is store.StoreStats) {
	t.Helper()
	flat := func(s *store.StoreStats) []uint64 {
		all := []uint64{s.Answered, s.Remembered, s.Failed, s.Cancelled, s.Repeats, s.Trips.Count, uint64(s.Trips.Time)}
		return append(all, s.Trips.Within[:]...)
	}
	before, after := flat(&was), flat(&is)
	for i := range before {
		require.LessOrEqual(t, before[i], after[i], "%+v\n%+v", was, is)
	}
	within := uint64(0)
	for _, n := range is.Trips.Within {
		within += n
	}
	require.LessOrEqual(t, within, is.Trips.Count)
}

func TestEachOperationIsCountedOnceAndNoCountGoesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newShelf()
		line := &badLine{Carrier: &porter{s}, dice: dice(t), lost: 0.1, unheard: 0.1, delay: 10 * time.Millisecond}
		h := &hanging{Carrier: line}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Second})
		small := []store.Limit{{Name: "calls", Capacity: 5, Rate: 10}}
		done := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() {
			for was := e.Stats(); ; time.Sleep(100 * time.Millisecond) {
				is := e.Stats()
				requireGrown(t, was, is)
				was = is
				select {
				case <-done:
					return
				default:
				}
			}
		})
		var asked, good, failed, cancelled atomic.Uint64
		each(8, func(i int) {
			for j := range 60 {
				if i == 0 && j%30 == 15 {
					free := h.hang()
					time.AfterFunc(2*time.Second, free)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(50+j%3*5000)*time.Millisecond)
				op := calls(1)
				op.Limits = small
				asked.Add(1)
				_, err := e.Update(ctx, fmt.Sprint("key ", j%4), op)
				switch {
				case err == nil:
					good.Add(1)
				case errors.Is(err, context.DeadlineExceeded):
					cancelled.Add(1)
				default:
					failed.Add(1)
				}
				cancel()
				time.Sleep(time.Duration(j%5) * 10 * time.Millisecond)
			}
		})
		time.Sleep(time.Minute)
		close(done)
		watching.Wait()
		line.wait()
		is := e.Stats()
		require.Equal(t, good.Load(), is.Answered+is.Remembered)
		require.Equal(t, failed.Load(), is.Failed)
		require.Equal(t, cancelled.Load(), is.Cancelled)
		require.Equal(t, asked.Load(), is.Answered+is.Remembered+is.Failed+is.Cancelled)
		for _, n := range []uint64{is.Answered, is.Failed, is.Cancelled, is.Repeats, is.Trips.Count} {
			require.NotZero(t, n, "nothing was tested: %+v", is)
		}
	})
}

// slow is a carrier whose attempts take a while each.
type slow struct {
	*porter
	takes time.Duration
	loses int // the replies that are lost first
}

func (s *slow) Send(ctx context.Context, todo []engine.Attempt) {
	time.Sleep(s.takes)
	s.porter.Send(ctx, todo)
	if s.loses--; s.loses >= 0 {
		todo[0].Err = errLost
	}
}

func TestTripsAreCountedByTheTimeThatTheyTake(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &slow{porter: &porter{newShelf()}}
		e := engine.New(engine.Config{Carrier: s, Timeout: 100 * time.Hour})
		require.Zero(t, e.Stats().Trips.Count)
		var all time.Duration
		took := []time.Duration{0, time.Millisecond, time.Millisecond + 1, 70 * time.Millisecond, time.Second, time.Hour, time.Hour + 1}
		for i, d := range took {
			s.takes = d
			_, err := e.Update(context.Background(), fmt.Sprint(i), calls(1)) // the keys are in all shards
			require.NoError(t, err)
			all += d
		}
		trips := e.Stats().Trips
		require.Equal(t, uint64(len(took)), trips.Count)
		require.Equal(t, all, trips.Time)
		above := time.Duration(-1)
		for i, bound := range store.TimeBounds {
			want := uint64(0)
			for _, d := range took {
				if d > above && d <= bound {
					want++
				}
			}
			require.Equal(t, want, trips.Within[i], "within %v", bound)
			above = bound
		}
		require.Zero(t, e.Stats().Repeats)

		s.takes, s.loses = time.Minute, 2
		_, err := e.Update(context.Background(), "key", calls(1))
		require.NoError(t, err)
		is := e.Stats()
		require.Equal(t, uint64(2), is.Repeats)
		require.Equal(t, trips.Count+1, is.Trips.Count, "it is one trip, however often it was sent")
		require.InDelta(t, 3*time.Minute, is.Trips.Time-trips.Time, float64(time.Second)) // and pauses
	})
}

func TestOperationsThatShareATripAreCountedApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &hanging{Carrier: &porter{newShelf()}}
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Second})
		free := h.hang()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				_, err := e.Update(context.Background(), "key", calls(1))
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		free()
		wg.Wait()
		is := e.Stats()
		require.Equal(t, uint64(1000), is.Answered)
		require.Equal(t, uint64(h.sent), is.Trips.Count)
	})
}

func TestAnswersFromMemoryAreCountedApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newShelf().worker(engine.Config{})
		for range 20 { // five go, one is refused, and so are the others, from memory
			op := calls(1)
			op.Limits = []store.Limit{{Name: "calls", Capacity: 5, Rate: 1e-5}}
			_, err := e.Update(context.Background(), "key", op)
			require.NoError(t, err)
		}
		is := e.Stats()
		require.Equal(t, uint64(6), is.Trips.Count)
		require.Equal(t, uint64(6), is.Answered)
		require.Equal(t, uint64(14), is.Remembered)
	})
}

func TestStatsTellOfAnOutageSinceWhenAndWhy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &locking{porter: &porter{newShelf()}, locked: make(map[string]chan struct{})} // none is: it answers what it is told
		e := engine.New(engine.Config{Carrier: h, Timeout: time.Second})
		ask := func() error {
			_, err := e.Update(context.Background(), "key", calls(1))
			return err
		}
		require.NoError(t, ask())
		require.Nil(t, e.Stats().Outages)
		h.set(errLost)
		require.ErrorIs(t, ask(), store.ErrUnavailable)
		synctest.Wait()
		since := time.Now()
		for _, why := range []error{errLost, errors.New("still starting")} {
			h.set(why)
			for range 5 {
				time.Sleep(time.Minute)
				require.ErrorIs(t, ask(), store.ErrUnavailable)
			}
			all := e.Stats().Outages
			require.Len(t, all, 1)
			require.Empty(t, all[0].Server)
			require.WithinDuration(t, since, all[0].Since, time.Second/10)
			require.ErrorIs(t, all[0].Err, store.ErrUnavailable)
			require.ErrorContains(t, all[0].Err, why.Error())
		}
		h.set(nil)
		time.Sleep(time.Minute)
		require.NoError(t, ask())
		require.Nil(t, e.Stats().Outages)
	})
}

func TestStatsTellWhichServerIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &spread{porter: &porter{newShelf()}, owner: "a", known: "a"}
		e := engine.New(engine.Config{Carrier: s, Nodes: s.nodes(), Timeout: time.Second})
		ask := func() error {
			_, err := e.Update(context.Background(), "", calls(1))
			return err
		}
		require.NoError(t, ask())
		hung := make(chan struct{})
		s.set(func() { s.hung = hung })
		require.ErrorIs(t, ask(), store.ErrUnavailable)
		all := e.Stats().Outages
		require.Len(t, all, 1)
		require.Equal(t, "a", all[0].Server)
		close(hung)
		s.set(func() { s.hung = nil; s.owner = "b"; s.learns = true }) // a is no longer there
		require.Eventually(t, func() bool {
			time.Sleep(time.Second)
			return ask() == nil
		}, time.Minute, time.Second)
		require.Nil(t, e.Stats().Outages, "b has the keys of a")

		s.set(func() { s.answers = errDenied })
		require.ErrorIs(t, ask(), errDenied)
		all = e.Stats().Outages
		require.Len(t, all, 1)
		require.Equal(t, "b", all[0].Server)
		require.Equal(t, time.Now(), all[0].Since)
		require.ErrorIs(t, all[0].Err, errDenied)
		require.NotErrorIs(t, all[0].Err, store.ErrUnavailable)
		s.set(func() { s.answers = nil })
		require.NoError(t, ask())
		require.Nil(t, e.Stats().Outages)
	})
}
