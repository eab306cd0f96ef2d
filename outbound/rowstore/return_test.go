package rowstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
)

// written are rows whose next call of Swap takes a while, and then does something more.
type written struct {
	*table
	then func()
}

func (w *written) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	_ = w.table.Swap(ctx, swaps) // never fails
	var then func()
	w.set(func() { then, w.then = w.then, nil })
	if then != nil {
		time.Sleep(100 * time.Millisecond)
		then()
	}
	return nil
}

// A caller goes while the rows book for it, and somebody locks the row for long: the store does not ask for the row again
// and again, to give the place back that nobody waits for.
func TestStore_ReturnOnALockedRowEnds(t *testing.T) {
	for name, locked := range map[string]time.Duration{"for a while": 500 * time.Millisecond, "for long": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rows := &written{table: newTable()}
				s := rowstore.New(rows, rowstore.Config{})
				_, err := s.Update(context.Background(), "key", calls(1))
				require.NoError(t, err)
				lock := rows.lockOf(s.Key("key"))
				rows.set(func() {
					rows.then = func() {
						lock <- struct{}{}
						time.AfterFunc(locked, func() { <-lock })
					}
				})
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				_, err = s.Update(ctx, "key", calls(1))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				time.Sleep(5 * time.Second)
				var asked int
				rows.set(func() { asked = rows.asked })
				time.Sleep(time.Minute)
				rows.set(func() { require.Equal(t, asked, rows.asked) })
				time.Sleep(locked)
				want := 1.
				if locked > time.Second {
					want = 2
				}
				require.InDelta(t, want, rows.level(t, "key"), 0.1)
			})
		})
	}
}
