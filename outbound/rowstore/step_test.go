package rowstore

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// retried makes a call while before is called with the number of each call of Swap, before it is
// carried out. At most so many calls run at a time. The reply of the second one is lost. The call
// must be charged once.
func retried(t *testing.T, calls int, before func(rows *table, c *carrier, call int64)) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		l := &line{table: rows}
		c := newCarrier(unlocked{l}, &Config{})
		c.slots = make(chan struct{}, calls)
		s := &Store{engine: engine.New(engine.Config{Carrier: c, Timeout: time.Second})}
		require.NoError(t, one(s, "key"))
		var call atomic.Int64
		l.answers(func(_ context.Context, _ []Swap, carry func() error) error {
			number := call.Add(1)
			before(rows, c, number)
			err := carry()
			if number == 2 {
				return errLost
			}
			return err
		})
		require.NoError(t, one(s, "key"))
		time.Sleep(time.Second) // what is under way arrives
		rows.set(func() { rows.ahead = 0 })
		require.InDelta(t, 2, rows.level(t, "key"), 0.01)
	})
}

// The engine begins a second attempt, which waits. Meanwhile the first finds the row locked, so that
// the operation goes with the key's next step: the second attempt must not be carried out.
func TestStep_WaitingAttemptIsNotSentAfterIt(t *testing.T) {
	retried(t, 1, func(rows *table, c *carrier, call int64) {
		if call > 1 {
			return
		}
		free := rows.hold("key")
		time.Sleep(200 * time.Millisecond)
		go func() { // another key's call comes first
			c.slots <- struct{}{}
			time.Sleep(50 * time.Millisecond)
			free()
			<-c.slots
		}()
		time.Sleep(100 * time.Millisecond)
	})
}

// The same if the first attempt comes too early, because the clock was set back. Then a second one
// that is under way may still come in time.
func TestStep_NextToAnAttemptThatCameTooEarly(t *testing.T) {
	for name, turns := range map[string]int{"it waits": 1, "it is under way": 2} {
		t.Run(name, func(t *testing.T) {
			retried(t, turns, func(rows *table, c *carrier, call int64) {
				switch {
				case call == 1:
					rows.set(func() { rows.ahead = -400 * time.Millisecond })
					time.Sleep(200 * time.Millisecond)
					if turns == 1 {
						go func() {
							c.slots <- struct{}{}
							time.Sleep(200 * time.Millisecond)
							<-c.slots
						}()
					}
					time.Sleep(100 * time.Millisecond)
				case call == 2 && turns == 2:
					time.Sleep(250 * time.Millisecond)
				case call == 3:
					time.Sleep(300 * time.Millisecond)
				}
			})
		})
	}
}

// A step that locks its row tries as often as its time allows. The reply is that of the try which was written.
func TestStep_ReplyIsOfTheTryThatWasWritten(t *testing.T) {
	for _, lost := range []int{0, 1, 255, 256, 257, 600} {
		op := store.Op{Limits: []store.Limit{{Name: "calls", Capacity: 100, Rate: 1e-6}}, Action: store.Book, Costs: []store.Units{{1}}}
		s := &step{carrier: &carrier{worker: 1}, trip: &engine.Trip{Op: op, Seq: 7}}
		row := Row{Token: 1, Bytes: (&row{}).append(nil)}
		var last Swap
		for try := range lost + 1 {
			last = Swap{Row: row, Clock: time.Hour + time.Duration(try)*time.Second}
			require.NotNil(t, s.locked(bg, &last).made)
		}
		n := s.locked(bg, &Swap{Row: Row{Token: last.Token, Bytes: last.New}, Clock: 2 * time.Hour})
		require.Equal(t, last.New, n.made.bytes, "after %d tries that were not written", lost)
	}
}

// A key that has waited without success to lock a row has not asked the rows.
func TestStep_WaitForALockIsNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCarrier(newTable(), &Config{})
		for range maxLocks {
			c.locks <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		var a engine.Attempt
		c.lock(ctx, &a)
		require.True(t, a.Unasked)
		require.True(t, a.Note.(*note).busy)
	})
}
