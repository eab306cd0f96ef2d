package watch

import (
	"fmt"
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

// What matters has a line, and little has many.
func TestLog_FewLinesSayWhatHappens(t *testing.T) {
	bubble(t, "A hold makes two lines, however often it is extended", func(t *testing.T) {
		var l lines
		b := bucket(t, outbound.PerSecond(1))
		defer b.Observe(Log(l.logger().With("limiter", "github")))()
		p := take(t, b)
		for range 60 {
			p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: time.Minute, Reason: "quota"})
			_, _ = b.State(bg)
			time.Sleep(time.Minute / 2)
		}
		time.Sleep(time.Hour)
		_, _ = b.State(bg)
		synctest.Wait()
		all := l.all()
		if len(all) != 2 || !strings.Contains(all[0], `level=WARN msg="no call leaves" limiter=github for=1m0s reason=quota`) ||
			!strings.Contains(all[1], `level=INFO msg="calls leave again, after a hold" limiter=github for=30m30s`) {
			t.Errorf("%q", all)
		}
	})
	bubble(t, "A storm makes a line each ten seconds at most, with the number of those that were left out", func(t *testing.T) {
		var l lines
		note := Log(l.logger())
		for range 100_000 {
			note(outbound.Event{Kind: outbound.EventSlowed, Speed: 0.9})
			time.Sleep(time.Millisecond)
		}
		all := l.all()
		errorIf(t, len(all) != 10 || !strings.Contains(all[9], "more=9999"), "%d lines: %q", len(all), all)
	})
	bubble(t, "A hold that is longer than the log's silence is logged, whatever was logged before", func(t *testing.T) {
		var l lines
		note := Log(l.logger())
		for _, d := range []time.Duration{time.Second, 2 * time.Second, time.Hour} {
			note(outbound.Event{Kind: outbound.EventHeld, Hold: d, Reason: "quota"})
			if time.Sleep(d); d < time.Hour {
				note(outbound.Event{Kind: outbound.EventReleased, Hold: d})
			}
		}
		if all := l.all(); len(all) != 3 || !strings.Contains(all[2], `msg="no call leaves" for=1h0m0s reason=quota`) || !strings.Contains(all[2], "more=1") {
			t.Errorf("%q", all)
		}
	})
	bubble(t, "A short hold that becomes a long one is logged as such, each time that it has doubled", func(t *testing.T) {
		var l lines
		b := bucket(t, outbound.PerSecond(1))
		defer b.Observe(Log(l.logger()))()
		for _, d := range []time.Duration{time.Second, 2 * time.Second, time.Hour, time.Hour, 61 * time.Minute} {
			hold(t, b, d)
			time.Sleep(time.Second / 2)
		}
		time.Sleep(2 * time.Hour)
		_, _ = b.State(bg)
		synctest.Wait()
		all := l.all()
		errorIf(t, len(all) != 4 || !strings.Contains(all[1], `level=WARN msg="the hold was extended" for=2s`) || !strings.Contains(all[2], `for=1h0m0s`) || !strings.Contains(all[3], "calls leave again"),
			"%q", all)
	})
	bubble(t, "A handler may have an event logged", func(t *testing.T) {
		var l lines
		var note func(outbound.Event)
		first := true
		note = Log(slog.New(slog.NewTextHandler(&l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if first {
				first = false
				note(outbound.Event{Kind: outbound.EventLimits})
			}
			return a
		}})))
		note(outbound.Event{Kind: outbound.EventForgotten})
		all := l.all()
		errorIf(t, len(all) != 2, "%q", all)
	})
}

// Each kind of event has words and a line.
func TestLog_EachChangeHasALine(t *testing.T) {
	var l lines
	note := Log(l.logger())
	kinds := []string{outbound.EventHeld, outbound.EventExtended, outbound.EventReleased, outbound.EventResumed, outbound.EventSlowed,
		outbound.EventLimits, outbound.EventForgotten, outbound.EventLate, outbound.EventRunsOut, "new"}
	for _, k := range kinds {
		c := outbound.Event{Kind: k, Hold: time.Second, Speed: 0.5, Calls: 3, Late: time.Millisecond}
		note(c)
		errorIf(t, sentence(&c) == "", "no words for %v", k)
	}
	all := l.all()
	errorIf(t, len(all) != len(kinds)-1, "%d lines: %q", len(all), all) // the hold was not extended by much
	Log(nil)
	for e, want := range map[*outbound.Event]string{
		{Kind: outbound.EventHeld, Hold: 25 * time.Second, Reason: "rate"}:               "no call leaves (for 25 s, reason rate)",
		{Kind: outbound.EventForgotten, Calls: 1}:                                        "calls ended without Done, and counted as in flight until now (calls 1)",
		{Kind: outbound.EventLate, Calls: 2, Late: 21 * time.Millisecond}:                "reservations were lost, because this process was late (calls 2, late 21 ms)",
		{Kind: outbound.EventRunsOut, Limit: "20 per day UTC", UsedUpIn: time.Hour}:      "a quota will be used up before it begins again (limit 20 per day UTC, in 1 h)",
		{Kind: outbound.EventSlowed, Speed: 0.56}:                                        "the API has refused calls: they leave more slowly (speed 0.56)",
		{Kind: outbound.EventLimits, Before: "10 per 1s", Limits: "5 per 1s; 2 per 10s"}: "the limits were changed (before 10 per 1s, limits 5 per 1s; 2 per 10s)",
		{Kind: outbound.EventResumed}:                                                    "an operator has ended the hold and the slow-down",
		{Kind: "new", Calls: 3}:                                                          "new (calls 3)",
	} {
		got := sentence(e)
		errorIf(t, got != want, "%q, want %q", got, want)
	}
}

// Many equal events are shown as one, so that they push no other out.
func TestEvents_StormIsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		b.Add("api", bucket(t, outbound.PerSecond(1)))
		b.Add("other", bucket(t, outbound.PerSecond(1)))
		s, other := b.shown[0], b.shown[1]
		b.note(s, 1, &outbound.Event{Kind: outbound.EventHeld, Hold: time.Hour})
		for i := range 300 {
			time.Sleep(time.Second)
			b.note(s, 1, &outbound.Event{Kind: outbound.EventLate, Calls: 2, Late: time.Duration(i+1) * time.Millisecond})
			if i == 100 {
				b.note(other, 1, &outbound.Event{Kind: outbound.EventLimits})
			}
		}
		e := b.Snapshot(bg, Query{}).Events
		errorIf(t, len(e) != 3 || e[0].Times != 300 || e[0].Name != "api" || !strings.Contains(e[0].Words, "300 ms") || e[1].Times != 1 || e[2].Kind != "held" || time.Since(e[0].At) != 0,
			"%+v", e)
		for i := range 2 * mostEvents { // holds stay apart
			b.note(s, 1, &outbound.Event{Kind: []string{outbound.EventHeld, outbound.EventReleased}[i%2], Hold: time.Hour})
		}
		e = b.Snapshot(bg, Query{}).Events
		errorIf(t, len(e) != mostEvents || fmt.Sprint(e[0].Times) != "1", "%d events", len(e))
	})
}
