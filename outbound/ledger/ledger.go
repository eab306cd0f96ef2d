// Package ledger counts who used what of a limit: the units of each tenant, job, key or model.
//
//	book := &ledger.Ledger{Name: "model", Units: [4]string{"calls", "tokens"}}
//	limiter := book.Limiter(queue.New(bucket, queue.Config{}), tenantOf) // a func(ctx) string
//	...
//	err := ledger.WriteCSV(file, book)
//
// The limiter goes where the other one was: into a transport, a Wrap, an Each or the New of an
// outbound.Keyed. A ledger counts each charge once, as the bucket does. A Settle corrects it, even
// after Done, and a call without Done stays charged. It counts the calls of one process: sum the
// ledgers of all. If both jobs and their client are paced, give both the ledger's limiter.
//
// Labels are in the rows of the ledger, and in the metrics of a watch.Board that has it. Keys, logs
// and errors are free of them.
package ledger

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

const (
	mostRows    = 1000  // labels whose units are counted
	mostEntries = 16000 // labels whose calls are counted
	longest     = 200   // bytes of a label
)

// The labels of two rows that are no label's own.
const (
	// Other is the label of calls whose own label is none of the 1,000 with the most calls.
	Other = "other"
	// Dropped is the label of what was counted for labels that have lost their rows since.
	Dropped = "dropped"
)

// Ledger counts the calls of a limiter by label. Set its fields before first use. It is safe for
// concurrent use. A call of a bucket costs 100 ns more, and 10,000 labels take 1 MB.
type Ledger struct {
	// Name is the name of the limiter, as watch.Board.Add has it.
	Name string
	// Units are the names of the numbers of a Cost. A number without a name has its index as name.
	Units [4]string
	// Price is what a unit costs, in any currency.
	Price outbound.Cost

	mu             sync.Mutex // protects what follows
	entries        map[string]*entry
	rows           int    // entries with a row
	least          uint64 // the most calls of an entry that has lost its row
	other, dropped row
}

// entry is a label.
type entry struct {
	calls uint64
	row   *row // or nil, if its calls count as Other
}

// row is what was counted for a label.
type row struct {
	ledger *Ledger
	lost   bool  // its sums are a part of those that were dropped
	last   *call // the latest, for the next one of the same cost
	sums   [4]Sums
}

// Sums are units of one label.
type Sums struct {
	Charged  float64 // of admitted calls, as acquired
	Returned float64 // by a Settle to less
	Added    float64 // by a Settle to more
	Refused  float64 // of calls over the limit
	Waited   float64 // of admitted calls that waited for 1 ms or more
}

// Used returns the units that the calls have really cost: those charged, corrected by each Settle.
func (s *Sums) Used() float64 { return s.Charged - s.Returned + s.Added }

// Row is what a ledger has counted for one label and one unit.
type Row struct {
	Limiter, Label, Unit string
	Sums
	Money float64 // for the units used
}

// Limiter returns a limiter that works as l does, and counts its calls under their labels. The
// label of a call is what label returns for the ctx of Acquire. If label is nil, it is empty. A
// label of more than 200 bytes counts as [Other]. All limiters of one ledger are counted together,
// such as those of the keys of a Keyed, whose label functions return the key's label.
//
// Put it around a queue, and not into one. Its permits are those of l.
func (g *Ledger) Limiter(l outbound.Limiter, label func(context.Context) string) outbound.Limiter {
	b, ok := l.(*outbound.Bucket)
	return &limiter{l, g, label, !ok || b.Shared()}
}

type limiter struct {
	outbound.Limiter
	ledger *Ledger
	label  func(context.Context) string
	waits  bool // a call may wait
}

// Unwrap returns the limiter whose calls are counted, for outbound.As.
func (l *limiter) Unwrap() outbound.Limiter { return l.Limiter }

// Idle reports whether a Keyed may drop the limiter.
func (l *limiter) Idle() bool {
	i, ok := l.Limiter.(interface{ Idle() bool })
	return ok && i.Idle()
}

func (l *limiter) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	if l.Limiter == nil {
		return outbound.Permit{}, fmt.Errorf("ledger: %w: nil Limiter", outbound.ErrInvalid)
	}
	label, begin, waited := "", time.Time{}, false
	if l.label != nil {
		label = l.label(ctx)
	}
	if l.waits {
		begin = time.Now()
	}
	p, err := l.Limiter.Acquire(ctx, c)
	if l.waits {
		waited = time.Since(begin) >= time.Millisecond
	}
	if err == nil {
		p.Listen(l.ledger.admit(label, &c, waited))
	} else if errors.Is(err, outbound.ErrThrottled) {
		l.ledger.refuse(label, &c)
	}
	return p, err
}

// call is what each call of a row was charged that cost the same.
type call struct {
	row  *row
	cost outbound.Cost
}

// Answered ignores answers: they leave the charge as it is.
func (*call) Answered(outbound.Answer) {}

// Settled corrects the charge.
func (k *call) Settled(used outbound.Cost) {
	r, g := k.row, k.row.ledger
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.lost {
		r = &g.dropped
	}
	for i := range r.sums {
		more := countable(used[i]) - countable(k.cost[i])
		r.sums[i].Added += max(0, more)
		r.sums[i].Returned += max(0, -more)
	}
}

func (g *Ledger) admit(label string, c *outbound.Cost, waited bool) *call {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.rowLocked(label)
	for i, n := range c {
		n = countable(n)
		r.sums[i].Charged += n
		if waited {
			r.sums[i].Waited += n
		}
	}
	if r.last == nil || r.last.cost != *c {
		r.last = &call{r, *c}
	}
	return r.last
}

func (g *Ledger) refuse(label string, c *outbound.Cost) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.rowLocked(label)
	for i, n := range c {
		r.sums[i].Refused += countable(n)
	}
}

// countable returns n, or 0 for a number that no bucket admits.
func countable(n float64) float64 {
	if n > 0 && n <= 1e12 {
		return n
	}
	return 0
}

// rowLocked counts a call of a label, and returns its row. A label without a row gets one if there
// are few, or if it has had more calls than those that have lost theirs.
func (g *Ledger) rowLocked(label string) *row {
	e := g.entries[label]
	if e == nil {
		g.other.ledger = g
		if len(label) > longest || label == Other || label == Dropped {
			return &g.other
		}
		if len(g.entries) >= mostEntries {
			maps.DeleteFunc(g.entries, func(_ string, e *entry) bool { return e.row == nil })
		}
		if g.entries == nil {
			g.entries = make(map[string]*entry)
		}
		e = new(entry)
		g.entries[strings.Clone(label)] = e
	}
	e.calls++
	switch {
	case e.row != nil:
		return e.row
	case e.calls <= g.least:
		return &g.other
	case g.rows >= mostRows:
		g.dropLocked()
	}
	e.row = &row{ledger: g}
	g.rows++
	return e.row
}

// dropLocked takes the row from the quarter of the labels with the fewest calls.
func (g *Ledger) dropLocked() {
	var rows []*entry
	for _, e := range g.entries {
		if e.row != nil {
			rows = append(rows, e)
		}
	}
	slices.SortFunc(rows, func(a, b *entry) int { return cmp.Compare(a.calls, b.calls) })
	for _, e := range rows[:mostRows/4] {
		for i := range e.row.sums {
			g.dropped.sums[i].add(&e.row.sums[i])
		}
		e.row.lost, e.row, g.least = true, nil, e.calls
		g.rows--
	}
}

func (s *Sums) add(t *Sums) {
	s.Charged += t.Charged
	s.Returned += t.Returned
	s.Added += t.Added
	s.Refused += t.Refused
	s.Waited += t.Waited
}

// Rows returns what was counted so far, by label and unit. Their sums are those of all calls.
func (g *Ledger) Rows() (all []Row) {
	g.mu.Lock()
	defer g.mu.Unlock()
	put := func(label string, r *row) {
		for i := range r.sums {
			if s := r.sums[i]; s != (Sums{}) {
				all = append(all, Row{g.Name, label, cmp.Or(g.Units[i], strconv.Itoa(i)), s, s.Used() * g.Price[i]})
			}
		}
	}
	for label, e := range g.entries {
		if e.row != nil {
			put(label, e.row)
		}
	}
	put(Other, &g.other)
	put(Dropped, &g.dropped)
	slices.SortStableFunc(all, func(a, b Row) int { return cmp.Compare(a.Label, b.Label) })
	return all
}

// WriteCSV writes the rows of ledgers as CSV, with a header.
func WriteCSV(w io.Writer, ledgers ...*Ledger) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"limiter", "label", "unit", "charged", "returned", "added", "used", "refused", "waited", "money"}) // Flush fails
	for _, g := range ledgers {
		for _, r := range g.Rows() {
			line := []string{r.Limiter, r.Label, r.Unit}
			for _, n := range []float64{r.Charged, r.Returned, r.Added, r.Used(), r.Refused, r.Waited, r.Money} {
				line = append(line, strconv.FormatFloat(n, 'f', -1, 64))
			}
			_ = c.Write(line)
		}
	}
	c.Flush()
	return c.Error()
}
