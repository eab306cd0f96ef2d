package outbound_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// A permit reports what remained when its call was charged, without another trip.
func TestPermit_StateIsThatOfTheDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(outbound.FakeStore)
		ten, hour := outbound.Limit{Capacity: 10, LeakRate: 1}, outbound.Window(50, time.Hour).Of(0, "hour")
		of := func(b *outbound.Bucket, err error) outbound.Limiter { return outbound.Must(b, err) }
		for name, l := range map[string]outbound.Limiter{
			"a word":     of(outbound.NewBucket("k", ten)),
			"several":    of(outbound.NewBucket("k", hour, ten)),
			"with slots": of(outbound.NewBucket("k", ten, outbound.InFlight(99))),
			"shared":     of(outbound.NewSharedBucket(store, "k", ten, hour)),
			"observed":   outbound.Observe(of(outbound.NewBucket("k", ten)), "", func(context.Context, outbound.Event) {}),
			"a queue":    queue.New(outbound.Must(outbound.NewBucket("k", ten)), queue.Config{}),
			"a tenant":   (&outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) { return outbound.NewBucket("k", ten) }}).For(1),
			"within Keyed": (&outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) {
				return (&outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) { return outbound.NewBucket("k", ten) }}).For(2), nil
			}}).For(1),
		} {
			var all []outbound.Permit
			for range 2 {
				for range 2 {
					p, err := l.Acquire(background, outbound.Cost{3})
					outbound.FatalIf(t, err != nil, "%v %v", name, err)
					all = append(all, p)
				}
				time.Sleep(2 * time.Second)
			}
			trips := store.Requests.Load()
			for i, level := range []float64{3, 6, 7, 10} { // 2 have leaked before the third
				s := all[i].State()
				if s.Limit.Capacity != 10 || s.Level != level || s.Remaining != 10-level || s.EmptyIn != time.Duration(level)*time.Second || s.Speed != 1 || s.HeldFor != 0 {
					t.Errorf("%s, call %d: %+v, want a level of %v", name, i, s, level)
				}
				all[i].Settle(outbound.Cost{1})
				if s := all[i].State(); s.Level != level {
					t.Errorf("%s, call %d: settled, it is %v", name, i, s.Level)
				}
			}
			outbound.ErrorIf(t, name != "shared" && store.Requests.Load() != trips,
				"%s: %d trips", name, store.Requests.Load()-trips)
		}
		store.Requests.Store(0)
		shared := outbound.Must(outbound.NewSharedBucket(store, "trips", ten))
		p, err := shared.Acquire(background, outbound.Cost{4})
		if s := p.State(); err != nil || s.Remaining != 6 || store.Requests.Load() != 1 {
			t.Errorf("%+v, %v, after %d trips, want 1", s, err, store.Requests.Load())
		}
		if p, err = shared.Acquire(background, outbound.Cost{outbound.Free}); err != nil || p.State().Level != 4 {
			t.Errorf("a free call: %+v, %v", p.State(), err)
		}
		p, _ = outbound.Unlimited{}.Acquire(background, outbound.Cost{1})
		own := outbound.NewPermit(ownCall{})
		var none *outbound.Permit
		if p.State() != (outbound.State{}) || own.State() != (outbound.State{}) || none.State() != (outbound.State{}) {
			t.Errorf("of no bucket: %+v, %+v", p.State(), own.State())
		}
		b := outbound.Must(outbound.NewBucket("k", outbound.Limit{Capacity: 1e6, LeakRate: 1}))
		if n := testing.AllocsPerRun(100, func() {
			p, _ := b.Acquire(background, outbound.Cost{1})
			p.Done()
		}); n != 0 {
			t.Errorf("a call allocates %v times", n)
		}
	})
}

type ownCall struct{}

func (ownCall) Settle(outbound.Cost)     {}
func (ownCall) Answered(outbound.Answer) {}
func (ownCall) Done()                    {}
