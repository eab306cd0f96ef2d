package outboundtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// crowd uses some other keys, because a store may look then for keys to forget.
func (e *exam) crowd() {
	for range 20 {
		e.admit(e.bucket(slow(1)), outbound.Cost{1})
	}
}

// expires fills a key by a little and then by more, and does not touch it while most of
// that leaks. A store that has kept the first Expire forgets the key too soon.
func (e *exam) expires() {
	key, limit := e.key(), outbound.Limit{Capacity: 100, LeakRate: 250}
	b := e.share(key, limit)
	before := time.Now()
	e.admit(b, outbound.Cost{5})
	e.admit(b, outbound.Cost{95})
	for range 4 {
		time.Sleep(60 * time.Millisecond)
		e.crowd()
	}
	s, err := b.State(bg)
	if least := 100 - 250*time.Since(before).Seconds(); err != nil || s.Level < least-0.2 {
		e.failf("level %v after %v, %v; want at least %v", s.Level, time.Since(before), err, least)
	}
}

// expiresStale is expires, but the last step counts by limits that are not in force.
func (e *exam) expiresStale() {
	key, limit := e.key(), outbound.Limit{Capacity: 100, LeakRate: 250}
	b := e.share(key, limit)
	before := time.Now()
	e.admit(b, outbound.Cost{100})
	e.ask(key, &leak.Op{Limits: []leak.Limit{law(limit)}, Stamp: 1})
	for range 3 {
		time.Sleep(60 * time.Millisecond)
		e.crowd()
	}
	s, err := b.State(bg)
	if least := 100 - 250*time.Since(before).Seconds(); err != nil || s.Level < least-0.2 {
		e.failf("level %v after %v, %v; want at least %v", s.Level, time.Since(before), err, least)
	}
}

// keepsLimits waits until there is nothing to be kept but the limits.
func (e *exam) keepsLimits() {
	key, own := e.key(), outbound.Limit{Capacity: 10, LeakRate: 1000}
	b := e.share(key, own)
	if err := b.SetLimits(bg, outbound.Limit{Capacity: 5, LeakRate: 1000}); err != nil {
		e.failf("%v", err)
	}
	e.admit(b, outbound.Cost{5})
	for range 3 {
		time.Sleep(90 * time.Millisecond)
		e.crowd()
	}
	_, err := e.share(key, own).Acquire(bg, outbound.Cost{6})
	if !errors.Is(err, outbound.ErrTooLarge) {
		e.failf("of a capacity that was set to 5, 6 were answered with %v", err)
	}
}

// within is how long the exam waits for a step to end by itself.
const within = 30 * time.Second

// ends checks that nobody waits for ever for a store that hangs.
func (e *exam) ends() {
	key, limits := e.key(), []leak.Limit{law(slow(10))}
	look := func() error {
		_, err := e.store.Update(bg, key, &leak.Op{Limits: limits})
		return err
	}
	if err := look(); err != nil {
		e.failf("%v", err)
	}
	mend := e.hooks.Break(e.store)
	if ended, err := e.ended(look); ended && !errors.Is(err, outbound.ErrAway) {
		e.failf("the error of a store that does not answer is not ErrAway: %v", err)
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
	select {
	case err = <-done:
		return true, err
	case <-time.After(within):
		e.failf("Update has not ended in %v", within)
		return false, nil
	}
}

// mended calls look until it fails no more.
func (e *exam) mended(look func() error) (err error) {
	for begin := time.Now(); time.Since(begin) < within; time.Sleep(10 * time.Millisecond) {
		if err = look(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("after %v: %w", within, err)
}

// failedMove moves a place while the store does not answer, and then settles it.
func (e *exam) failedMove() {
	b := e.bucket(slow(100))
	e.admit(b, outbound.Cost{1})
	t, _ := e.ticket(b, outbound.Cost{4})
	mend := e.hooks.Break(e.store)
	k := outbound.Booking{Move: t, Costs: []outbound.Cost{t.Cost()}, Wait: time.Hour}
	ended, err := e.ended(func() error { return b.Book(bg, &k) })
	mend()
	if !ended {
		return // the place is still in the hands of that Book
	}
	if err == nil {
		e.failf("a store that does not answer has moved a place")
	}
	look := func() error { _, err := b.State(bg); return err }
	if err := e.mended(look); err != nil {
		e.failf("%v", err)
	}
	p := t.Permit()
	p.Settle(outbound.Cost{9})
	if s, err := b.State(bg); err != nil || s.Level < 9.99 {
		e.failf("a call of 4 that could not be moved has cost 9, beside one of 1: level %v, %v", s.Level, err)
	}
}
