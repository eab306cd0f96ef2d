package outboundtest

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func (e *exam) hold(b *outbound.Bucket, d time.Duration) {
	e.Helper()
	if err := b.Hold(bg, d); err != nil {
		e.failf("hold: %v", err)
	}
}

// held checks that a call is refused because of a hold of about d.
func (e *exam) held(b *outbound.Bucket, d time.Duration) {
	e.Helper()
	full := e.refuse(b, outbound.Cost{1})
	if !full.Held || full.RetryAfter > d || full.RetryAfter < d-time.Minute {
		e.failf("held %v, retry after %v; want about %v", full.Held, full.RetryAfter, d)
	}
}

func (e *exam) holds() {
	b := e.bucket(slow(100))
	e.hold(b, 3*time.Hour)
	e.held(b, 3*time.Hour)
	e.hold(b, time.Hour)
	e.held(b, 3*time.Hour)
	e.hold(b, 3*time.Hour)
	e.held(b, 3*time.Hour)
	e.hold(b, 5*time.Hour)
	e.held(b, 5*time.Hour)
}

func (e *exam) dripsAfterHold() {
	b := e.bucket(outbound.Limit{Capacity: 10, LeakRate: 2}, slow(1000).Of(1, "long"))
	e.hold(b, 100*time.Millisecond)
	time.Sleep(110 * time.Millisecond)
	e.admit(b, outbound.Cost{1, 1})
	if full := e.refuse(b, outbound.Cost{2, 1}); full.RetryAfter <= 0 || full.RetryAfter > 1100*time.Millisecond {
		e.failf("retry after %v", full.RetryAfter)
	}
	if all, err := b.States(bg); err != nil || math.Abs(all[1].Level-1) > 0.01 {
		e.failf("the longer limit lost its room: %+v, %v", all, err)
	}
}

// ticket books a place for a call of this cost, however far away the place is.
func (e *exam) ticket(b *outbound.Bucket, c outbound.Cost) (outbound.Ticket, outbound.Clock) {
	e.Helper()
	k := outbound.Booking{Costs: []outbound.Cost{c}, Wait: math.MaxInt64}
	if err := b.Book(bg, &k); err != nil || len(k.Tickets) != 1 {
		e.Fatalf("the contract says %q: booking %v gave %d tickets, %v", e.sentence, c, len(k.Tickets), err)
	}
	return k.Tickets[0], k.Clock
}

func (e *exam) resumes() {
	b := e.bucket(slow(1))
	e.admit(b, outbound.Cost{1})
	t, _ := e.ticket(b, outbound.Cost{1})
	e.hold(b, time.Hour)
	if err := b.Resume(bg); err != nil {
		e.failf("%v", err)
	}
	if full := e.refuse(b, outbound.Cost{1}); full.Held {
		e.failf("still held")
	}
	e.levels(b, 1)
	k := outbound.Booking{}
	if err := b.Book(bg, &k); err != nil || k.Clock.Holds(t) {
		e.failf("the place from before stands: %v", err)
	}
	// The void place gives nothing back, if it is given back or settled.
	p := t.Permit()
	p.Settle(outbound.Cost{})
	if err := b.Book(bg, &outbound.Booking{Back: []outbound.Ticket{t}}); err != nil {
		e.failf("%v", err)
	}
	e.levels(b, 1)
}

func (e *exam) books() {
	begin := time.Now()
	b := e.bucket(outbound.Limit{Capacity: 2, LeakRate: 0.1})
	e.admit(b, outbound.Cost{2})
	k := outbound.Booking{Costs: []outbound.Cost{{1}, {2}, {0.5}, {1}}, Wait: time.Hour, Horizon: 36 * time.Second}
	if err := b.Book(bg, &k); err != nil || len(k.Tickets) != 3 {
		e.failf("%d tickets, %v; want 3, as far as the horizon", len(k.Tickets), err)
		return
	}
	for i, want := range []time.Duration{10 * time.Second, 30 * time.Second, 35 * time.Second} {
		due := time.Until(k.Clock.Due(k.Tickets[i]))
		if due > want || due < want-time.Since(begin)-100*time.Millisecond {
			e.failf("place %d is due in %v, want %v", i, due, want)
		}
		if ready, _ := k.Clock.Ready(k.Tickets[i], time.Now()); ready {
			e.failf("place %d is ready", i)
		}
	}
	if full := e.refuse(b, outbound.Cost{1}); full.RetryAfter < 45*time.Second-time.Since(begin)-100*time.Millisecond || full.RetryAfter > 45*time.Second {
		e.failf("a gate beside them would go after %v, want 45s", full.RetryAfter)
	}
	// If the first call of a booking would wait too long, it is refused, and none is booked.
	k = outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: 10 * time.Second, Horizon: time.Hour}
	if err := b.Book(bg, &k); !errors.Is(err, outbound.ErrThrottled) || len(k.Tickets) != 0 {
		e.failf("beyond its wait: %d tickets, %v", len(k.Tickets), err)
	}
}

func (e *exam) after() {
	b := e.bucket(outbound.Limit{Capacity: 3, LeakRate: 0.1})
	book := func(k outbound.Booking, dues ...time.Duration) {
		e.Helper()
		if err := b.Book(bg, &k); err != nil || len(k.Tickets) != len(dues) {
			e.failf("%d tickets, %v; want %d", len(k.Tickets), err, len(dues))
			return
		}
		for i, want := range dues {
			// A slow store's trips take some of the time.
			if due := time.Until(k.Clock.Due(k.Tickets[i])); due > want || due < want-5*time.Second {
				e.failf("place %d is due in %v, want %v", i, due, want)
			}
		}
	}
	// Two fit beside each other there, and the third is 10 s behind them.
	book(outbound.Booking{Costs: []outbound.Cost{{2}, {1}, {1}}, Wait: time.Hour, Horizon: time.Hour, After: time.Minute}, time.Minute, time.Minute, 70*time.Second)
	// A call that comes now goes after them. Further ahead they change nothing.
	book(outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: time.Hour, After: time.Second}, 80*time.Second)
	// A place that is too far away is refused, and changes nothing.
	k := outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: 2 * time.Minute, After: time.Hour}
	var full *outbound.ThrottledError
	if err := b.Book(bg, &k); !errors.As(err, &full) || full.RetryAfter < time.Hour || full.RetryAfter > time.Hour+time.Second {
		e.failf("%d tickets, %v; want a refusal for an hour", len(k.Tickets), err)
	}
	book(outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: time.Hour}, 90*time.Second)
}

func (e *exam) unbooks() {
	b := e.bucket(slow(1))
	e.admit(b, outbound.Cost{1})
	first, _ := e.ticket(b, outbound.Cost{1})
	second, _ := e.ticket(b, outbound.Cost{1})
	e.levels(b, 3)
	back := func(t ...outbound.Ticket) {
		if err := b.Book(bg, &outbound.Booking{Back: t}); err != nil {
			e.failf("%v", err)
		}
	}
	back(second)
	e.levels(b, 2)
	back(second)
	e.levels(b, 2)
	third, clock := e.ticket(b, outbound.Cost{1})
	if due, want := time.Until(clock.Due(third)), 2*36000*time.Second; due > want || due < want-time.Minute {
		e.failf("booked again, it is due in %v, want %v", due, want)
	}
	// The first is not the latest. Nobody else was promised its place, but if it came
	// back others would overtake.
	back(first)
	e.levels(b, 3)
	back(third)
	e.levels(b, 2)
}

func (e *exam) refusals() {
	b := e.bucket(slow(100))
	first, second, third := e.admit(b, outbound.Cost{1}), e.admit(b, outbound.Cost{1}), e.admit(b, outbound.Cost{1})
	third.Done()
	e.admit(b, outbound.Cost{1})
	first.Refused(time.Hour)
	second.Refused(2 * time.Hour)
	s, err := b.State(bg)
	if err != nil || math.Abs(s.Speed-0.9) > 0.01 || s.HeldFor > 2*time.Hour || s.HeldFor < 119*time.Minute {
		e.failf("speed %v, held for %v, %v; want 0.9, 2h", s.Speed, s.HeldFor, err)
	}
	fresh := e.bucket(slow(100))
	p := e.admit(fresh, outbound.Cost{1})
	p.Refused(0)
	if s, err := fresh.State(bg); err != nil || s.Speed != 1 || s.HeldFor > time.Second || s.HeldFor == 0 {
		e.failf("a refusal before any success: speed %v, held for %v, %v; want 1, 1s", s.Speed, s.HeldFor, err)
	}
}

func (e *exam) doubles() {
	b := e.bucket(outbound.Limit{Capacity: 1000, LeakRate: 1000})
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		p := e.admit(b, outbound.Cost{1})
		p.Refused(20 * time.Millisecond)
		s, err := b.State(bg)
		if i == 0 {
			want = 20 * time.Millisecond
		}
		if err != nil || s.HeldFor > want || s.HeldFor < want/2 && i > 0 || s.Speed != 1 {
			e.failf("refusal %d: held for %v at speed %v, %v; want %v", i, s.HeldFor, s.Speed, err, want)
		}
		if i > 0 {
			return // the rest would take seconds
		}
		time.Sleep(25 * time.Millisecond)
	}
}

func (e *exam) doublesAtMost() {
	b := e.bucket(outbound.Limit{Capacity: 1000, LeakRate: 1000})
	const most = 20 * time.Millisecond
	for i := range 3 {
		p := e.admit(b, outbound.Cost{1})
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, MaxWait: most})
		if s, err := b.State(bg); err != nil || s.HeldFor > most {
			e.failf("refusal %d: held for %v, %v; want at most %v", i, s.HeldFor, err, most)
		}
		time.Sleep(most + 5*time.Millisecond)
	}
}

func (e *exam) replaces() {
	key := e.key()
	b, other := e.share(key, slow(10)), e.share(key, slow(10))
	e.admit(b, outbound.Cost{6})
	if err := b.SetLimits(bg, slow(8), slow(3).Of(1, "new")); err != nil {
		e.failf("%v", err)
	}
	if all, err := other.States(bg); err != nil || len(all) != 2 || all[0].Limit.Capacity != 8 || all[0].Level < 5.9 {
		e.failf("the other bucket sees %+v, %v", all, err)
	}
	// A new limit counts the calls that may not have left yet: it is full until they
	// have gone.
	time.Sleep(110 * time.Millisecond)
	_, err := other.Acquire(bg, outbound.Cost{9})
	if !errors.Is(err, outbound.ErrTooLarge) {
		e.failf("above the new capacity: %v", err)
	}
	if err := b.SetLimits(bg); err != nil {
		e.failf("%v", err)
	}
	if all, err := b.States(bg); err != nil || len(all) != 1 || all[0].Limit.Capacity != 10 {
		e.failf("after SetLimits with none: %+v, %v", all, err)
	}
}

func (e *exam) disagree() {
	key := e.key()
	small, large := e.share(key, slow(5)), e.share(key, slow(10), slow(100).Of(1, "tokens"))
	e.admit(large, outbound.Cost{4, 60})
	e.admit(small, outbound.Cost{1})
	e.refuse(small, outbound.Cost{1})
	e.admit(large, outbound.Cost{5, 40})
	if full := e.refuse(large, outbound.Cost{outbound.Free, 1}); full.Limit != "tokens" {
		e.failf("refused by %q, want tokens, which the other bucket does not know", full.Limit)
	}
	e.levels(small, 10)
	e.levels(large, 10, 100)
	// A bucket that shares no limit with them has its own limits to itself.
	other := e.share(key, slow(3).Of(0, "other"), slow(7).Of(2, "units"))
	e.admit(other, outbound.Cost{3, 0, 4})
	e.refuse(other, outbound.Cost{1})
	e.levels(large, 10, 100)
	e.levels(other, 3, 4)
	// The clock is common to all.
	e.hold(large, time.Hour)
	for _, b := range []*outbound.Bucket{small, large, other} {
		if full := e.refuse(b, outbound.Cost{1}); !full.Held {
			e.failf("a hold by one does not hold all: %v", full)
		}
	}
}

func (e *exam) keys() {
	prefix := e.key()
	for _, k := range []string{
		"key", "Key", "KEY", "key ", " key", "key\t", "key\n", "\u00e9", "e\u0301", "E\u0301", "K", "\u212a", "\ufb01", "fi", "stra\u00dfe", "strasse",
		"", "\x00", "a\x00b", "a\x00", "\xff\xfe", "{x}", "}{x", "a:b", "a b\r\nSET x", strings.Repeat("k", 1<<20), strings.Repeat("k", 1<<20) + "l",
	} {
		b := e.share(prefix+k, slow(1))
		e.admit(b, outbound.Cost{1})
		e.refuse(b, outbound.Cost{1})
	}
}

func (e *exam) longWaits() {
	b := e.bucket(outbound.Limit{Capacity: 1, LeakRate: 1 / (50 * 365.25 * 24 * 3600.)})
	e.admit(b, outbound.Cost{1})
	for range 10 {
		k := outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: math.MaxInt64}
		err := b.Book(bg, &k)
		if err != nil && !errors.Is(err, outbound.ErrThrottled) {
			e.failf("%v", err)
		}
	}
	if full := e.refuse(b, outbound.Cost{1}); full.RetryAfter < 40*365*24*time.Hour {
		e.failf("retry after %v", full.RetryAfter)
	}
}

func (e *exam) cancelled() {
	b := e.bucket(slow(10))
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := b.Acquire(ctx, outbound.Cost{1}); !errors.Is(err, context.Canceled) {
		e.failf("Acquire: %v", err)
	}
	if _, err := b.Fillup(ctx, outbound.Cost{1}); !errors.Is(err, context.Canceled) {
		e.failf("Fillup: %v", err)
	}
	e.levels(b, 0)
}
