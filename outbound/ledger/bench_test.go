package ledger_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/ledger"
)

type labelKey struct{}

func labelOf(ctx context.Context) string {
	label, _ := ctx.Value(labelKey{}).(string)
	return label
}

func contexts(n int) []context.Context {
	all := make([]context.Context, n)
	for i := range all {
		all[i] = context.WithValue(context.Background(), labelKey{}, fmt.Sprintf("tenant-%06d", i))
	}
	return all
}

// What a ledger of 10,000 labels adds to a call: compare with "observe" and "none".
//
//	go test ./outbound/ledger -bench . -benchmem
func BenchmarkLedger(b *testing.B) {
	for _, labels := range []int{1, 1_000, 10_000} {
		all := contexts(labels)
		for _, kind := range []string{"none", "observe", "ledger"} {
			b.Run(fmt.Sprintf("%s/%d", kind, labels), func(b *testing.B) {
				var l outbound.Limiter = outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 1e6, LeakRate: 1e9}))
				switch kind {
				case "observe":
					l = outbound.Observe(l, "api", func(context.Context, outbound.Event) {})
				case "ledger":
					l = new(ledger.Ledger).Limiter(l, labelOf)
				}
				i := 0
				for b.Loop() {
					if i++; i == labels {
						i = 0
					}
					p, err := l.Acquire(all[i], outbound.Cost{1})
					if err != nil {
						b.Fatal(err)
					}
					p.Done()
				}
			})
		}
	}
}

// 10,000 labels, and as many as come later, take less than 2 MB.
func TestLedger_TenThousandLabelsTakeLittle(t *testing.T) {
	var g ledger.Ledger
	l := g.Limiter(outbound.Unlimited{}, labelOf)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, labels := range []int{10_000, 100_000} {
		for i := range labels {
			p, err := l.Acquire(context.WithValue(context.Background(), labelKey{}, fmt.Sprintf("tenant-%06d", i)), outbound.Cost{1, 1, 1, 1})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if took := int(after.HeapAlloc) - int(before.HeapAlloc); took > 2<<20 {
			t.Errorf("%d labels take %d bytes", labels, took)
		} else {
			t.Log(labels, took)
		}
	}
	runtime.KeepAlive(&g)
}
