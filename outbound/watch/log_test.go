package watch

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// lines are what was logged.
type lines struct{ strings.Builder }

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) all() []string { return strings.Split(strings.TrimSuffix(l.String(), "\n"), "\n") }

// A hold makes two lines, however often it is extended.
func TestAHoldOfAnHourMakesTwoLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lines
		b := bucket(t, outbound.PerSecond(1))
		defer b.Observe(Log(l.logger().With("limiter", "github")))()
		p, err := b.Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: time.Minute, Reason: "quota"})
		for range 59 {
			time.Sleep(time.Minute / 2)
			p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: time.Minute, Reason: "quota"})
			_, _ = b.State(bg)
		}
		time.Sleep(time.Hour)
		_, _ = b.State(bg)
		synctest.Wait()
		all := l.all()
		if len(all) != 2 || !strings.Contains(all[0], `level=WARN msg="calls are held" limiter=github for=1m0s reason=quota`) ||
			!strings.Contains(all[1], `level=INFO msg="calls go again" limiter=github held_for=30m30s extended=59`) {
			t.Errorf("%q", all)
		}
	})
}

// A storm makes a line each ten seconds at most, with the number of those that were left out.
func TestAStormMakesFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lines
		note := Log(l.logger())
		for range 100_000 {
			note(outbound.Event{Kind: outbound.EventSlowed, Speed: 0.9})
			time.Sleep(time.Millisecond)
		}
		all := l.all()
		if len(all) != 10 || !strings.Contains(all[9], "more=9999") {
			t.Errorf("%d lines: %q", len(all), all)
		}
	})
}

func TestEachChangeHasItsLine(t *testing.T) {
	var l lines
	note := Log(l.logger())
	kinds := []string{outbound.EventHeld, outbound.EventExtended, outbound.EventReleased, outbound.EventResumed, outbound.EventSlowed,
		outbound.EventLimits, outbound.EventForgotten, outbound.EventLate, "new"}
	for _, k := range kinds {
		c := outbound.Event{Kind: k, Hold: time.Second, Speed: 0.5, Calls: 3, Late: time.Millisecond}
		if note(c); wordsOf(&c) == "" {
			t.Errorf("no words for %v", k)
		}
	}
	if all := l.all(); len(all) != len(kinds)-1 { // EventExtended waits for the end, and one is new
		t.Errorf("%d lines: %q", len(all), all)
	}
	Log(nil)
	for k, want := range map[string]string{
		outbound.EventForgotten: "1 call ended without Done, and kept its place until now",
		outbound.EventLate:      "a place passed 21 ms before this process came to use it",
	} {
		if got := wordsOf(&outbound.Event{Kind: k, Calls: 1, Late: 21 * time.Millisecond}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A hold that is longer than the log's silence is told, whatever was told before.
func TestALongHoldIsToldThoughShortOnesCameBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lines
		note := Log(l.logger())
		hold := func(d time.Duration) {
			note(outbound.Event{Kind: outbound.EventHeld, Hold: d, Reason: "quota"})
		}
		hold(time.Second)
		time.Sleep(time.Second)
		note(outbound.Event{Kind: outbound.EventReleased, Hold: time.Second})
		hold(2 * time.Second)
		time.Sleep(2 * time.Second)
		note(outbound.Event{Kind: outbound.EventReleased, Hold: 2 * time.Second})
		hold(time.Hour)
		if all := l.all(); len(all) != 3 || !strings.Contains(all[2], `msg="calls are held" for=1h0m0s reason=quota`) || !strings.Contains(all[2], "more=1") {
			t.Errorf("%q", all)
		}
	})
}

// A short hold that becomes a long one is told as such, once.
func TestAHoldThatBecomesALongOneIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lines
		b := bucket(t, outbound.PerSecond(1))
		defer b.Observe(Log(l.logger()))()
		for _, d := range []time.Duration{time.Second, 2 * time.Second, time.Hour, time.Hour, 61 * time.Minute} {
			if err := b.Hold(bg, d); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second / 2)
		}
		time.Sleep(2 * time.Hour)
		_, _ = b.State(bg)
		synctest.Wait()
		all := l.all()
		if len(all) != 3 || !strings.Contains(all[1], `level=WARN msg="calls are held for longer" for=1h0m0s`) || !strings.Contains(all[2], "extended=4") {
			t.Errorf("%q", all)
		}
	})
}

// comesBack is a handler that has something logged while it logs.
type comesBack struct {
	slog.Handler
	back func()
}

func (c comesBack) Handle(ctx context.Context, r slog.Record) error {
	c.back()
	return c.Handler.Handle(ctx, r)
}

// A handler may come back to what it logs.
func TestALineIsWrittenWithNoLockHeld(t *testing.T) {
	var l lines
	var note func(outbound.Event)
	again := true
	note = Log(slog.New(comesBack{slog.NewTextHandler(&l, nil), func() {
		if again {
			again = false
			note(outbound.Event{Kind: outbound.EventLimits})
		}
	}}))
	done := make(chan bool)
	go func() {
		note(outbound.Event{Kind: outbound.EventForgotten})
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for itself")
	}
	if all := l.all(); len(all) != 2 {
		t.Errorf("%q", all)
	}
}
