package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/ledger"
)

// Two tenants use a language model at 2.50 a million tokens. Each call settles what it has used. A
// job system writes the file once a day; a watch.Board with the ledger has the same as metrics.
func Example() {
	const calls, tokens = 0, 1
	bucket := outbound.Must(outbound.NewBucket("model",
		outbound.PerMinute(600).Burst(10),
		outbound.Window(100_000, time.Minute).Of(tokens, "tokens")))
	book := &ledger.Ledger{Name: "model", Units: [4]string{calls: "calls", tokens: "tokens"}, Price: outbound.Cost{tokens: 2.5e-6}}

	type tenant struct{}
	limiter := book.Limiter(bucket, func(ctx context.Context) string {
		name, _ := ctx.Value(tenant{}).(string)
		return name
	})
	ask := func(ctx context.Context, estimate, used float64) {
		permit, err := limiter.Acquire(ctx, outbound.Cost{calls: 1, tokens: estimate})
		if errors.Is(err, outbound.ErrThrottled) {
			fmt.Println("over the limit")
			return
		} else if err != nil {
			fmt.Println(err)
			return
		}
		defer permit.Done()
		permit.Settle(outbound.Cost{calls: 1, tokens: used})
	}
	acme := context.WithValue(context.Background(), tenant{}, "acme")
	ask(acme, 40_000, 32_000)
	ask(acme, 20_000, 24_000)
	ask(context.WithValue(context.Background(), tenant{}, "initech"), 8_000, 8_000)
	ask(acme, 50_000, 50_000)

	if err := ledger.WriteCSV(os.Stdout, book); err != nil {
		fmt.Println(err)
	}
	// Output:
	// over the limit
	// limiter,label,unit,charged,returned,added,used,refused,waited,money
	// model,acme,calls,2,0,0,2,1,0,0
	// model,acme,tokens,60000,8000,4000,56000,50000,0,0.14
	// model,initech,calls,1,0,0,1,0,0,0
	// model,initech,tokens,8000,0,0,8000,0,0,0.02
}
