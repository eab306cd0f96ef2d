package watch

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// quiet is how long the log says no more about what goes on, so that a storm of refusals makes few lines.
const quiet = 10 * time.Second

// Log returns a function for [outbound.Bucket.Observe] that logs what happens to the bucket:
//
//	defer bucket.Observe(watch.Log(logger.With("limiter", "github")))()
//
// The beginning of a hold is a Warn, and its end an Info that says how long it was and how often it was extended. An
// extension is a Warn only if no call goes for ten seconds or longer, and for at least twice as long as the last line
// has said. Of other changes of one kind that come within ten seconds, Log logs the first; the next line of that kind
// says how many it has left out. It logs no call. A nil l is [slog.Default].
//
// A bucket does not tell that its store is away. OnSwitch of package fallback does, and the metric dripfeed_store_away.
func Log(l *slog.Logger) func(outbound.Event) {
	if l == nil {
		l = slog.Default()
	}
	g := &changeLog{log: l}
	return g.note
}

// changeLog logs changes.
type changeLog struct {
	log *slog.Logger

	mu     sync.Mutex    // protects what follows
	more   int           // times that the hold was extended
	told   time.Duration // how long the hold is to last, as far as it was logged
	recent map[string]*storm
}

// storm is changes of one kind that come in a row.
type storm struct {
	until  time.Duration // log none before
	hidden int
}

func (g *changeLog) note(c outbound.Event) {
	level, words, all, ok := g.line(&c)
	if ok { // with no lock held: who knows what a handler does
		g.log.LogAttrs(context.Background(), level, words, all...)
	}
}

// line returns what is to be logged of a change, if anything is.
func (g *changeLog) line(c *outbound.Event) (level slog.Level, words string, all []slog.Attr, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	level, always := slog.LevelWarn, false
	switch c.Kind {
	case outbound.EventHeld:
		g.more, g.told = 0, c.Hold
		always = c.Hold >= quiet // which makes it rare
		words = "calls are held"
		all = append(all, slog.Duration("for", c.Hold), slog.String("reason", cmp.Or(c.Reason, reasons[0])))
	case outbound.EventExtended:
		g.more++ // the hold's end tells
		if c.Hold < quiet || c.Hold/2 < g.told {
			return level, "", nil, false
		}
		g.told, always = c.Hold, true
		words = "calls are held for longer"
		all = append(all, slog.Duration("for", c.Hold), slog.String("reason", cmp.Or(c.Reason, reasons[0])))
	case outbound.EventReleased:
		level, words = slog.LevelInfo, "calls go again"
		all = append(all, slog.Duration("held_for", c.Hold), slog.Int("extended", g.more))
	case outbound.EventResumed:
		level, words = slog.LevelInfo, "calls go again, because somebody has resumed them"
		all = append(all, slog.Int("extended", g.more))
	case outbound.EventSlowed:
		words = "the API has refused calls: they go slower"
		all = append(all, slog.Float64("speed", c.Speed))
	case outbound.EventLimits:
		level, words = slog.LevelInfo, "the limits were changed"
	case outbound.EventForgotten:
		words = "calls ended without Done, and kept their places"
		all = append(all, slog.Int("calls", c.Calls))
	case outbound.EventLate:
		words = "places were lost, because this process was late"
		all = append(all, slog.Int("places", c.Calls), slog.Duration("late", c.Late))
	default:
		level, words = slog.LevelInfo, "the bucket has changed: "+c.Kind
	}
	hidden, ok := g.passLocked(c.Kind, always)
	if hidden > 0 {
		all = append(all, slog.Int("more", hidden))
	}
	return level, words, all, ok
}

// passLocked reports whether a change of a kind is to be logged now, and how many were not since the last that was.
func (g *changeLog) passLocked(k string, always bool) (hidden int, ok bool) {
	if g.recent == nil {
		g.recent = make(map[string]*storm)
	}
	s := g.recent[k]
	if s == nil {
		s = new(storm)
		g.recent[k] = s
	}
	at := now()
	if s.until > 0 && at < s.until && !always {
		s.hidden++
		return 0, false
	}
	hidden, s.hidden, s.until = s.hidden, 0, at+quiet
	return hidden, true
}
