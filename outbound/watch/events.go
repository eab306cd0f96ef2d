package watch

import (
	"context"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// kinds are the words of a bucket's events, by kind, and their levels in a log.
var kinds = map[string]struct {
	level slog.Level
	words string
}{
	outbound.EventHeld:      {slog.LevelWarn, "no call leaves"},
	outbound.EventExtended:  {slog.LevelWarn, "the hold was extended"},
	outbound.EventReleased:  {slog.LevelInfo, "calls leave again, after a hold"},
	outbound.EventResumed:   {slog.LevelInfo, "an operator has ended the hold and the slow-down"},
	outbound.EventSlowed:    {slog.LevelWarn, "the API has refused calls: they leave more slowly"},
	outbound.EventLimits:    {slog.LevelInfo, "the limits were changed"},
	outbound.EventForgotten: {slog.LevelWarn, "calls ended without Done, and counted as in flight until now"},
	outbound.EventRunsOut:   {slog.LevelWarn, "a quota will be used up before it begins again"},
	outbound.EventLate:      {slog.LevelWarn, "reservations were lost, because this process was late"},
}

// describe says in words what has happened to a bucket, with the numbers apart.
func describe(e *outbound.Event) (level slog.Level, words string, numbers []slog.Attr) {
	k, known := kinds[e.Kind]
	if !known {
		k.words = e.Kind
	}
	return k.level, k.words, slices.DeleteFunc([]slog.Attr{
		slog.Duration("for", e.Hold), slog.String("reason", e.Reason), slog.Float64("speed", math.Round(1000*e.Speed)/1000), slog.Int("calls", e.Calls),
		slog.String("limit", e.Limit), slog.Duration("in", e.UsedUpIn),
		slog.Duration("late", e.Late), slog.String("before", e.Before), slog.String("limits", e.Limits),
	}, func(a slog.Attr) bool { return reflect.ValueOf(a.Value.Any()).IsZero() })
}

// sentence is what describe returns, for people.
func sentence(e *outbound.Event) string {
	_, words, numbers := describe(e)
	for i, a := range numbers {
		text := a.Value.String()
		if a.Value.Kind() == slog.KindDuration {
			text = brief(a.Value.Duration())
		}
		words += [...]string{" (", ", "}[min(i, 1)] + a.Key + " " + text
	}
	if len(numbers) > 0 {
		words += ")"
	}
	return words
}

// mostEvents is how many events a board remembers.
const mostEvents = 100

// note takes in what has happened to a limiter's bucket. times is how often the name had been added
// when the limiter was.
func (b *Board) note(s *shown, times int, c *outbound.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.times != times { // the name stands for another limiter
		return
	}
	s.meter.change(c)
	e := Event{At: time.Now(), Name: s.name, Kind: c.Kind, Words: sentence(c), Times: 1}
	for i, last := range slices.Backward(b.events) {
		if last.Name == s.name {
			if last.Kind == c.Kind {
				e.Times += last.Times
				b.events = slices.Delete(b.events, i, i+1)
			}
			break
		}
	}
	b.events = append(b.events[max(0, len(b.events)+1-mostEvents):], e)
}

// quiet is for how long the log leaves out events of a kind after one that it has logged.
const quiet = 10 * time.Second

// Log returns a function for [outbound.Bucket.Observe] that logs what happens to the bucket:
//
//	defer bucket.Observe(watch.Log(logger.With("limiter", "github")))()
//
// It logs no call. A hold is a Warn, its end an Info with the time that it has lasted. An extended
// hold is logged again once it lasts at least twice as long as the last line says. For other
// events, and for holds below ten seconds, Log writes one line of each kind in ten seconds. The
// next line of that kind counts the omitted ones as "more". If l is nil, Log uses [slog.Default].
//
// A bucket reports no outage of its store. OnSwitch of package fallback does, and the metric
// dripfeed_store_unavailable.
func Log(l *slog.Logger) func(outbound.Event) {
	if l == nil {
		l = slog.Default()
	}
	type kind struct {
		until time.Duration // log none before
		more  int           // left out since the last line
	}
	var mu sync.Mutex // protects what follows
	var hold time.Duration
	recent := make(map[string]kind)
	return func(e outbound.Event) {
		level, words, numbers := describe(&e)
		at := now()
		mu.Lock()
		k := recent[e.Kind]
		out := at < k.until && !(e.Kind == outbound.EventHeld && e.Hold >= quiet)
		if e.Kind == outbound.EventExtended {
			out = e.Hold/2 < hold
		}
		if out {
			k.more++
		} else {
			if k.more > 0 {
				numbers = append(numbers, slog.Int("more", k.more))
			}
			k = kind{until: at + quiet}
			if e.Kind == outbound.EventHeld || e.Kind == outbound.EventExtended {
				hold = e.Hold
			}
		}
		recent[e.Kind] = k
		mu.Unlock()
		if !out { // with no lock held, because a handler may do anything
			l.LogAttrs(context.Background(), level, words, numbers...)
		}
	}
}
