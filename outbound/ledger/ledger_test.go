package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/ledger"
	"github.com/dripfeed/dripfeed/outbound/watch"
	"github.com/dripfeed/dripfeed/queue"
)

// must returns v. An error, which no test expects, ends the tests with a panic that says it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// check ends the test if there is an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

func labelled(label string) context.Context {
	return context.WithValue(context.Background(), labelKey{}, label)
}

func text(t *testing.T, books ...*ledger.Ledger) string {
	t.Helper()
	var s strings.Builder
	check(t, ledger.WriteCSV(&s, books...))
	return s.String()
}

// Each column counts what its name says, through a job, a board, a Keyed and a queue, once.
func TestLedger_CountsEachKindOfUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &ledger.Ledger{Name: "api", Units: [4]string{"", "tokens"}, Price: outbound.Cost{0, 0.5}}
		b := outbound.Must(outbound.NewBucket("api", outbound.Window(3, time.Minute), outbound.Window(1000, time.Minute).Of(1, "tokens")))
		var board watch.Board
		keyed := &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			return book.Limiter(queue.New(b, queue.Config{MaxWait: 2 * time.Minute}), func(context.Context) string { return key }), nil
		}}
		call := func(key string, used float64) {
			l := board.Add(key, outbound.Observe(keyed.For(key), key, func(context.Context, outbound.Event) {}))
			if err := outbound.Do(t.Context(), l, outbound.Cost{1, 100}, func(ctx context.Context) error {
				outbound.PermitFrom(ctx).Settle(outbound.Cost{1, math.NaN()}) // has no effect
				outbound.PermitFrom(ctx).Settle(outbound.Cost{1, used})
				outbound.PermitFrom(ctx).Settle(outbound.Cost{5, 5}) // likewise
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		call("a", 30)
		call("b", 130)
		call("a", 100)
		call("=b\",\n", 0) // waits for a minute
		ctx, cancel := context.WithTimeout(labelled("b"), time.Second)
		defer cancel()
		bare := book.Limiter(b, labelOf)
		for range 3 { // the third is over the limit
			_, _ = bare.Acquire(ctx, outbound.Cost{1, 1})
		}
		_, _ = bare.Acquire(ctx, outbound.Cost{1, 5000}) // can never be admitted, and is not counted
		const want = `limiter,label,unit,charged,returned,added,used,refused,waited,money
api,"=b"",
",0,1,0,0,1,0,1,0
api,"=b"",
",tokens,100,100,0,0,0,100,0
api,a,0,2,0,0,2,0,0,0
api,a,tokens,200,70,0,130,0,0,65
api,b,0,3,0,0,3,1,0,0
api,b,tokens,102,0,30,132,1,0,66
`
		got := text(t, book)
		errorIf(t, got != want, "got\n%swant\n%s", got, want)
		i, ok := book.Limiter(b, nil).(interface{ Idle() bool })
		errorIf(t, !ok || i.Idle() != b.Idle(), "a Keyed cannot drop the limiter")
	})
}

// With more than a thousand labels those with the most calls keep or get a row, and the sums stay
// those of all calls. Labels that are the ledger's own, or too long, are others.
func TestLedger_LabelsAreBounded(t *testing.T) {
	var book ledger.Ledger
	l := book.Limiter(outbound.Unlimited{}, labelOf)
	total, used := 0., 0.
	var late []outbound.Permit
	call := func(label string) {
		p := must(l.Acquire(labelled(label), outbound.Cost{1, 2}))
		if total++; int(total)%3 == 0 {
			late, used = append(late, p), used+1
		} else {
			used += 2
		}
	}
	for i := range 20_000 {
		if call(fmt.Sprint("once-", i)); i%10 == 0 {
			call(fmt.Sprint("often-", i/10%20))
		}
	}
	for range 5 {
		for i := range 3000 {
			call(fmt.Sprint("tenant-", i))
		}
	}
	call(strings.Repeat("x", 1000))
	call(ledger.Other)
	call(ledger.Dropped)
	for i := range late { // of labels that have lost their rows, too
		late[i].Settle(outbound.Cost{1, 1})
	}
	rows, found := map[string]bool{}, map[string]float64{}
	for _, r := range book.Rows() {
		rows[r.Label] = true
		errorIf(t, len(r.Label) > 200 || r.Used() < 0, "%+v", r)
		found[r.Unit] += r.Used()
		if strings.HasPrefix(r.Label, "often-") {
			found["often"] += r.Charged
		}
	}
	errorIf(t, len(rows) > 1002 || len(rows) < 700 || found["0"] != total || found["1"] != used,
		"%d labels, %v, want %g calls and %g used", len(rows), found, total, used)
	often := 3 * 2000.
	errorIf(t, found["often"] < 0.9*often, "of %g units of the frequent labels %g have rows", often, found["often"])
}

// The rows are those of the labels with the most calls: one label more than there are rows, or many
// that come once, take no row from labels that are used as much. A call costs the same.
func TestLedger_OneLabelTooManyLosesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		labels, calls, once int
		own                 float64
	}{
		"as many as rows": {1000, 100, 0, 1},
		"one more":        {1001, 100, 0, 0.95},
		"a tenth more":    {1100, 100, 0, 0.9},
		"one newcomer":    {1000, 100, 1, 0.95},
		"many newcomers":  {1000, 10, 5000, 0.66},
	} {
		var book ledger.Ledger
		l, all, own := book.Limiter(outbound.Unlimited{}, labelOf), 0., 0.
		call := func(label string) {
			_, _ = l.Acquire(labelled(label), outbound.Cost{1})
			all++
		}
		for range c.calls {
			for i := range c.labels {
				call(fmt.Sprint("tenant-", i))
			}
		}
		for i := range c.once {
			call(fmt.Sprint("once-", i))
		}
		for _, r := range book.Rows() {
			if all -= r.Charged; strings.HasPrefix(r.Label, "tenant-") {
				own += r.Charged
			} else if strings.HasPrefix(r.Label, "once-") {
				t.Errorf("%s: %s has a row", name, r.Label)
			}
		}
		if total := float64(c.calls*c.labels + c.once); all != 0 || own < c.own*total {
			t.Errorf("%s: %g of %g calls have rows, and %g none at all", name, own, total, all)
		}
	}
}

// The increases of the counters, from one collection to the next, are those of all calls: also of
// labels that lose their rows between two, and of what is settled afterwards. None decreases.
func TestLedger_CountersSumUp(t *testing.T) {
	var book ledger.Ledger
	l := book.Limiter(outbound.Unlimited{}, labelOf)
	var permits []outbound.Permit
	total, sum, before := 0., 0., map[string]ledger.Sums{}
	collect := func(r ledger.Row) {
		was := before[r.Label]
		if r.Charged < was.Charged || r.Returned < was.Returned || r.Added < was.Added {
			was = ledger.Sums{} // the label has a new row
			errorIf(t, r.Label == ledger.Dropped || r.Label == ledger.Other, "%+v after %+v", r, was)
		}
		sum += r.Used() - was.Used()
		before[r.Label] = r.Sums
	}
	for round, calls := range []int{1, 3, 9, 27, 81, 243} { // each has labels of its own, which take the rows of those before
		for i := range 500 {
			for range calls {
				p, _ := l.Acquire(labelled(fmt.Sprint(round, " ", i)), outbound.Cost{100})
				if total += 100; len(permits) < 8000 {
					permits = append(permits, p)
				}
			}
		}
		if late := len(permits) / 2; round%4 == 1 {
			for i := range permits[:late] {
				permits[i].Settle(outbound.Cost{float64(i % 200)})
				total += float64(i%200) - 100
			}
			permits = permits[late:]
			for _, r := range book.Counters() {
				collect(r)
			}
			book.Rows() // changes nothing
			errorIf(t, sum != total, "round %d: the counters have grown by %g, want %g", round, sum, total)
		}
	}
	errorIf(t, before[ledger.Dropped].Charged == 0 || before[ledger.Dropped].Returned == 0,
		"nothing was dropped: %+v", before[ledger.Dropped])
}

// Hostile numbers, a nil limiter and a writer that fails are errors, or count nothing.
func TestLedger_InvalidIsAnError(t *testing.T) {
	var book ledger.Ledger
	if _, err := book.Limiter(nil, nil).Acquire(t.Context(), outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
	l := book.Limiter(outbound.Unlimited{}, nil)
	for _, n := range []float64{math.NaN(), math.Inf(1), -1, 1e300, outbound.Free, 1} {
		_, err := l.Acquire(t.Context(), outbound.Cost{n})
		check(t, err)
	}
	rows := book.Rows()
	errorIf(t, len(rows) != 1 || rows[0].Charged != 1 || rows[0].Label != "", "%+v", rows)
	r, w := io.Pipe()
	_ = r.CloseWithError(io.ErrClosedPipe)
	err := ledger.WriteCSV(w, &book)
	errorIf(t, err != io.ErrClosedPipe, "%v", err)
}
