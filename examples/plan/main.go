// Command plan predicts how long calls take under limits:
//
//	go run ./examples/plan -limit '100 per 1s' -limit '50000 in any 1h' -calls 100000 -workers 50
//
// It runs what a fleet runs, in virtual time: each worker has a queue around a bucket, and all
// buckets are one in a store. Each of a worker's callers makes its calls in sequence. Then it runs
// the same without each of the limits, and with twice the callers. Look at what bounds the calls.
// If that is a limit, more workers do not help; if it is the callers, they do.
//
// With a backlog it draws the hours of a night: what users send, and what jobs send. It says when
// each job is done or what must wait, and which limit to ask the vendor for:
//
//	go run ./examples/plan -file examples/plan/limits.json -backlog examples/plan/backlog.json
//
// "50000 per 1h" spaces calls evenly. With "50000 in any 1h" calls leave immediately while the
// window has capacity, as an API allows that counts the calls of an hour. Try both.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

const shows = "How long calls take under limits, in virtual time."

var example = cli.Example{Name: "plan", Usage: shows + "\n\n\tgo run ./examples/plan [flags]", New: program}

func main() { example.Main() }

// plan is what the program tries.
type plan struct {
	limits  []outbound.Limit
	calls   int
	workers int
	callers int // of each worker
	latency time.Duration

	file, backlog string // of a night, or empty
}

func program(flags *flag.FlagSet) cli.Run {
	p := &plan{calls: 20_000, workers: 10, callers: 8}
	flags.Func("limit", "a `LIMIT` of the API, such as '100 per 1s' or\n'50000 in any 1h'; the flag may come again\n(default both)", func(text string) error {
		l, err := outbound.ParseLimit(text)
		p.limits = append(p.limits, l)
		return err
	})
	cli.Number(flags, &p.calls, "calls", 1, 200_000, "calls in all")
	cli.Number(flags, &p.workers, "workers", 1, 100, "processes")
	cli.Number(flags, &p.callers, "callers", 1, 100, "callers of a worker")
	flags.DurationVar(&p.latency, "latency", 150*time.Millisecond, "the `TIME` that each call takes")
	flags.StringVar(&p.file, "file", "", "a JSON `FILE` of limits, as examples/proxy has it")
	flags.StringVar(&p.backlog, "backlog", "", "a JSON `FILE` of jobs and users: see backlog.json")
	return p.run
}

// run tries the plan, and prints what bounds it.
func (p *plan) run(_ context.Context, out io.Writer) error {
	if p.file != "" || p.backlog != "" {
		n, err := readNight(p.backlog, p.file)
		if err != nil {
			return err
		}
		return n.show(out, *p)
	}
	if p.limits == nil {
		p.limits = []outbound.Limit{outbound.PerSecond(100), outbound.Window(50_000, time.Hour)}
	}
	if err := p.check(); err != nil {
		return err
	}
	r, err := p.try()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n%d calls, made by %d workers with %d callers each.\nOnce it goes, a call takes %v.\n\n", shows, p.calls, p.workers, p.callers, p.latency)
	fmt.Fprintf(out, "duration   %v, %.4g calls a minute\n", short(r.Took), float64(p.calls)/max(r.Took, time.Millisecond).Minutes())
	fmt.Fprintf(out, "waits      p50 %v, p95 %v, longest %v\n", short(r.Wait(0.5)), short(r.Wait(0.95)), short(r.Wait(1)))
	if r.Refused > 0 {
		fmt.Fprintf(out, "refusals   %d\n           A call that would wait too long is refused,\n           and its caller retries it later.\n", r.Refused)
	}
	fmt.Fprintln(out)
	best, bound := r.Took-r.Took/50, "nothing of these alone"
	change := func(what, name string, changed plan) error {
		r, err := changed.try()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-34.34s  %v\n", what, short(r.Took))
		if r.Took < best {
			best, bound = r.Took, name
		}
		return nil
	}
	for i, l := range p.limits {
		changed := *p
		changed.limits = slices.Delete(slices.Clone(p.limits), i, i+1)
		if err := change("without "+l.String(), l.String(), changed); err != nil {
			return err
		}
	}
	changed := *p
	changed.callers *= 2
	if err := change("with twice the callers", "the callers", changed); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nWhat bounds it: %s.\n", bound)
	return nil
}

// mostHours is the time of all workers together: while its calls wait, each asks the store now and
// then whether another has paused the bucket. A machine needs up to half a minute for so much.
const mostHours = 10_000

// check returns why a plan cannot be tried.
func (p plan) check() error {
	if p.latency < 0 || p.latency > time.Hour {
		return cli.Wrong("-latency needs 0s to 1h, not %v", p.latency)
	}
	least, what := p.latency.Hours()*float64(p.calls)/float64(p.workers*p.callers), "the callers"
	for _, l := range p.limits {
		if n, per := l.Each(); n > 0 && float64(p.calls)/n*per.Hours() > least {
			least, what = float64(p.calls)/n*per.Hours(), l.String()
		}
	}
	if least*float64(p.workers) > mostHours {
		return cli.Wrong("%d calls take %.0f hours (%s): too long to try with %d workers", p.calls, least, what, p.workers)
	}
	_, err := outbound.NewSharedBucket(store.NewMemory(), "api", p.limits...)
	for _, l := range p.limits { // each may be left alone
		if _, alone := outbound.NewSharedBucket(store.NewMemory(), "api", l); err == nil {
			err = alone
		}
	}
	if err != nil {
		return cli.Wrong("-limit: %v", err)
	}
	return nil
}

// try runs the plan in virtual time. Synctest is made for tests, and asks for a *testing.T. Nothing
// promises that a zero one does, but that of Go 1.26 does. A program of your own has such code in a
// test: see outboundtest.Load.
func (p plan) try() (r *outboundtest.LoadReport, err error) {
	synctest.Test(new(testing.T), func(*testing.T) {
		shared := store.NewMemory() // as Redis for a real fleet
		var fleet []outbound.Limiter
		for range p.workers {
			var l outbound.Limiter = outbound.Unlimited{}
			if len(p.limits) > 0 {
				l = queue.New(outbound.Must(outbound.NewSharedBucket(shared, "api", p.limits...)), queue.Config{}) // they were checked
			}
			fleet = append(fleet, l)
		}
		r = outboundtest.Load{Calls: p.calls, Callers: p.callers, Latency: p.latency}.Run(context.Background(), fleet...)
	})
	if r.Failed > 0 {
		return nil, fmt.Errorf("%d calls have failed, the first with: %w", r.Failed, r.Err)
	}
	return r, nil
}

// short returns a time with three digits or so.
func short(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Hour, time.Minute, time.Second, time.Millisecond} {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d.Round(time.Microsecond)
}
