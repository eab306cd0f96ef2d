package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// settling is a queue whose calls cost more than was booked.
type settling struct{ *Queue }

func (s settling) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := s.Queue.Acquire(ctx, c)
	if err == nil {
		p.Settle(outbound.Cost{1.5 * c[0]})
	}
	return p, err
}

// Users find capacity without a wait beside batch work that is within another limit, costs more than
// was booked, was on hold, or has a share while the store is unavailable. The batch work goes on.
func TestHeadroom_BesideWhatElseHappens(t *testing.T) {
	limit := outbound.Window(100, time.Minute)
	for name, c := range map[string]struct {
		n     int // the capacity, or that of the share
		batch func(*outbound.Bucket) outbound.Limiter
		event func(*outbound.Bucket)
	}{
		"within": {n: 100, batch: func(b *outbound.Bucket) outbound.Limiter {
			return outbound.Within(New(bucket(t, outbound.PerSecond(3)), Config{}), New(b, Config{Headroom: 0.6}))
		}},
		"settled to more": {n: 100, batch: func(b *outbound.Bucket) outbound.Limiter {
			return settling{New(b, Config{Headroom: 0.6})}
		}},
		"held": {n: 100, event: func(b *outbound.Bucket) {
			if err := b.Hold(bg, 20*time.Second); err != nil {
				t.Error(err)
			}
			pass(20*time.Second + ms)
		}},
		"outage": {n: 25},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, limit)
			if name == "outage" {
				b, _ = fallen(t, limit)
			}
			var batch outbound.Limiter = New(b, Config{Headroom: 0.6})
			if c.batch != nil {
				batch = c.batch(b)
			}
			ctx, cancel := context.WithCancel(bg)
			d := new(departures)
			d.loops(ctx, batch, 20, windowed(c.n, time.Minute), 0)
			if pass(150 * time.Second); c.event != nil {
				c.event(b)
			}
			users, before := New(b, Config{}), d.batch
			for range 24 {
				if w := d.user(t, users); w > 0 {
					t.Errorf("%s: a user waits %v", name, w)
				}
				pass(5 * time.Second)
			}
			if keeps := c.n * 6 / 10; d.least < keeps {
				t.Errorf("%s: %d units were free after a call of the batch, want %d", name, d.least, keeps)
			}
			if want := max(1, c.n*4/10-12); d.batch-before < want { // users make 12 a minute
				t.Errorf("%s: %d calls of the batch in 2 minutes, want %d", name, d.batch-before, want)
			}
			cancel()
			pass(time.Second)
		})
	}
}

// A slot that is granted while another limit lacks capacity has no queue ask the store again and
// again: once for each change, and with pauses.
func TestInFlight_GrantWithoutCapacityAsksWithPauses(t *testing.T) {
	for _, limit := range []outbound.Limit{outbound.Window(10, time.Minute), outbound.FixedWindow(10, time.Minute), outbound.Daily(10, time.UTC), outbound.PerMinute(10)} {
		for _, c := range []Config{{}, {Headroom: 0.2}, {MaxWait: 40 * time.Second}} {
			synctest.Test(t, func(t *testing.T) {
				m := &far{Store: store.NewMemory()}
				ctx, cancel := context.WithCancel(bg)
				for range 2 {
					q := New(shared(t, m, limit, outbound.InFlight(5)), c)
					for range 8 {
						go func() {
							for ctx.Err() == nil {
								if p, err := q.Acquire(ctx, one); err == nil {
									time.Sleep(ms)
									p.Done()
								} else {
									time.Sleep(time.Second)
								}
							}
						}()
					}
				}
				pass(5 * time.Second) // the limit is full now
				before := m.trips.Load()
				pass(20 * time.Second)
				if n := m.trips.Load() - before; n > 2*20*20 {
					t.Errorf("%v, %+v: %d requests in 20 s", limit, c, n)
				}
				cancel()
				pass(2 * time.Second)
			})
		}
	}
}
