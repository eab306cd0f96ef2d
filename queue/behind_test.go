package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Users who call at 8 of 10 calls a second wait as if 100 batch calls behind them were hardly
// there, no call is lost, and the batch has what the users leave: in memory and in a store.
func TestBehind_LeavesWhileNoUserWaits(t *testing.T) {
	for _, remote := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.PerSecond(10))
			if remote {
				b = shared(t, &far{Store: store.NewMemory(), way: ms, jitter: 0.05}, outbound.PerSecond(10))
			}
			users, all := New(b, Config{}), make(calls, 8*60)
			ctx, cancel := context.WithCancel(bg)
			batch := loop(t, ctx, New(b, Config{Behind: users}), 100, nil)
			for i := range all {
				time.Sleep(125 * ms)
				all[i] = comeAndUse(bg, users, done, 1)
			}
			pass(time.Second)
			n, _ := all.admitted()
			behind := batch.Load()
			if n != len(all) || all.p95() > 250*ms || behind < 100 {
				t.Errorf("remote: %v: p95 %v, %d calls of users, %d of the batch", remote, all.p95(), n, behind)
			}
			if pass(10 * time.Second); batch.Load()-behind < 97 {
				t.Errorf("remote: %v: the batch alone made %d calls in 10 s", remote, batch.Load()-behind)
			}
			cancel()
			pass(time.Second)
		})
	}
}

// While users wait no batch call leaves, those at their deadlines are refused, and the rest leaves as
// soon as the last user has: also when the users are cancelled, and through two queues in between.
func TestBehind_WaitsForABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(10))
		users := New(b, Config{})
		middle := New(b, Config{Behind: users})
		batch := New(b, Config{Behind: middle})
		ctx, cancel := context.WithCancel(bg)
		comeAll(1000, ctx, users, 1)
		begin, late := time.Now(), comeIn(t, 5*time.Second, batch, 1)
		left := loop(t, ctx, batch, 5, nil)
		pass(10 * time.Second)
		if left.Load() > 0 || batch.Len() != 5 || middle.Len() > 0 || !errors.Is(late.ended().err, outbound.ErrThrottled) {
			t.Errorf("%d batch calls have left before the users, %d wait, %v", left.Load(), batch.Len(), late.ended().err)
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
		giveUp, stop := context.WithCancel(bg)
		comeAll(100, giveUp, users, 1)
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

// While users wait, a call that its own queue makes too late is refused when it comes, though the queue
// has booked nothing yet.
func TestBehind_RefusesEarlyWhileUsersWait(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.PerSecond(10)}, func(t *testing.T, b *outbound.Bucket) {
		ctx, cancel := context.WithCancel(bg)
		users := New(b, Config{})
		batch := New(b, Config{Behind: users})
		comeAll(100, ctx, users, 1)
		comeAll(30, ctx, batch, 1)
		if s := batch.Stats(); s.Waiting != 30 || s.NextIn != 0 {
			t.Errorf("%+v", s)
		}
		if c := comeIn(t, 2*time.Second, batch, 1); c.end.Load() == nil || c.refused().RetryAfter < 2*time.Second {
			t.Errorf("with 2 s behind 30 calls: %v", c.ended())
		}
		if c := comeIn(t, 4*time.Second, batch, 1); c.end.Load() != nil {
			t.Errorf("with 4 s behind 30 calls, which the users may let go: %v", c.ended().err)
		}
		cancel()
		pass(time.Minute)
	})
}

// A job behind users sends its further requests while users wait for the end of the job.
func TestBehind_DelaysNoRequestOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(10), outbound.InFlight(1))
		users := New(b, Config{})
		batch := New(b, Config{Behind: users})
		err := outbound.Do(bg, batch, one, func(ctx context.Context) error {
			come(bg, users, 1)
			pass(time.Second)
			for range 3 {
				var p outbound.Permit
				if err := p.AcquireIn(ctx, batch, one); err != nil {
					return err
				}
				p.Done()
			}
			return nil
		})
		if pass(time.Second); err != nil || users.Len() > 0 {
			t.Errorf("%v, %d users wait", err, users.Len())
		}
	})
}
