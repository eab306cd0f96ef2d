package queue

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Users who call at 8 of 10 calls a second wait as if 100 batch callers behind them were hardly
// there, no call is lost, and the batch has what the users leave: in memory and in a store.
func TestQueue_BehindGoesWhileNoCallWaits(t *testing.T) {
	for _, remote := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.PerSecond(10))
			if remote {
				b = shared(t, &far{Store: store.NewMemory(), way: ms, jitter: 0.05}, outbound.PerSecond(10))
			}
			users := New(b, Config{})
			ctx, cancel := context.WithCancel(bg)
			batch := loop(ctx, New(b, Config{Behind: users}), 100)
			var waits []time.Duration
			var lost atomic.Int64
			answered := make(chan time.Duration, 1000)
			for range 8 * 60 {
				time.Sleep(125 * ms)
				go func() {
					came := time.Now()
					p, err := users.Acquire(bg, outbound.Cost{1})
					if p.Done(); err != nil {
						lost.Add(1)
					}
					answered <- time.Since(came)
				}()
			}
			pass(time.Second)
			for range len(answered) {
				waits = append(waits, <-answered)
			}
			slices.Sort(waits)
			p95 := waits[len(waits)*95/100]
			t.Logf("remote: %v: p95 %v, longest %v, %d calls of the batch", remote, p95, waits[len(waits)-1], batch.Load())
			if len(waits) != 8*60 || lost.Load() > 0 || p95 > 250*ms || batch.Load() < 100 {
				t.Errorf("remote: %v: p95 %v, %d calls of users, %d lost, %d of the batch", remote, p95, len(waits), lost.Load(), batch.Load())
			}
			n := batch.Load()
			pass(10 * time.Second)
			if n = batch.Load() - n; n < 97 {
				t.Errorf("remote: %v: the batch alone made %d calls in 10 s", remote, n)
			}
			cancel()
			pass(time.Second)
		})
	}
}

// While users have a backlog no batch call leaves, those at their deadlines are refused, and the
// rest leaves as soon as the last user has: also when the users are cancelled, and through two queues
// in between.
func TestQueue_BehindABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(10))
		users := New(b, Config{})
		middle := New(b, Config{Behind: users})
		batch := New(b, Config{Behind: middle})
		ctx, cancel := context.WithCancel(bg)
		for range 1000 {
			go users.Acquire(ctx, outbound.Cost{1})
		}
		synctest.Wait()
		begin := time.Now()
		late := make(chan error, 1)
		go func() {
			soon, stop := context.WithTimeout(bg, 5*time.Second)
			defer stop()
			_, err := batch.Acquire(soon, outbound.Cost{1})
			late <- err
		}()
		left := loop(ctx, batch, 5)
		pass(10 * time.Second)
		if left.Load() > 0 || batch.Len() != 5 || middle.Len() > 0 {
			t.Errorf("%d batch calls have left before the users, %d wait", left.Load(), batch.Len())
		}
		if err := <-late; !errors.Is(err, outbound.ErrThrottled) {
			t.Error(err)
		}
		for users.Len() > 0 {
			pass(100 * ms)
		}
		if took := time.Since(begin); left.Load() > 1 || took < 99*time.Second {
			t.Errorf("after %v %d batch calls have left", took, left.Load())
		}
		pass(time.Second)
		if n := left.Load(); n < 8 {
			t.Errorf("%d batch calls have left in the second after the users", n)
		}
		// Users that give up.
		giveUp, stop := context.WithCancel(bg)
		for range 100 {
			go users.Acquire(giveUp, outbound.Cost{1})
		}
		pass(time.Second)
		n := left.Load()
		stop()
		pass(time.Second)
		if n = left.Load() - n; n < 7 {
			t.Errorf("%d batch calls have left in the second after the users gave up", n)
		}
		cancel()
		pass(time.Second)
	})
}

// A job behind users sends its further requests while users wait for the end of the job.
func TestQueue_BehindHoldsNoRequestOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(10), outbound.InFlight(1))
		users := New(b, Config{})
		batch := New(b, Config{Behind: users})
		err := outbound.Do(bg, batch, outbound.Cost{1}, func(ctx context.Context) error {
			go outbound.Do(bg, users, outbound.Cost{1}, func(context.Context) error { return nil })
			pass(time.Second)
			for range 3 {
				var p outbound.Permit
				if err := p.AcquireIn(ctx, batch, outbound.Cost{1}); err != nil {
					return err
				}
				p.Done()
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		pass(time.Second)
		if users.Len() > 0 {
			t.Error("the user still waits")
		}
	})
}
