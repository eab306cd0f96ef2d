package rowstore

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Rows that cannot be locked pass the conformance test.
func TestConformance_WithoutLocks(t *testing.T) {
	rows := unlocked{newTable()}
	outboundtest.TestStore(t, func(*testing.T) store.Store { return New(rows, Config{Timeout: time.Minute}) })
}

// Rows without a clock pass the conformance test.
func TestConformance_OwnClocks(t *testing.T) {
	rows := unlocked{&process{newTable(), func() time.Duration { return time.Hour }}}
	outboundtest.TestStore(t, func(*testing.T) store.Store { return New(rows, Config{Timeout: time.Minute}) })
}

// A store passes the conformance test with its faults.
func TestConformance_WithFaults(t *testing.T) {
	rows := newTable()
	var lines sync.Map // of the stores
	open := func() store.Store {
		l := &line{table: rows}
		s := New(l, Config{Timeout: 4 * time.Second})
		lines.Store(s, l)
		return s
	}
	answers := func(s store.Store, f around) {
		l, _ := lines.Load(s)
		l.(*line).answers(f)
	}
	outboundtest.TestStore(t, func(*testing.T) store.Store { return open() }, outboundtest.StoreHooks{
		Break: func(s store.Store) (mend func()) {
			mended := make(chan struct{})
			answers(s, func(_ context.Context, _ []Swap, carry func() error) error {
				<-mended
				return carry()
			})
			return func() {
				answers(s, nil)
				close(mended)
			}
		},
		Delay: func(s store.Store, by time.Duration) (stop func()) {
			answers(s, func(ctx context.Context, swaps []Swap, carry func() error) error {
				if swaps == nil {
					return carry()
				}
				late := slices.Clone(swaps)
				time.AfterFunc(by, func() { _ = rows.Swap(bg, late) })
				<-ctx.Done()
				return ctx.Err()
			})
			return func() { answers(s, nil) }
		},
		Corrupt: func(s store.Store, key string) {
			name := string(s.(*Store).Key(key))
			rows.set(func() { rows.rows[name] = Row{Token: random(), Bytes: []byte("corrupt")} })
		},
		Reopen: func(store.Store) store.Store { return open() },
	})
}

// A store behind a bad line passes the conformance test. The line loses no reply: a repeated reply
// has the state of a moment ago, and the test wants the state of now. Its ways are short: a step may
// count from as much earlier, and the test allows 20 µs.
func TestConformance_OverABadLine(t *testing.T) {
	seed := dice(t).Uint64()
	for sentence, check := range outboundtest.StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := &line{table: newTable(), lost: 0.1, repeated: 0.3, delay: time.Microsecond / 10, dice: rand.New(rand.NewPCG(seed, 0))}
				defer l.wg.Wait()
				check(t, New(l, Config{Timeout: time.Minute}))
			})
		})
	}
}

// Three processes change the limits of a key between each other's calls.
func TestConformance_ChangesOfLimits(t *testing.T) {
	n := 100
	if os.Getenv("DRIPFEED_LONG") != "" {
		n = 40_000
	}
	rollouttest.PlayAll(t, n, true, func() func() store.Store {
		rows := newTable()
		return func() store.Store { return New(rows, Config{Timeout: time.Minute}) }
	})
}
