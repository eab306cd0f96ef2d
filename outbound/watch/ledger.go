package watch

import (
	"cmp"
	"math"
	"slices"

	"github.com/dripfeed/dripfeed/outbound/ledger"
)

// Entry is what a ledger has counted for a label.
type Entry struct {
	Label string // or [ledger.Other], for all labels without an Entry
	// Part is the part of all units used that the label has used, from 0 to 1, and Of their name. If
	// the ledger counts several units, it is the largest part.
	Part float64
	Of   string
	Rows []ledger.Row // by unit
}

// mostEntries is how many labels of a ledger are shown.
const mostEntries = 10

// entriesOf returns what the ledger of a name has counted, or nil.
func (b *Board) entriesOf(name string) (all []Entry) {
	i := slices.IndexFunc(b.Ledgers, func(g *ledger.Ledger) bool { return g.Name == name })
	if i < 0 {
		return nil
	}
	rows, used, others := b.Ledgers[i].Rows(), make(map[string]float64), Entry{Label: ledger.Other}
	for i := range rows {
		r := &rows[i]
		if used[r.Unit] += r.Used(); !(math.Abs(r.Money) < 1e300) { // JSON has no infinity
			r.Money = 0
		}
	}
	for n := 0; len(rows) > 0; rows = rows[n:] { // which are in the order of their labels
		e := Entry{Label: rows[0].Label}
		if n = slices.IndexFunc(rows, func(r ledger.Row) bool { return r.Label != e.Label }); n < 0 {
			n = len(rows)
		}
		if e.Label == ledger.Other || e.Label == ledger.Dropped {
			others.add(rows[:n])
			continue
		}
		e.Rows = rows[:n]
		e.compare(used)
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b Entry) int { return -cmp.Compare(a.Part, b.Part) })
	for len(all) > mostEntries {
		others.add(all[len(all)-1].Rows)
		all = all[:len(all)-1]
	}
	if others.compare(used); len(others.Rows) > 0 {
		all = append(all, others)
	}
	return all
}

// compare sets the Part of all that was used.
func (e *Entry) compare(used map[string]float64) {
	for i := range e.Rows {
		r := &e.Rows[i]
		if all := used[r.Unit]; all > 0 && r.Used() > e.Part*all {
			e.Part, e.Of = r.Used()/all, r.Unit
		}
	}
}

// add adds the rows of another label.
func (e *Entry) add(rows []ledger.Row) {
	for _, r := range rows {
		i := slices.IndexFunc(e.Rows, func(x ledger.Row) bool { return x.Unit == r.Unit })
		if r.Label = e.Label; i < 0 {
			e.Rows = append(e.Rows, r)
			continue
		}
		x := &e.Rows[i]
		x.Charged, x.Returned, x.Added = x.Charged+r.Charged, x.Returned+r.Returned, x.Added+r.Added
		x.Refused, x.Waited, x.Money = x.Refused+r.Refused, x.Waited+r.Waited, x.Money+r.Money
	}
}

// ledgerRows returns the rows of all ledgers.
func (b *Board) ledgerRows() (all []ledger.Row) {
	names := make(map[string]bool)
	for _, g := range b.Ledgers {
		if !names[g.Name] {
			all = append(all, g.Counters()...)
		}
		names[g.Name] = true
	}
	return all
}
