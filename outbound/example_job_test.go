package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A job runs if its call is admitted, and settles what it has cost.
func ExampleDo() {
	ctx := context.Background()
	tokens := outbound.Must(outbound.NewBucket("model", outbound.Limit{Capacity: 1000, LeakRate: 0.001}))

	err := outbound.Do(ctx, tokens, outbound.Cost{800}, func(ctx context.Context) error {
		outbound.PermitFrom(ctx).Settle(outbound.Cost{300})
		return nil
	})
	fmt.Println(err)

	s, _ := tokens.State(ctx)
	fmt.Printf("%.0f of 1000 are left\n", s.Remaining)
	// Output:
	// <nil>
	// 700 of 1000 are left
}

// A job system runs a function of a payload. If the call is over the limit, the job fails with the time at which to run
// again.
func ExampleWrap() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("mail", outbound.PerHour(1)))
	send := outbound.Wrap(bucket, outbound.Cost{1}, func(_ context.Context, to string) error {
		fmt.Println("sent to", to)
		return nil
	})

	for _, to := range []string{"ann", "bob"} {
		err := send(ctx, to)
		var full *outbound.ThrottledError
		switch {
		case errors.As(err, &full):
			fmt.Printf("%s: again in about %.0f minutes\n", to, full.RetryAfter.Minutes())
		case err != nil:
			fmt.Println(err)
		}
	}
	// Output:
	// sent to ann
	// bob: again in about 60 minutes
}

// A list, two jobs at the same time.
func ExampleEach() {
	ctx := context.Background()
	words := []string{"drip", "", "feed"}
	length := func(_ context.Context, word string) error {
		if word == "" {
			return errors.New("nothing to do")
		}
		return nil
	}

	done := 0
	for word, err := range outbound.Each(ctx, outbound.Unlimited{}, outbound.Cost{1}, 2, slices.Values(words), length) {
		if err != nil {
			fmt.Printf("%q: %v\n", word, err)
			continue
		}
		done++
	}
	fmt.Println(done, "done")
	// Output:
	// "": nothing to do
	// 2 done
}

// Each document costs as many tokens as it has.
func ExampleEach_costByItem() {
	ctx := context.Background()
	type document struct {
		name   string
		tokens float64
	}
	documents := []document{{"letter", 300}, {"book", 90_000}, {"note", 50}}
	model := outbound.Must(outbound.NewBucket("model", outbound.Window(60, time.Minute), outbound.Window(10_000, time.Minute).Of(1, "tokens")))

	tokens := func(d document) outbound.Cost { return outbound.Cost{1, d.tokens} }
	index := func(context.Context, document) error { return nil }
	for d, err := range outbound.Each(ctx, model, tokens, 1, slices.Values(documents), index) {
		fmt.Println(d.name, errors.Is(err, outbound.ErrTooLarge))
	}
	// Output:
	// letter false
	// book true
	// note false
}

// What comes from a channel, until it is closed or ctx is done.
func ExampleReceive() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	orders := make(chan int, 3)
	for id := range 3 {
		orders <- id
	}

	ship := func(context.Context, int) error { return nil }
	for id, err := range outbound.Each(ctx, outbound.Unlimited{}, outbound.Cost{1}, 1, outbound.Receive(ctx, orders), ship) {
		fmt.Println("order", id, err)
		if id == 2 {
			cancel() // this channel is not closed
		}
	}
	// Output:
	// order 0 <nil>
	// order 1 <nil>
	// order 2 <nil>
}
