package watch

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// mostBudgets is how many policies of an API a meter keeps. Their names are the API's.
const mostBudgets = 16

// budgets are what an API has told of its quotas, by policy.
type budgets struct {
	mu  sync.Mutex
	all []budget
}

// budget is what the API has told of one quota.
type budget struct {
	outbound.Budget
	at time.Duration // when it told that
	// What follows is for telling whether somebody else uses the quota.
	until time.Duration // the reset, as it was first told of the quota's window; below 0: it was not told
	moves bool          // the reset moves, as if the quota was no window: nobody knows who has used it
	// Since the window has begun, or since it was first heard of:
	ours  float64 // units that the meter had counted
	spent float64 // of the limit
}

const (
	// blur is by how much times may differ that mean the same reset: APIs round it to whole seconds, and answers
	// take time.
	blur = 2 * time.Second
	// shortest window of which others are told: that of a shorter one would be more blur than number.
	shortestWindow = 10 * time.Second
)

// reset returns when the quota is whole again; below 0: nobody knows.
func (b *budget) reset() time.Duration {
	if b.Reset < 0 || b.Reset > math.MaxInt64-b.at {
		return -1
	}
	return b.at + b.Reset
}

// over reports whether what the API told is out of date: its reset is over, or nothing was told for an hour of a quota
// without one.
func (b *budget) over(at time.Duration) bool {
	if r := b.reset(); r >= 0 {
		return at >= r
	}
	return at-b.at > time.Hour
}

// orUntold is a number, or -1, if it is none.
func orUntold(n float64) float64 {
	if n >= 0 && n <= math.MaxFloat64 {
		return n
	}
	return -1
}

// hear notes what the API tells now. units is how many the meter has counted so far.
func (b *budgets) hear(told *outbound.Budget, units *[len(outbound.Cost{})]floats) {
	is := budget{Budget: *told, at: now()}
	is.Limit, is.Remaining = orUntold(is.Limit), orUntold(is.Remaining)
	if is.Limit < 0 && is.Remaining < 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.all, func(x budget) bool { return x.Policy == told.Policy && x.Unit == told.Unit })
	if i < 0 {
		if b.all = slices.DeleteFunc(b.all, func(x budget) bool { return x.over(is.at) }); len(b.all) >= mostBudgets {
			return
		}
		is.Policy, is.Unit = strings.Clone(is.Policy), strings.Clone(is.Unit) // they may be parts of a whole header
		is.begin(units)
		b.all = append(b.all, is)
		return
	}
	was := &b.all[i]
	is.Policy, is.Unit = was.Policy, was.Unit
	if is.follow(was, units) {
		*was = is
	}
}

// counted returns how many units of the kind that the quota counts a meter has counted, as far as it has.
func (b *budget) counted(units *[len(outbound.Cost{})]floats) float64 {
	if b.Number < 0 || b.Number >= len(outbound.Cost{}) {
		return 0
	}
	return units[b.Number].load()
}

// begin begins to compare what the API counts with what the meter does.
func (b *budget) begin(units *[len(outbound.Cost{})]floats) {
	b.until, b.moves, b.ours, b.spent = b.reset(), false, b.counted(units), b.Limit-b.Remaining
}

// follow takes what was told of the quota before into account, and reports whether this is newer.
func (b *budget) follow(was *budget, units *[len(outbound.Cost{})]floats) bool {
	reset := b.reset()
	b.until, b.moves, b.ours, b.spent = was.until, was.moves, was.ours, was.spent
	switch {
	case reset < 0 || was.until < 0 || was.Limit < 0 || was.Remaining < 0 || was.Number != b.Number:
		b.begin(units)
	case reset > was.until+blur && b.at >= was.until-blur: // a new window, with this call in it
		b.begin(units)
		b.ours, b.spent, b.moves = b.ours-1, 0, reset-b.at < shortestWindow
	case reset < was.until-blur && reset <= b.at+blur: // of the window before: this answer was overtaken
		return false
	case reset > was.until+blur || reset < was.until-blur:
		b.until, b.moves = reset, true
	}
	return true
}

// others returns which part of the quota somebody else has used, about; below 0: nobody knows.
func (b *budget) others(units *[len(outbound.Cost{})]floats) float64 {
	switch {
	case b.moves || b.until < 0 || b.Limit <= 0 || b.Remaining < 0 || b.Number < 0 || b.Number >= len(outbound.Cost{}):
		return -1
	case b.Unit != "" && b.Unit != "requests": // what a call costs of others is known at its end
		return -1
	}
	return min(1, max(0, b.Limit-b.Remaining-b.spent-(b.counted(units)-b.ours))/b.Limit)
}

// tell returns what the API has told that is still true. units is how many the meter has counted.
func (b *budgets) tell(at time.Duration, units *[len(outbound.Cost{})]floats) (all []Budget) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.all {
		x := &b.all[i]
		if x.over(at) {
			continue
		}
		t := Budget{Policy: x.Policy, Unit: x.Unit, Limit: x.Limit, Remaining: x.Remaining, ResetIn: -1, ToldAgo: at - x.at, Others: x.others(units)}
		if r := x.reset(); r >= 0 {
			t.ResetIn = r - at
		}
		all = append(all, t)
	}
	return all
}
