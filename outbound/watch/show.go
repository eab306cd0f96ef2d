package watch

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const (
	defaultRows = 50
	mostRows    = 1000
)

// row is a limiter that may be shown.
type row struct {
	Limiter
	shown   *shown
	limiter outbound.Limiter // or nil for all keys of a Keyed
	keyed   keys             // or nil
	rank    float64          // how much in trouble it is, as far as this process knows
	refused bool             // of a key: calls were refused lately
}

// rows returns what the names stand for now.
func (b *Board) rows() (all []*row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.shown {
		all = append(all, &row{shown: s, limiter: s.limiter, keyed: s.keyed, Limiter: Limiter{Name: s.name, Speed: 1}})
	}
	return all
}

// read fills in what this process knows, and reports whether the bucket is held.
func (r *row) read(at time.Duration, minute bool) (held bool) {
	held = r.shown.meter.read(&r.Limiter, at, minute)
	if r.Keyed = r.keyed != nil; r.Keyed {
		r.Keys = r.keyed.len()
		for i := range r.Budgets { // each key may have a quota of its own
			r.Budgets[i].OtherClients = -1
		}
	}
	return held
}

// Snapshot returns what the Board shows now. It asks the store for each shared bucket that it
// shows, unless the state is younger than a second, and waits at most 0.8 s. It visits all keys of
// each Keyed, and makes all labels for a search. The doc of the package has the cost.
func (b *Board) Snapshot(ctx context.Context, q Query) Snapshot {
	if q.Rows <= 0 {
		q.Rows = defaultRows
	}
	q.Rows = min(q.Rows, mostRows)
	b.mu.Lock()
	b.began = cmp.Or(b.began, time.Now())
	s := Snapshot{At: time.Now(), Began: b.began, Events: slices.Clone(b.events)}
	b.mu.Unlock()
	slices.Reverse(s.Events)
	rows, hidden := b.pick(&q)
	s.Hidden = hidden
	b.fill(ctx, rows)
	for _, r := range rows {
		r.judge()
	}
	slices.SortStableFunc(rows, func(x, y *row) int {
		return cmp.Or(-cmp.Compare(x.Severity, y.Severity), -cmp.Compare(x.rank, y.rank))
	})
	for _, r := range rows {
		r.ID = url.Values{"name": {r.Name}, "label": {r.Label}}.Encode()
		if r.Label == "" {
			r.Ledger = b.entriesOf(r.Name)
		}
		s.Limiters = append(s.Limiters, r.Limiter)
	}
	s.Stores = b.storesShown()
	return s
}

// pick returns the rows to show, and how many more there are. Keys and names have half of the rows
// each, if there are so many: those in trouble among many keys are no reason to hide what the
// program has named.
func (b *Board) pick(q *Query) (rows []*row, hidden int) {
	search, at := strings.ToLower(q.Search), now()
	var names, keys []*row
	for _, r := range b.rows() {
		if r.rank = fullness(r.limiter); r.read(at, true) {
			r.rank = math.Inf(1)
		}
		ofKeys := search
		if contains(r.Name, search) {
			names, ofKeys = append(names, r), "" // all keys of the name
		}
		if r.keyed != nil {
			worst, more := r.keyed.worst(q.Rows, ofKeys)
			hidden += more
			for _, k := range worst {
				keys = append(keys, &row{shown: r.shown, limiter: k.limiter, rank: k.full, refused: k.refused, Limiter: Limiter{Name: r.Name, Label: k.label, Speed: 1}})
			}
		}
	}
	first := func(rows []*row, n int) []*row {
		slices.SortStableFunc(rows, func(x, y *row) int { return -cmp.Compare(x.rank, y.rank) })
		return rows[:min(len(rows), n)]
	}
	hidden += len(names) + len(keys)
	rows = first(names, q.Rows-min(len(keys), q.Rows/2))
	rows = append(rows, first(keys, q.Rows-len(rows))...)
	return rows, hidden - len(rows)
}

// why says in words why a bucket is held, by the reason of an [outbound.Answer]. Metrics count a
// reason without words here as "unknown".
var why = map[string]string{
	"":            "an operator, or the API without a reason, has asked for a pause",
	"rate":        "the API has refused calls that came too fast",
	"quota":       "the API reports that the quota is used up",
	"concurrency": "the API has refused a call because of too many in flight",
	"exhausted":   "nothing is left of the API's quota until its reset",
}

// judge returns what is wrong with a limiter, in words.
func (r *row) judge() {
	say := func(s Severity, format string, a ...any) {
		r.Severity = max(r.Severity, s)
		r.Trouble = append(r.Trouble, fmt.Sprintf(format, a...))
	}
	here := ""
	if r.Shared {
		here = " of this process"
	}
	switch {
	case r.Err == "":
	case !r.Shared:
		say(Stopped, "It cannot be asked (%s).", r.Err)
	case r.Explain == nil:
		say(Stopped, "Its store does not answer (%s); nothing is known of it.", r.Err)
	default:
		say(Stopped, "Its store does not answer (%s); what is shown is %s old.", r.Err, brief(time.Since(r.Explain.AsOf)))
	}
	if r.HeldFor > 0 {
		say(stopped(r.HeldFor, time.Second), "No call leaves for %s: %s.", brief(r.HeldFor), cmp.Or(why[r.Reason], r.Reason))
	}
	if r.Explain != nil && r.Err == "" {
		for i := range r.Explain.States {
			r.judgeLimit(&r.Explain.States[i], &r.Limits[i], here, say)
		}
	}
	if r.Explain != nil && r.Explain.Corrupt {
		say(Slowed, "Its stored data was corrupt, so each limit counted as full. Resume takes out what no call has taken.")
	}
	if r.Explain != nil && r.Explain.Share && r.Err == "" {
		say(Slowed, "Its store does not answer: this process has its share of each limit.")
	}
	if r.Speed > 0 && r.Speed < 1 {
		say(Slowed, "Calls leave at %.3g %% of the configured rate, because the API has refused some.", 100*r.Speed)
	}
	if q := r.Queue; q != nil && q.Waiting > 0 {
		behind := ""
		if r.Explain != nil && r.Explain.InFront > 0 {
			behind = ", behind " + count(uint64(r.Explain.InFront), "call", "calls") + " of the queue in front"
		}
		say(Busy, "%s%s in the queue, the first for %s%s.", count(uint64(q.Waiting), "call", "calls"), here+plural(q.Waiting, " waits", " wait"), brief(q.Oldest), behind)
	}
	if r.Explain != nil && r.Explain.Unanswered > 0 {
		n := r.Explain.Unanswered
		say(Busy, "%s%s got no answer in the last minute: %s deadline came %s after %s left.", count(uint64(n), "call", "calls"), here, plural(n, "its", "their"), brief(r.Explain.UnansweredAfter), plural(n, "it", "they"))
	}
	if r.Minute != nil {
		sum := r.Minute.Sum
		if sum.Failed > 0 {
			severity, words := Busy, failures[r.failed]
			if sum.Admitted == 0 && stops(r.failed) {
				severity = Stopped
			}
			if words != "" {
				words = ", the latest because " + words
			}
			say(severity, "%s failed in the last minute%s.", count(sum.Failed, "call", "calls"), words)
		}
		if sum.ByAPI > 0 {
			say(Busy, "The API has refused %s in the last minute.", count(sum.ByAPI, "call", "calls"))
		}
		if sum.Refused > 0 {
			say(Busy, "%s refused by us in the last minute.", count(sum.Refused, "call was", "calls were"))
		}
	}
	if r.refused {
		say(Busy, "Calls of this key were refused by us lately.")
	}
	for _, t := range r.Budgets {
		if t.OtherClients >= 0.05 {
			say(Calm, "Other clients have used about %.0f %% of %s.", 100*t.OtherClients, cmp.Or(t.Policy, "the quota"))
		}
	}
}

// stopped is the severity of no call leaving for so long.
func stopped(d, from time.Duration) Severity {
	if d >= from {
		return Stopped
	}
	return Busy
}

// judgeLimit says what a limit does to calls of average cost. here follows "the oldest" call.
func (r *row) judgeLimit(l *outbound.State, shown *Limit, here string, say func(Severity, string, ...any)) {
	name, e := shown.Name, r.Explain
	if e.Share {
		name = "this process's share of " + name
	}
	wait := l.Wait
	if q := r.Queue; q != nil && q.Waiting > 0 && q.NextIn > 0 {
		wait = min(wait, q.NextIn)
	}
	switch {
	case shown.InFlight && (l.Level+l.Headroom < l.Limit.Capacity || l.InProgress > 0 && l.Oldest < time.Second):
	case shown.InFlight:
		words := fmt.Sprintf("No call leaves until a call ends: %.6g of %.6g are in flight", l.Level, l.Limit.Capacity)
		if shown.Where != "" {
			words += " (" + shown.Where + ")"
		}
		if l.Level < l.Limit.Capacity {
			words += fmt.Sprintf(", and %.6g are kept free for other calls", l.Headroom)
		}
		long := l.Oldest
		if long > 0 {
			words += ", the oldest" + here + " for " + brief(long)
		}
		if r.Minute != nil && r.Minute.Sum.Admitted > 0 { // calls end and leave all the time
			long = 0
		}
		say(stopped(long, time.Minute), "%s.", words)
	case wait < time.Second && l.UsedUpIn > 0 && l.Level >= 0.8*l.Limit.Capacity:
		say(Busy, "%s is used up in %s, if calls go on leaving as fast.", name, brief(l.UsedUpIn))
	case wait < time.Second:
	case l.Headroom > 0 && l.Remaining > 0:
		say(Busy, "No call of this limiter leaves for %s: %.6g of %s are kept free for other calls.", brief(wait), l.Headroom, name)
	case !isQuota(l.Limit): // which lets calls leave one by one
	case l.Remaining >= max(1, l.Limit.Capacity/20):
		say(stopped(wait, time.Minute), "No call of average cost leaves for %s: it takes %.6g, and %.6g of %s are left.", brief(wait), e.Cost[l.Limit.Unit], l.Remaining, name)
	default:
		say(stopped(wait, time.Minute), "No call leaves for %s: %s is used up.", brief(wait), name)
	}
}
