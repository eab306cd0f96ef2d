package outbound

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// aloneInFlight are the limits of a bucket whose only limit is an InFlight.
var aloneInFlight = []Limit{InFlight(2)}

// A call that has a slot neither makes a request nor waits for one, as long as its process has a recent
// reply. Also its real cost changes nothing.
func TestInFlight_AloneACallWithASlotWaitsForNoTrip(t *testing.T) {
	inFleet(t, 1, aloneInFlight, func(links []*link, b []*Bucket) {
		admit(t, b[0], 1)
		p := admit(t, b[0], 1)
		began, was := time.Now(), links[0].trips.Load()
		for range 1000 {
			time.Sleep(time.Millisecond)
			p.Settle(Cost{5})
			p.Done()
			p = admit(t, b[0], 1)
		}
		if d, n := time.Since(began), links[0].trips.Load()-was; d > 1001*time.Millisecond || n > 80 {
			t.Errorf("1,000 calls of 1 ms in a slot took %v and made %d trips", d, n)
		}
	})
}

// A pause by one process stops the calls of another 25 ms and a trip later, however it got its slots. Its
// own calls stop immediately.
func TestInFlight_AloneAHoldReachesAllProcesses(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 4 * time.Second} {
		inFleet(t, 2, aloneInFlight, func(links []*link, b []*Bucket) {
			p := admit(t, b[0], 1)
			admit(t, b[0], 1)
			for range 7 {
				time.Sleep(every)
				p.Done()
				p = admit(t, b[0], 1)
			}
			go func() {
				if err := b[1].Pause(ctx, time.Minute); err != nil {
					t.Error(err)
				}
			}()
			time.Sleep(time.Millisecond)
			paused := time.Now()
			for {
				p.Done()
				began := time.Now()
				var held *ThrottledError
				q, err := b[0].Acquire(ctx, Cost{1})
				if errors.As(err, &held) && held.Held {
					break
				}
				if since := began.Sub(paused); err != nil || since > 26*time.Millisecond {
					t.Fatalf("calls each %v: %v after the pause: %v", every, since, err)
				}
				time.Sleep(time.Millisecond)
				p = q
			}
			if err := b[0].Resume(ctx); err != nil {
				t.Fatal(err)
			}
			p, ok := admitSoon(t, b[0], time.Second)
			if !ok {
				t.Fatal("no slot after the hold")
			}
			p.Refused(time.Minute)
			if _, err := b[0].Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
				t.Errorf("after its own refusal: %v", err)
			}
		})
	}
}

// slowAnswers is a store whose answers to looks take 20 ms.
type slowAnswers struct{ *store.Memory }

func (s slowAnswers) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := s.Memory.Update(ctx, key, op)
	if op.Action == store.Look && len(op.Reports) == 0 {
		time.Sleep(20 * time.Millisecond)
	}
	return r, err
}

// An answer from before a hold does not end the hold in this process.
func TestInFlight_AloneALateAnswerHidesNoHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(slowAnswers{store.NewMemory()}, "k", aloneInFlight...))
		p := admit(t, b, 1)
		go func() {
			_, _ = b.State(ctx)
		}()
		time.Sleep(10 * time.Millisecond)
		p.Refused(time.Minute)
		p.Done()
		time.Sleep(15 * time.Millisecond)
		var held *ThrottledError
		if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &held) || !held.Held {
			t.Errorf("on hold: %v", err)
		}
	})
}

// A success whose report was lost is reported with the next call: then a refusal is no second one in a
// row.
func TestInFlight_AloneAReportIsNotLost(t *testing.T) {
	inFleet(t, 1, aloneInFlight, func(links []*link, b []*Bucket) {
		refused, ok := admit(t, b[0], 1), admit(t, b[0], 1)
		refused.Refused(time.Second)
		refused.Done()
		time.Sleep(2 * time.Second)
		p := admit(t, b[0], 1)
		ok.Failed()
		links[0].cut.Store(true)
		p.Done()
		links[0].cut.Store(false)
		next := admit(t, b[0], 1)
		next.Refused(time.Second)
		if s := states(t, b[0]); s[0].HeldFor > time.Second {
			t.Errorf("held for %v", s[0].HeldFor)
		}
	})
}
