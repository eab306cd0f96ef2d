package watch

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const (
	// mostBudgets is how many policies of an API a meter keeps. The API makes up their names.
	mostBudgets = 16
	// blur is by how much times may differ that mean the same reset: APIs round it to whole seconds,
	// and responses take time.
	blur = 2 * time.Second
	// shortestWindow is the shortest window that has OtherClients. For a shorter one the error would be
	// larger than the number.
	shortestWindow = 10 * time.Second
)

// budget is what the API has reported of one quota.
type budget struct {
	outbound.Budget
	at time.Duration // when it reported that
	// What follows is for OtherClients.
	until time.Duration // the reset, as first reported of the quota's window; negative if unknown
	moves bool          // the reset moves, as that of a quota which is no window
	// When the window began, or was first reported:
	ours  float64 // units that the meter had counted
	spent float64 // of the limit
}

// reset returns when the quota is whole again. It is below 0 if that is unknown.
func (b *budget) reset() time.Duration {
	if b.Reset < 0 || b.Reset > math.MaxInt64-b.at {
		return -1
	}
	return b.at + b.Reset
}

// over reports whether the report is out of date: its reset is over, or it has none and is an hour
// old.
func (b *budget) over(at time.Duration) bool {
	if r := b.reset(); r >= 0 {
		return at >= r
	}
	return at-b.at > time.Hour
}

// orUnknown is a number, or -1 if it is none.
func orUnknown(n float64) float64 {
	if n >= 0 && n <= math.MaxFloat64 {
		return n
	}
	return -1
}

// hearLocked notes what the API reports of a quota.
func (m *meter) hearLocked(report *outbound.Budget, at time.Duration) {
	is := budget{Budget: *report, at: at}
	is.Limit, is.Remaining = orUnknown(is.Limit), orUnknown(is.Remaining)
	if is.Limit < 0 && is.Remaining < 0 {
		return
	}
	i := slices.IndexFunc(m.budgets, func(x budget) bool { return x.Policy == is.Policy && x.Unit == is.Unit })
	if i < 0 {
		if m.budgets = slices.DeleteFunc(m.budgets, func(x budget) bool { return x.over(at) }); len(m.budgets) >= mostBudgets {
			return
		}
		is.Policy, is.Unit = strings.Clone(is.Policy), strings.Clone(is.Unit) // they may be parts of a whole header
		is.begin(m)
		m.budgets = append(m.budgets, is)
		return
	}
	was := &m.budgets[i]
	is.Policy, is.Unit = was.Policy, was.Unit
	if is.follow(was, m) {
		*was = is
	}
}

// counted returns how many units of the kind that the quota counts a meter has counted.
func (b *budget) counted(m *meter) float64 {
	if b.Number < 0 || b.Number >= units {
		return 0
	}
	return m.Units[b.Number]
}

// begin begins to compare what the API counts with what the meter does.
func (b *budget) begin(m *meter) {
	b.until, b.moves, b.ours, b.spent = b.reset(), false, b.counted(m), b.Limit-b.Remaining
}

// follow takes the report before this one into account, and reports whether this is newer.
func (b *budget) follow(was *budget, m *meter) bool {
	reset := b.reset()
	b.until, b.moves, b.ours, b.spent = was.until, was.moves, was.ours, was.spent
	switch {
	case reset < 0 || was.until < 0 || was.Limit < 0 || was.Remaining < 0 || was.Number != b.Number:
		b.begin(m)
	case reset > was.until+blur && b.at >= was.until-blur: // a new window, with this call in it
		b.begin(m)
		b.ours, b.spent, b.moves = b.ours-1, 0, reset-b.at < shortestWindow
	case reset < was.until-blur && reset <= b.at+blur: // of the window before: a newer response has overtaken it
		return false
	case reset > was.until+blur || reset < was.until-blur:
		b.until, b.moves = reset, true
	}
	return true
}

// others returns the part of the quota that other clients have used, about. It is below 0 if that
// is unknown, as for a quota of tokens: how many a call has used is known at its end.
func (b *budget) others(m *meter) float64 {
	if b.moves || b.until < 0 || b.Limit <= 0 || b.Remaining < 0 || b.Number < 0 || b.Number >= units || b.Unit != "" && b.Unit != "requests" {
		return -1
	}
	return min(1, max(0, b.Limit-b.Remaining-b.spent-(b.counted(m)-b.ours))/b.Limit)
}

// budgetsLocked returns what the API has reported that is still true.
func (m *meter) budgetsLocked(at time.Duration) (all []Budget) {
	for i := range m.budgets {
		x := &m.budgets[i]
		if x.over(at) {
			continue
		}
		t := Budget{Budget: x.Budget, Age: at - x.at, OtherClients: x.others(m)}
		if t.Reset = -1; x.reset() >= 0 {
			t.Reset = x.reset() - at
		}
		all = append(all, t)
	}
	return all
}
