// Command progress draws a bar for calls that wait in a queue, and says when they are done:
//
//	go run -C examples/progress . -n 200
//
// A rate of the past would be wrong here. Calls leave in bursts of a window. After a third of them
// the API asks for a pause, and after two thirds it refuses one. The queue knows all three. In a
// pipe, as in a log, lines take the place of the bar:
//
//	go run -C examples/progress . | cat
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

func main() {
	n := flag.Int("n", 200, "calls")
	unknown := flag.Bool("unknown", false, "do not tell the queue how many calls there are")
	flag.Parse()
	terminal := false
	if s, err := os.Stdout.Stat(); err == nil {
		terminal = s.Mode()&os.ModeCharDevice != 0
	}
	if err := run(context.Background(), os.Stdout, terminal, *n, *unknown); err != nil {
		fmt.Fprintln(os.Stderr, "progress:", err)
		os.Exit(1)
	}
}

// run makes n calls, and draws how far they are.
func run(ctx context.Context, out io.Writer, terminal bool, n int, unknown bool) error {
	bucket, err := outbound.NewBucket("api", outbound.Window(40, 5*time.Second))
	if err != nil {
		return err
	}
	told := n
	if unknown {
		told = 0
	}
	progress := queue.New(bucket, queue.Config{}).Progress(told, outbound.Cost{float64(told)})
	show := lines(out, n)
	if terminal {
		show = bar(out, n)
	}

	calls := func(yield func(int) bool) {
		for i := 1; i <= n && yield(i); i++ {
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	done, results := 0, make(chan error)
	defer func() { // after an error calls may be under way
		cancel()
		for range results {
		}
	}()
	go func() {
		defer close(results)
		for _, err := range outbound.Each(ctx, progress, outbound.Cost{1}, 8, calls, api(n)) {
			results <- err
		}
	}()
	every := time.NewTicker(500 * time.Millisecond) // in a pause no call ends
	defer every.Stop()
	for {
		select {
		case err, more := <-results:
			if !more {
				return ctx.Err()
			} else if err != nil {
				return err
			}
			done++
		case <-every.C:
		}
		last, err := progress.Last(ctx)
		if err != nil {
			return err
		}
		show(done, end(last))
	}
}

// latency is how long a call takes.
const latency = 100 * time.Millisecond

// api is an API that asks for a pause once, and refuses a call once.
func api(n int) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		time.Sleep(latency)
		switch i {
		case n / 3:
			outbound.PermitFrom(ctx).Hold(4 * time.Second)
		case 2 * n / 3:
			outbound.PermitFrom(ctx).Refused(3 * time.Second)
		}
		return nil
	}
}

// end says when the last call ends, if that can be known.
func end(last outbound.Explanation) string {
	if last.Wait < 0 {
		return "end unknown"
	}
	at := "done at " + time.Now().Add(last.Wait+latency).Format(time.TimeOnly)
	if last.AtLeast {
		return at + " or later"
	}
	return at
}

// bar draws a bar in a terminal.
func bar(out io.Writer, n int) func(done int, end string) {
	b := progressbar.NewOptions(n, progressbar.OptionSetWriter(out), progressbar.OptionSetWidth(30),
		progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false))
	return func(done int, end string) {
		b.Describe(end)
		_ = b.Set(done) // only a terminal that has gone fails
		if done == n {
			fmt.Fprintln(out)
		}
	}
}

// lines prints a line for each twentieth of the calls.
func lines(out io.Writer, n int) func(done int, end string) {
	printed := -1
	return func(done int, end string) {
		if part := 20 * done / max(1, n); part != printed {
			printed = part
			fmt.Fprintf(out, "%d of %d, %s\n", done, n, end)
		}
	}
}
