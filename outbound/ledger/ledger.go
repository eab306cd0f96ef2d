// Package ledger counts who used what of a limit: the units of each tenant, job, key or model.
//
//	book := &ledger.Ledger{Name: "model", Units: [4]string{"calls", "tokens"}}
//	limiter := book.Limiter(queue.New(bucket, queue.Config{}), tenantOf) // a func(ctx) string
//	...
//	err := ledger.WriteCSV(file, book)
//
// The limiter goes where the other one was: into a transport, a Wrap, an Each or the New of an
// outbound.Keyed. A ledger counts each charge once, as the bucket does. A Settle corrects it, even
// after Done, and a call without Done stays charged. It counts the calls of one process, from its
// first use on: sum the ledgers of all, and subtract the rows of the month before. If both jobs and
// their client are paced, give both the ledger's limiter.
//
// Labels are in the rows of the ledger, and in the metrics and on the page of a watch.Board that
// has it. Keys, logs and errors are free of them.
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
	// Other is the label of calls whose own label has no row, as 1,000 labels have one. A label takes
	// the row of the label with the fewest calls when it has had more than twice as many.
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
	rows           []*entry // those with a row: a heap by key
	other, dropped row
	unseen         row // the part of dropped that no Counters has returned by its label
}

// entry is a label.
type entry struct {
	calls, key uint64 // the key is what calls were when it was compared last
	row        *row   // or nil, if its calls count as Other
}

// row is what was counted for a label.
type row struct {
	ledger *Ledger
	lost   bool  // its sums are a part of those that were dropped
	last   *call // the latest, for the next one of the same cost
	sums   [4]Sums
	seen   [4]Sums // what Counters has returned
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
	for i := range r.sums {
		more := countable(used[i]) - countable(k.cost[i])
		s := Sums{Added: max(0, more), Returned: max(0, -more)}
		if r.lost {
			g.dropped.sums[i].add(&s, 1)
			g.unseen.sums[i].add(&s, 1)
		} else {
			r.sums[i].add(&s, 1)
		}
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
// are few, or if it has had more than twice the calls of a label that has one.
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
	if e.calls++; e.row != nil {
		return e.row
	}
	if len(g.rows) < mostRows {
		g.rows = append(g.rows, e) // with no calls compared yet, as all before it
	} else if !g.dropLocked(e) {
		return &g.other
	}
	e.row = &row{ledger: g}
	return e.row
}

// dropLocked replaces the label with the fewest calls by e, if e has more than twice as many.
func (g *Ledger) dropLocked(e *entry) bool {
	for {
		first := g.rows[0]
		if e.calls <= 2*first.key {
			return false
		}
		if first.key == first.calls {
			for i := range first.row.sums {
				s := &first.row.sums[i]
				g.dropped.sums[i].add(s, 1)
				g.unseen.sums[i].add(s, 1)
				g.unseen.sums[i].add(&first.row.seen[i], -1)
			}
			first.row.lost, first.row = true, nil
			g.rows[0], e.key = e, e.calls
			g.siftLocked()
			return true
		}
		first.key = first.calls
		g.siftLocked()
	}
}

// siftLocked moves the first of the rows down to where its key belongs.
func (g *Ledger) siftLocked() {
	for i, child := 0, 1; child < len(g.rows); i, child = child, 2*child+1 {
		if next := child + 1; next < len(g.rows) && g.rows[next].key < g.rows[child].key {
			child = next
		}
		if g.rows[i].key <= g.rows[child].key {
			return
		}
		g.rows[i], g.rows[child] = g.rows[child], g.rows[i]
	}
}

// add adds other sums, times sign.
func (s *Sums) add(t *Sums, sign float64) {
	s.Charged += sign * t.Charged
	s.Returned += sign * t.Returned
	s.Added += sign * t.Added
	s.Refused += sign * t.Refused
	s.Waited += sign * t.Waited
}

// Rows returns what was counted so far, by label and unit. Their sums are those of all calls.
func (g *Ledger) Rows() []Row {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rowsLocked(&g.dropped)
}

// Counters returns the rows for one collector of counters, such as a watch.Board. The sum of the
// increases of all counters is that of all calls: Dropped is only what no earlier Counters returned
// under the label that it was counted for.
func (g *Ledger) Counters() []Row {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.rows {
		e.row.seen = e.row.sums
	}
	return g.rowsLocked(&g.unseen)
}

func (g *Ledger) rowsLocked(dropped *row) (all []Row) {
	rows := map[string]*row{Other: &g.other, Dropped: dropped}
	for label, e := range g.entries {
		if e.row != nil {
			rows[label] = e.row
		}
	}
	for _, label := range slices.Sorted(maps.Keys(rows)) {
		for i, s := range rows[label].sums {
			if s != (Sums{}) {
				all = append(all, Row{g.Name, label, cmp.Or(g.Units[i], strconv.Itoa(i)), s, s.Used() * g.Price[i]})
			}
		}
	}
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
