package watch

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
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
	limiter outbound.Limiter // nil: it stands for all keys of a Keyed
	rank    float64          // how much in trouble it is, as far as that is known without a trip
	refused bool             // of a key: calls were refused lately
	label   string           // in metrics
	limits  []string         // the labels of the limits there
}

// Snapshot returns what the Board shows now. It asks shared buckets that are to be shown for their
// state, a trip for each whose state is not from within the last second, and waits for a store for 0.8
// s. It glances at all keys of each Keyed, which takes longer where they have several limits, but asks
// only those that are to be shown. A search makes the label of each key. Of very many keys, or with a
// slow label, a later look asks only those that were found: the next walk over all of them begins a
// hundred times as long after this one as it took. If ctx ends, states are missing.
func (b *Board) Snapshot(ctx context.Context, q Query) Snapshot {
	if q.Rows <= 0 {
		q.Rows = defaultRows
	}
	q.Rows = min(q.Rows, mostRows)
	b.mu.Lock()
	b.beginLocked()
	s := Snapshot{At: time.Now(), Began: b.began, Events: slices.Clone(b.events)}
	b.mu.Unlock()
	slices.Reverse(s.Events)
	rows, hidden := b.rows(&q, true)
	s.Hidden = hidden
	b.fill(ctx, rows, true)
	slices.SortStableFunc(rows, func(x, y *row) int {
		return cmp.Or(-cmp.Compare(x.Severity, y.Severity), -cmp.Compare(x.rank, y.rank))
	})
	for _, r := range rows {
		s.Limiters = append(s.Limiters, r.Limiter)
	}
	s.Stores = b.storesShown()
	return s
}

// rows returns the rows to show, and how many there are besides. people says that they are for people, who look at the
// last minute.
func (b *Board) rows(q *Query, people bool) (rows []*row, hidden int) {
	search := strings.ToLower(q.Search)
	at := now()
	for _, s := range b.names() {
		limiter, keyed, late := b.current(s)
		r := &row{shown: s, limiter: limiter, Limiter: Limiter{Name: s.name, Speed: 1, Late: late}}
		r.Calls, r.Refusals = s.meter.calls(), s.meter.refusals()
		r.Budgets = s.meter.budgets.tell(at, &s.meter.units)
		for i := range r.Budgets {
			if keyed != nil { // each key may have a quota of its own
				r.Budgets[i].Others = -1
			}
		}
		if people {
			r.Minute = s.meter.minute.read(at)
		}
		if limiter != nil {
			r.rank = fullness(limiter)
		}
		if s.held.holds(at) {
			r.rank = math.Inf(1)
		}
		r.HeldTime = s.held.time(at)
		if keyed != nil {
			r.Keyed, r.Keys = true, keyed.len()
		}
		named := contains(s.name, search)
		if named {
			rows = append(rows, r)
		}
		if keyed == nil || q.Names {
			continue
		}
		ofKeys := search
		if named {
			ofKeys = "" // all keys of the name
		}
		worst, more := keyed.worst(q.Rows, ofKeys)
		hidden += more
		for _, k := range worst {
			rows = append(rows, &row{shown: s, limiter: k.limiter, rank: k.full, refused: k.refused, Limiter: Limiter{Name: s.name, Label: k.label, Speed: 1}})
		}
	}
	slices.SortStableFunc(rows, func(x, y *row) int { return -cmp.Compare(x.rank, y.rank) })
	all := len(rows)
	rows = shorten(rows, q.Rows)
	return rows, hidden + all - len(rows)
}

// shorten returns the first rows, n at most. Keys and names have half of them each, if there are so many: those in
// trouble among many keys are no reason to hide what the program has named.
func shorten(rows []*row, n int) []*row {
	if len(rows) <= n {
		return rows
	}
	keys := 0
	for _, r := range rows {
		if r.Label != "" {
			keys++
		}
	}
	room := max(n/2, n-(len(rows)-keys)) // for keys
	names := n - min(room, keys)
	return slices.DeleteFunc(rows, func(r *row) bool {
		left := &names
		if r.Label != "" {
			left = &room
		}
		*left--
		return *left < 0
	})
}

// fill fills in the states of rows, those of shared buckets at the same time, and for people what is wrong.
func (b *Board) fill(ctx context.Context, rows []*row, people bool) {
	judge := func(r *row) {
		if people {
			r.judge(b)
		}
	}
	var all sync.WaitGroup
	for _, r := range rows {
		if r.limiter == nil {
			judge(r)
			continue
		}
		bucket := bucketIn(r.limiter)
		if bucket == nil || !bucket.Shared() {
			r.Limiter.fill(ctx, r.limiter, nil, &r.shown.meter)
			judge(r)
			continue
		}
		c := b.cache(r, bucket)
		all.Go(func() {
			r.Limiter.fill(ctx, r.limiter, c, &r.shown.meter)
			judge(r)
		})
	}
	all.Wait()
	b.forget()
}

// forgotten is after how long nobody remembers the state of a bucket that is not shown any more.
const forgotten = time.Minute

// cache returns what is known of the limiter of a row, whose bucket is shared.
func (b *Board) cache(r *row, bucket *outbound.Bucket) *cached {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := stateOf{r.shown, bucket}
	c := b.states[of]
	if c == nil {
		if b.states == nil {
			b.states = make(map[stateOf]*cached)
		}
		c = new(cached)
		b.states[of] = c
	}
	c.used = now()
	return c
}

// forget drops the states that nobody has looked at for a while. One that is being asked for stays, so that a store
// that hangs is not asked again.
func (b *Board) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := now()
	for k, c := range b.states {
		if at-c.used > forgotten && !c.asked() {
			delete(b.states, k)
		}
	}
}

// holds reports whether a hold is in force, as far as this process has heard.
func (h *held) holds(at time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since > 0 && at < h.until
}

// judge says what is wrong with a limiter.
func (r *row) judge(b *Board) {
	l := &r.Limiter
	say := func(s Severity, format string, a ...any) {
		l.Severity = max(l.Severity, s)
		l.Trouble = append(l.Trouble, fmt.Sprintf(format, a...))
	}
	if l.Err != "" && !l.gone {
		age := "nothing is known of it"
		if !l.AsOf.IsZero() {
			age = "what is shown is " + brief(time.Since(l.AsOf)) + " old"
		}
		if l.Shared {
			say(Stopped, "Its store does not answer (%s); %s.", l.Err, age)
		} else {
			say(Stopped, "It cannot be asked (%s).", l.Err)
		}
	}
	if l.HeldFor > 0 {
		why := "an operator, or the API without a reason, has asked for a pause"
		switch l.Reason {
		case "rate":
			why = "the API has refused calls that came too fast"
		case "quota":
			why = "the API says that the quota is used up"
		case "concurrency":
			why = "the API has refused a call because of too many at once"
		case "exhausted":
			why = "nothing is left of the API's quota until its reset"
		}
		say(Stopped, "No call goes for %s: %s.", brief(l.HeldFor), why)
	}
	if l.Speed > 0 && l.Speed < 1 {
		say(Slowed, "Calls go at %.3g %% of the speed, because the API has refused some.", 100*l.Speed)
	}
	if l.Waiting > 0 {
		s := fmt.Sprintf("%s in the queue", count(uint64(l.Waiting), "call waits", "calls wait"))
		if l.Oldest > 0 {
			s += ", the first for " + brief(l.Oldest)
		}
		say(Busy, "%s.", s)
	}
	if l.Minute != nil {
		var admitted, refused, byAPI, failed uint64
		for _, s := range l.Minute.Seconds {
			admitted, refused, byAPI, failed = admitted+s.Admitted, refused+s.Refused, byAPI+s.ByAPI, failed+s.Failed
		}
		if failed > 0 {
			why, severity := failure(r.shown.meter.lastFailure.Load()), Busy
			if admitted == 0 && why.stops() {
				severity = Stopped
			}
			words := failureWords[why]
			if words != "" {
				words = ", the latest because " + words
			}
			say(severity, "%s failed in the last minute%s.", count(failed, "call", "calls"), words)
		}
		if byAPI > 0 {
			say(Busy, "The API has refused %s in the last minute.", count(byAPI, "call", "calls"))
		}
		if refused > 0 {
			say(Busy, "%s refused by us in the last minute.", count(refused, "call was", "calls were"))
		}
	}
	if r.refused {
		say(Busy, "Calls of this key were refused by us lately.")
	}
	for _, t := range l.Budgets {
		if t.Others >= 0.05 {
			name := "of the quota"
			if t.Policy != "" {
				name = "of " + t.Policy
			}
			l.Trouble = append(l.Trouble, fmt.Sprintf("Somebody else has used about %.0f %% %s.", 100*t.Others, name))
		}
	}
	if b.Allow != nil && bucketIn(r.limiter) != nil {
		l.Actions = []string{"hold"}
		if l.HeldFor > 0 || l.Speed < 1 {
			l.Actions = append(l.Actions, "resume")
		}
	}
}
