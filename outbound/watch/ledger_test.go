package watch

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/ledger"
)

// The Board shows which labels have used most of any unit, and all others together at the end. A ledger has one name.
func TestSnapshot_ShowsTheLedgerOfItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &ledger.Ledger{Name: "llm", Units: [4]string{"calls", "tokens"}, Price: outbound.Cost{0, 2}}
		b := Board{Ledgers: []*ledger.Ledger{{Name: "unknown"}, book, {Name: "llm"}}}
		b.Add("other", bucket(t, outbound.PerSecond(1)))
		type label struct{}
		l := b.Add("llm", book.Limiter(bucket(t, outbound.Limit{Capacity: 2_000, LeakRate: 1, Unit: 1}), func(ctx context.Context) string {
			return ctx.Value(label{}).(string)
		}))
		call := func(name string, tokens float64) {
			_, _ = l.Acquire(context.WithValue(bg, label{}, name), outbound.Cost{1, tokens})
		}
		for i := range 30 {
			for range 1 + i%2 { // of 45 calls, and of 2,000 tokens
				call(fmt.Sprintf("tenant %02d", i), 10)
			}
		}
		call("big", 1000)
		call(ledger.Other, 100)
		call("big", 2000) // is refused
		is := called(t, &b, "llm").Ledger
		fatalIf(t, len(is) != 11 || len(called(t, &b, "other").Ledger) > 0, "%+v", is)
		sum, calls := ledger.Sums{}, 0.
		for i, e := range is {
			want, part, of := fmt.Sprintf("tenant %02d", 2*i-1), 2./47, "calls"
			switch i {
			case 0:
				want, part, of = "big", 1000./1550, "tokens"
			case 10:
				want, part = ledger.Other, 28./47
			}
			errorIf(t, e.Label != want || math.Abs(e.Part-part) > 1e-9 || e.Of != of || len(e.Rows) != 2,
				"entry %d: %+v, want %s with %v", i, e, want, part)
			calls += e.Rows[0].Charged
			sum.Charged, sum.Refused = sum.Charged+e.Rows[1].Charged, sum.Refused+e.Rows[1].Refused
			errorIf(t, e.Rows[1].Money != 2*e.Rows[1].Charged, "%+v", e.Rows[1])
		}
		errorIf(t, calls != 47 || sum.Charged != 1550 || sum.Refused != 2000, "%v calls and %+v in all", calls, sum)
		book.Price[1] = math.Inf(1) // which no page can show
		text := jsonOf(t, b.Snapshot(bg, Query{}))
		errorIf(t, len(text) == 0, "%v", text)
	})
}
