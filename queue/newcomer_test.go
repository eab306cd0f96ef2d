package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Until a trip that brings units back has ended, the clock still counts them. A call that comes
// before that is not refused for them.
func TestWhoComesDuringATripIsNotRefusedForWhatItBringsBack(t *testing.T) {
	for name, change := range map[string]func(p *outbound.Permit, cancel func()){
		"a cancel": func(_ *outbound.Permit, cancel func()) { cancel() },
		"a settle": func(p *outbound.Permit, _ func()) { p.Settle(outbound.Cost{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &far{Store: store.NewMemory(), way: 10 * ms}
				q := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
				p, err := q.Acquire(bg, outbound.Cost{1})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				go func() { _, _ = q.Acquire(ctx, outbound.Cost{1}) }()
				pass(100 * ms)
				change(&p, cancel)
				for range 6 { // at once, while the trip is under way, and after it
					synctest.Wait()
					soon, stop := context.WithTimeout(bg, 980*ms)
					go func() {
						defer stop()
						if _, err := q.Acquire(soon, outbound.Cost{0.01}); err != nil {
							t.Error(err)
						}
					}()
					time.Sleep(5 * ms)
				}
				cancel()
				pass(5 * time.Second)
			})
		})
	}
}
