// Command tokens paces calls of a language model by three limits in one bucket:
// calls, input tokens and output tokens.
//
//	go run ./examples/tokens
//
// A program knows how long an answer is only when it has the answer. So each call reserves
// tokens, and settles when it knows how many it has used. The rest is free for other calls, as
// far as they have not had it already. The bucket charges what a call has used on top. Look at
// the last column. A worker that reserves the longest possible answer and never settles leaves
// two thirds of the limit unused. One that settles gets much of that back, the more the
// shorter the calls are. One that reserves what answers have had lately, and settles, uses
// almost all of it.
//
// The API counts by the minute; here a minute is a second, so that there is something to see.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// The units of a cost.
const (
	calls = iota
	input
	output
)

const (
	workers   = 16
	maxInput  = 800    // tokens of the longest question
	maxOutput = 1_000  // tokens that an answer may have
	perMinute = 20_000 // output tokens that the API allows
	runFor    = 3 * time.Second
	answersIn = 50 * time.Millisecond
)

// limits returns the limits of the API as package estimate advises: calls evenly spaced, tokens in
// windows, and of the tokens that are known afterwards 95 %.
func limits() []outbound.Limit {
	return []outbound.Limit{
		outbound.PerSecond(200).Of(calls, "calls"),
		outbound.Window(50_000, time.Second).Of(input, "input tokens"),
		outbound.Window(0.95*perMinute, time.Second).Of(output, "output tokens"),
	}
}

const shows = "Calls of a language model reserve tokens, and settle."

var example = cli.Example{Name: "tokens", Usage: shows + "\n\n\tgo run ./examples/tokens", New: cli.NoFlags(run)}

func main() { example.Main() }

func run(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "%s\n%d workers ask for %v. The limits, in one bucket:\n", shows, workers, runFor)
	for _, l := range limits() {
		fmt.Fprintln(out, "  ", l)
	}
	fmt.Fprintf(out, "An answer has at most %d tokens, and most have far fewer.\n", maxOutput)

	ways := []*way{
		{name: "the most, never settled"},
		{name: "the most, then settled", settles: true},
		{name: "an estimate, then settled", settles: true, estimates: true},
	}
	errs := make([]error, len(ways))
	var all sync.WaitGroup
	for i, w := range ways { // side by side, each with a quota of its own
		all.Go(func() { errs[i] = w.run(ctx) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}

	fmt.Fprintf(out, "\n%-25s %6s %7s %7s %9s\n", "A call reserves", "calls", "input", "output", "of limit")
	for _, w := range ways {
		fmt.Fprintf(out, "%-25s %6.0f %7.0f %7.0f %7.0f %%\n",
			w.name, w.used[calls], w.used[input], w.used[output], 100*w.share())
	}
	return nil
}

// way is one way to use the quota.
type way struct {
	name      string
	settles   bool
	estimates bool

	mu     sync.Mutex // protects the fields below
	used   outbound.Cost
	answer float64 // how many tokens an answer has, on average; 0 before the first
}

// run lets the workers ask the model until the time is up.
func (w *way) run(ctx context.Context) error {
	bucket, err := outbound.NewBucket("model", limits()...)
	if err != nil {
		return err
	}
	q := queue.New(bucket, queue.Config{})
	until, cancel := context.WithTimeout(ctx, runFor)
	defer cancel()
	errs := make([]error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() { errs[i] = w.work(until, q, uint64(i)) })
	}
	all.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// work is one worker: it asks one question after the other.
func (w *way) work(ctx context.Context, l outbound.Limiter, seed uint64) error {
	questions := rand.New(rand.NewPCG(seed, 0))
	for {
		question := 100 + questions.IntN(maxInput-100)
		reserved := outbound.Cost{calls: 1, input: float64(question), output: w.expected()}
		err := outbound.Do(ctx, l, reserved, func(ctx context.Context) error {
			answer, err := model(ctx, questions)
			if err != nil {
				return err // the cost is not known: all that was reserved counts
			}
			used := outbound.Cost{calls: 1, input: float64(question), output: float64(answer)}
			if w.settles {
				outbound.PermitFrom(ctx).Settle(used)
			}
			w.add(used)
			return nil
		})
		// The queue refuses a call early that it cannot serve before the time is up.
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// model stands for the API. It returns how many tokens its answer has: some 300 on
// average.
func model(ctx context.Context, r *rand.Rand) (tokens int, err error) {
	select {
	case <-time.After(answersIn):
		return min(1+int(r.ExpFloat64()*310), maxOutput), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// expected is how many output tokens a call reserves.
func (w *way) expected() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.estimates || w.answer == 0 {
		return maxOutput
	}
	return w.answer
}

func (w *way) add(used outbound.Cost) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answer == 0 {
		w.answer = used[output]
	}
	w.answer += (used[output] - w.answer) / 20
	for unit := range used {
		w.used[unit] += used[unit]
	}
}

// share is the part that was used of the output tokens that the API allows.
func (w *way) share() float64 { return w.used[output] / (perMinute * runFor.Seconds()) }
