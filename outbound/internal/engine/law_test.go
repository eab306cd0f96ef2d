package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A late answer has the time of a reservation that others have followed long since. It is late
// because the reply before it was lost or because the line is slow. Its call must not leave next to
// theirs.
func TestNoMoreCallsLeaveThanTheLimitAllowsOverABadLine(t *testing.T) {
	limits := []store.Limit{{Name: "calls", Capacity: 50, Rate: 50}}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				carrier, _ := kind()
				var left outboundtest.History
				seed := dice(t).Uint64()
				each(4, func(i int) {
					line := &badLine{Carrier: carrier(), lost: 0.05, unheard: 0.3, delay: 10 * time.Millisecond}
					line.dice = rand.New(rand.NewPCG(seed, uint64(i)))
					e := engine.New(engine.Config{Carrier: line, Timeout: time.Minute})
					each(6, func(j int) {
						for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
							op := &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}}
							r, err := e.Update(context.Background(), "key", op)
							// As a bucket does: a call that is late by more than the grace is returned.
							if err == nil && len(r.Charges) == 1 && time.Since(r.When) <= store.BookingGrace {
								left.Add(time.Now(), 1)
							}
							time.Sleep(time.Duration(i+j+1) * 10 * time.Millisecond)
						}
					})
					line.wait()
				})
				require.Greater(t, left.Len(), 400)
				late := 150 * time.Millisecond // the bound of a late answer, and a normal latency
				require.NoError(t, left.Check(50, 50, 50*late.Seconds()))
			})
		})
	}
}

// unheard is a carrier that loses its next reply, and reports the loss after a while.
type unheard struct {
	engine.Carrier
	after time.Duration // 0: the reply arrives
}

func (u *unheard) Send(ctx context.Context, todo []engine.Attempt) {
	time.Sleep(time.Millisecond)
	u.Carrier.Send(ctx, todo)
	time.Sleep(time.Millisecond)
	if u.after > 0 {
		time.Sleep(u.after)
		u.after, todo[0].Err = 0, errLost
	}
}

func TestARepeatedReplyHasTheTimeOfTheFirst(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				carrier, _ := kind()
				u := &unheard{Carrier: carrier()}
				e := engine.New(engine.Config{Carrier: u, Timeout: time.Minute})
				for i := range 20 {
					if i == 10 {
						u.after = time.Second
					}
					start := time.Now()
					r, err := e.Update(context.Background(), "key", calls(1))
					require.NoError(t, err)
					require.Len(t, r.Charges, 1)
					if i > 0 { // the first may take two trips
						require.WithinDuration(t, start, r.When, 3*time.Millisecond, "trip %d", i)
						require.WithinDuration(t, start, r.Heard, 10*time.Millisecond, "trip %d", i)
					}
				}
			})
		})
	}
}

// contended is a carrier to rows of which other workers always write one first.
type contended struct{ rowCarrier }

func (c contended) Send(ctx context.Context, todo []engine.Attempt) {
	time.Sleep(time.Millisecond)
	c.rowCarrier.Send(ctx, todo)
	for i := range todo {
		if a := &todo[i]; a.Key.Bucket == "hot" {
			a.Err = errRace
		}
	}
}

func TestAKeyThatIsNeverThisWorkersTurnDelaysNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told []store.StoreEventKind
		e := engine.New(engine.Config{
			Carrier: contended{rowCarrier{newTable(), "worker"}}, Timeout: time.Second,
			Observe: func(ev store.StoreEvent) { told = append(told, ev.Kind) },
		})
		start := time.Now()
		each(100, func(i int) {
			if i == 0 {
				_, err := e.Update(context.Background(), "hot", &store.Op{Limits: ages})
				require.ErrorIs(t, err, errRace)
				require.NotErrorIs(t, err, store.ErrUnavailable)
				require.Equal(t, time.Second, time.Since(start))
				return
			}
			_, err := e.Update(context.Background(), fmt.Sprint(i), calls(1))
			require.NoError(t, err)
			require.Less(t, time.Since(start), 20*time.Millisecond)
		})
		synctest.Wait()
		require.Empty(t, told)
	})
}

func TestAReportThatNobodyIsLeftToRepeatIsToldAsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told []store.StoreEventKind
		e := engine.New(engine.Config{
			Carrier: contended{rowCarrier{newTable(), "worker"}}, Timeout: time.Second,
			Observe: func(ev store.StoreEvent) { told = append(told, ev.Kind) },
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond/2) // while the trip is under way
		defer cancel()
		_, err := e.Update(ctx, "hot", &store.Op{Limits: ages, Reports: settle(&store.Charge{N: store.Units{1}}, 2)})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []store.StoreEventKind{store.EventLost}, told)
	})
}
