package outboundtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var faultCases = []storeCase{
	{sentence: "Update ends although ctx has no end", check: checkEndsAlone, needs: breaks},
	{sentence: "a step that failed has changed no call", check: checkFailedMove, needs: breaks},
	{
		sentence: "nothing of an Update that has failed is carried out after a later Update of its key by the same store has returned",
		check:    checkGhosts, needs: func(h StoreHooks) bool { return h.Break != nil || h.Delay != nil },
	},
	{
		sentence: "every limit of a corrupt key is full, until a Resume",
		check:    checkCorrupt, needs: func(h StoreHooks) bool { return h.Corrupt != nil },
	},
}

func breaks(h StoreHooks) bool { return h.Break != nil }

// patience is how long the test waits for a step to end by itself.
const patience = 30 * time.Second

// checkEndsAlone checks that no caller waits forever for a store that hangs.
func checkEndsAlone(e *exam) {
	key, limits := e.key(), []store.Limit{slow(10)}
	look := func() error {
		_, err := e.store.Update(bg, key, &store.Op{Limits: limits})
		return err
	}
	if err := look(); err != nil {
		e.failf("%v", err)
	}
	mend := e.hooks.Break(e.store)
	if ended, err := e.ended(look); ended && !errors.Is(err, store.ErrUnavailable) {
		e.failf("the error of a store that does not answer is not ErrUnavailable: %v", err)
	}
	mend()
	if err := e.mended(look); err != nil {
		e.failf("the store answers again, and Update does not: %v", err)
	}
}

// ended waits for an operation of a store whose server does not answer.
func (e *exam) ended(operate func() error) (ended bool, err error) {
	e.Helper()
	done := make(chan error, 1)
	go func() { done <- operate() }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err = <-done:
		return true, err
	case <-timer.C:
		e.failf("Update has not ended in %v", patience)
		return false, nil
	}
}

// mended calls look until it fails no more.
func (e *exam) mended(look func() error) (err error) {
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(10 * time.Millisecond) {
		if err = look(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("after %v: %w", patience, err)
}

// checkFailedMove moves a reservation while the store does not answer, and then settles it.
func checkFailedMove(e *exam) {
	key, limits := e.key(), []store.Limit{slow(100)}
	booked := e.ask(key, &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}, {4}}}).Charges
	if len(booked) != 2 {
		e.Fatalf("the contract says %q: %d of two calls are booked", e.sentence, len(booked))
	}
	charge := booked[1]
	mend := e.hooks.Break(e.store)
	ended, err := e.ended(func() error {
		_, err := e.store.Update(bg, key, &store.Op{Limits: limits, Action: store.Book, Move: &booked[1], Costs: []store.Units{{4}}, Wait: time.Hour})
		return err
	})
	mend()
	if !ended {
		return // the charge is still in the hands of that Update
	}
	if err == nil {
		e.failf("a store that does not answer has moved a reservation")
	}
	if booked[1] != charge {
		e.failf("the charge was %+v and is %+v", charge, booked[1])
	}
	look := func() error { _, err := e.store.Update(bg, key, &store.Op{Limits: limits}); return err }
	if err := e.mended(look); err != nil {
		e.failf("%v", err)
	}
	r := e.ask(key, &store.Op{Limits: limits, Reports: []store.Report{{Kind: store.Settled, Charge: &charge, Used: store.Units{9}}}})
	if r.State.Level[0] < 9.99 {
		e.failf("a call of 4 that could not be moved has cost 9, beside one of 1: level %v", r.State.Level[0])
	}
}

// checkGhosts gives up on steps that the store is still to carry out, goes on, and looks whether
// they are carried out later.
func checkGhosts(e *exam) {
	const late = 150 * time.Millisecond
	faults := map[string]func() (mend func()){}
	if e.hooks.Break != nil {
		faults["does not answer"] = func() func() { return e.hooks.Break(e.store) }
	}
	if e.hooks.Delay != nil {
		faults["answers later"] = func() func() { return e.hooks.Delay(e.store, late) }
	}
	for what, fault := range faults {
		for _, later := range []store.Op{{}, {Action: store.Book, Costs: []store.Units{{1}}}} {
			later.Limits = []store.Limit{slow(100)}
			key := e.key()
			first := e.ask(key, &store.Op{Limits: later.Limits, Action: store.Book, Costs: []store.Units{{1}}})
			mend := fault()
			ctx, cancel := context.WithTimeout(bg, late/3)
			_, err := e.store.Update(ctx, key, &store.Op{Limits: later.Limits, Action: store.Book, Costs: []store.Units{{10}}, Unused: slices.Clone(first.Charges)})
			mend()
			cancel()
			if err == nil {
				e.failf("a store that %s has booked a call within %v", what, late/3)
			}
			var r store.Reply
			if err := e.mended(func() error { r, err = e.store.Update(bg, key, &later); return err }); err != nil {
				e.failf("%v", err)
				return
			}
			for range 3 {
				time.Sleep(late)
				if now := e.ask(key, &store.Op{Limits: later.Limits}); now.State.IDs != r.State.IDs || now.State.Level[0] > r.State.Level[0]+0.01 || now.State.Level[0] < r.State.Level[0]-0.01 {
					e.failf("after a %v of a store that %s: level %v and %d bookings, and then %v and %d", later.Action, what, r.State.Level[0], r.State.IDs, now.State.Level[0], now.State.IDs)
					return
				}
			}
		}
	}
}

func checkCorrupt(e *exam) {
	limits := []store.Limit{slow(10), named(moving(5, time.Hour), 1, "window"), named(fixed(3, time.Hour), 2, "fixed window"), {Name: "month", Unit: 3, Kind: store.Monthly, Capacity: 4}}
	key, periods := e.key(), []store.Period{3: {Begin: -1e9, End: 4e9, Next: 4.5e9}}
	ask := func(op store.Op) store.Reply {
		e.Helper()
		op.Limits, op.Periods = limits, periods
		return e.ask(key, &op)
	}
	cost := store.Units{1, 1, 1}
	before := ask(store.Op{Action: store.Book, Costs: []store.Units{cost}}).Charges
	time.Sleep(time.Millisecond)
	e.hooks.Corrupt(e.store, key)
	r := ask(store.Op{Action: store.Book, Costs: []store.Units{cost}})
	if !r.State.Corrupt || !r.Refused || len(r.Charges) > 0 || r.Stale {
		e.failf("corrupt %v, refused %v, %d charges, stale %v", r.State.Corrupt, r.Refused, len(r.Charges), r.Stale)
	}
	full := func() {
		e.Helper()
		r := ask(store.Op{})
		for i, l := range limits {
			if level := r.State.Level[i]; level > l.Capacity+0.01 || level < l.Capacity-0.01 {
				e.failf("limit %d has level %v, want %v", i, level, l.Capacity)
			}
		}
		if !r.State.Corrupt {
			e.failf("the state is not corrupt")
		}
	}
	full()
	if r.Wait <= 0 || r.Wait > 100*time.Hour {
		e.failf("the next call waits for %v, want as long as the limits drain", r.Wait)
	}
	// What was booked before gives nothing back.
	ask(store.Op{Action: store.Book, Unused: before})
	full()
	ask(store.Op{Reports: []store.Report{{Kind: store.Settled, Charge: &before[0]}}})
	full()
	// Resume empties what would take a window, or a month.
	ask(store.Op{Action: store.Resume})
	for i, n := range []store.Units{{10, 5, 3, 4}, {1}, {0, 1}, {0, 0, 1}, {0, 0, 0, 1}} {
		r = ask(store.Op{Action: store.Book, Costs: []store.Units{n}})
		if want := max(0, 1-i); r.State.Corrupt || len(r.Charges) != want {
			e.failf("after a Resume: corrupt %v, and %d calls of %v are booked, want %d", r.State.Corrupt, len(r.Charges), n, want)
		}
	}
}
