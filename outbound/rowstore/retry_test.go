package rowstore

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// oneRow is a table of one row. Its calls of Swap take as long as before says.
type oneRow struct {
	mu     sync.Mutex // protects the fields below
	row    Row
	ahead  time.Duration // of its clock
	busy   bool
	calls  int
	before func(call int)
}

func (o *oneRow) Swap(_ context.Context, swaps []Swap) error {
	var before func()
	o.set(func() { o.calls++; call, wait := o.calls, o.before; before = func() { wait(call) } })
	before()
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &swaps[0]
	s.Clock = time.Duration(time.Now().UnixNano()) + o.ahead
	if s.New != nil && o.row.Token == s.Old && s.InTime() {
		if s.Busy = o.busy; !s.Busy {
			o.row, s.Done = Row{Token: s.Token, Bytes: s.New}, true
		}
	}
	s.Row = o.row
	return nil
}

// set changes the row.
func (o *oneRow) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// level makes the row a bucket with one call, makes another one while before says what the rows do,
// and returns the level then.
func (o *oneRow) level(t *testing.T, calls int, before func(c *carrier, call int)) float64 {
	t.Helper()
	o.before = func(int) {}
	c := newCarrier(o, &Config{})
	c.slots = make(chan struct{}, calls)
	e := engine.New(engine.Config{Carrier: c, Timeout: time.Second})
	update := func(costs ...store.Units) float64 {
		r, err := e.Update(context.Background(), "key", &store.Op{
			Limits: []store.Limit{{Name: "calls", Capacity: 100, Rate: 1e-6}}, Action: store.Book, Costs: costs,
		})
		require.NoError(t, err)
		return r.State.Level[0]
	}
	update(store.Units{1})
	o.set(func() { o.calls, o.before = 0, func(call int) { before(c, call) } })
	update(store.Units{1})
	o.set(func() { o.before = func(int) {} })
	time.Sleep(time.Second) // what is under way arrives
	return update()
}

// The engine begins a second attempt, which waits. Meanwhile the first finds the row locked, so that
// the operation goes with the key's next step: the second attempt must not be carried out.
func TestRetry_WaitingAttemptIsNotSentAfterItsStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		rows := new(oneRow)
		level := rows.level(t, 1, func(c *carrier, call int) {
			if call > 1 {
				return
			}
			rows.set(func() { rows.busy = true })
			time.Sleep(200 * time.Millisecond)
			go func() { // another key's call comes first
				c.slots <- struct{}{}
				time.Sleep(50 * time.Millisecond)
				rows.set(func() { rows.busy = false })
				<-c.slots
			}()
			time.Sleep(100 * time.Millisecond)
		})
		require.InDelta(t, 2, level, 0.01)
	})
}

// The same if the first attempt comes too early, because the clock was set back. Then a second one
// that is under way may still come in time.
func TestRetry_NextToAnAttemptThatCameTooEarly(t *testing.T) {
	for name, turns := range map[string]int{"it waits": 1, "it is under way": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Minute)
				rows := new(oneRow)
				level := rows.level(t, turns, func(c *carrier, call int) {
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
				require.InDelta(t, 2, level, 0.01)
			})
		})
	}
}

// A step that locks its row tries as often as its time allows. The reply is that of the try which was written.
func TestRetry_ReplyIsOfTheTryThatWasWritten(t *testing.T) {
	for _, lost := range []int{0, 1, 255, 256, 257, 600} {
		op := store.Op{Limits: []store.Limit{{Name: "calls", Capacity: 100, Rate: 1e-6}}, Action: store.Book, Costs: []store.Units{{1}}}
		s := &step{carrier: &carrier{worker: 1}, trip: &engine.Trip{Op: op, Seq: 7}}
		row := Row{Token: 1, Bytes: (&row{}).append(nil)}
		var last Swap
		for try := range lost + 1 {
			last = Swap{Row: row, Clock: time.Hour + time.Duration(try)*time.Second}
			require.NotNil(t, s.locked(context.Background(), &last).made)
		}
		n := s.locked(context.Background(), &Swap{Row: Row{Token: last.Token, Bytes: last.New}, Clock: 2 * time.Hour})
		require.Equal(t, last.New, n.made.bytes, "after %d tries that were not written", lost)
	}
}

// A key that has waited without success to lock a row has not asked the rows.
func TestRetry_WaitForALockIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCarrier(new(oneRow), &Config{})
		for range maxLocks {
			c.locks <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var a engine.Attempt
		c.lock(ctx, &a)
		require.True(t, a.Unasked)
		require.True(t, a.Note.(*note).busy)
	})
}
