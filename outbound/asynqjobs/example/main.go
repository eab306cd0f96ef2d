// Command example runs worker processes that take tasks from one asynq queue, and keep to one limit
// of an API:
//
//	go run -C outbound/asynqjobs ./example
//
// Look at the table: the API refuses no call, and waiting tasks are in asynq instead of workers.
// Each of them runs twice: once to get its reservation, and once to call. With -book each gets its
// reservation when it is enqueued, and runs once.
//
// The workers are processes of this program. It serves the API itself, which takes 20 calls in any
// second and not one more, and starts a redis-server where one is installed. The server can be
// yours:
//
//	go run -C outbound/asynqjobs ./example -redis redis://localhost:6379
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/asynqjobs"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// params are the flags.
type params struct {
	workers, tasks int
	book           bool
	redis          string
}

func main() {
	if text := os.Getenv(workerEnv); text != "" {
		signal.Ignore(os.Interrupt) // the first process ends the workers
		if err := work(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "example: worker:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	status, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
	}
	os.Exit(status)
}

// run is the program, and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (status int, err error) {
	p, err := arguments(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return 2, err
	}
	s, err := newServer(ctx, p.redis)
	if err != nil {
		return 2, err
	}
	defer s.end()
	if err := fleet(ctx, p, s, stdout); err != nil {
		return 1, err
	}
	return 0, nil
}

func arguments(args []string, stderr io.Writer) (p params, err error) {
	f := flag.NewFlagSet("example", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, "Worker processes of asynq share one quota.\n\n\tgo run -C outbound/asynqjobs ./example [flags]\n\n")
		f.PrintDefaults()
	}
	f.IntVar(&p.workers, "workers", 4, "`N`, 1 to 50: worker processes, each with 20 workers")
	f.IntVar(&p.tasks, "tasks", 200, "`N`, 1 to 100000: tasks")
	f.BoolVar(&p.book, "book", false, "give each task its reservation when it is enqueued")
	f.StringVar(&p.redis, "redis", "", "use the server at this `URL`; else one is started")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	switch {
	case f.NArg() > 0:
		return p, fmt.Errorf("%q is one argument too many", f.Arg(0))
	case p.workers < 1 || p.workers > 50:
		return p, fmt.Errorf("-workers needs a number from 1 to 50, not %d", p.workers)
	case p.tasks < 1 || p.tasks > 100_000:
		return p, fmt.Errorf("-tasks needs a number from 1 to 100000, not %d", p.tasks)
	}
	return p, nil
}

// fleet enqueues the tasks, has the workers run them, and shows how they fare.
func fleet(ctx context.Context, p params, s *server, stdout io.Writer) error {
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(rate, time.Second)}}
	server := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}
	go server.Serve(listen) // until Close, and returns that as its error
	defer server.Close()

	o := order{Redis: s.url, Queue: fmt.Sprintf("example-%d", time.Now().UnixNano()), API: "http://" + listen.Addr().String() + "/"}
	inspector := asynq.NewInspectorFromRedisClient(s.rdb)
	defer func() { _ = inspector.DeleteQueue(o.Queue, true) }() // what is left of an interrupted run
	if err := enqueue(ctx, p, s.rdb, o.Queue); err != nil {
		return err
	}
	var runs atomic.Int64
	ended := make(chan error, p.workers)
	for range p.workers {
		end, err := start(o, &runs, ended)
		if err != nil {
			return err
		}
		defer end()
	}
	fmt.Fprintf(stdout, `%d tasks, and %d processes with 20 workers each.
The API takes %d calls in any second.

%6s %9s %9s %9s %9s
`, p.tasks, p.workers, rate, "done", "in asynq", "in work", "runs each", "refused")
	begun := time.Now()
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			return errors.New("interrupted")
		case err := <-ended:
			return fmt.Errorf("a worker has ended: %w", err)
		case <-tick.C:
		}
		b, err := inspector.GetQueueInfo(o.Queue)
		if err != nil {
			return err
		}
		done, refused := b.ProcessedTotal-b.FailedTotal, api.Report().Refused
		fmt.Fprintf(stdout, "%6d %9d %9d %9.2f %9d\n", done, b.Pending+b.Scheduled+b.Retry, b.Active, float64(runs.Load())/float64(p.tasks), refused)
		if done >= p.tasks {
			fmt.Fprintf(stdout, "\nIt took %.1f s. At the rate of the limit it takes %.1f s.\n",
				time.Since(begun).Seconds(), float64(p.tasks)/outbound.PerSecond(rate).LeakRate)
			return nil
		}
	}
}

// enqueue puts the tasks into the queue.
func enqueue(ctx context.Context, p params, rdb *redis.Client, queue string) error {
	pacer, err := newPacer(rdb, queue)
	if err != nil {
		return err
	}
	client := asynq.NewClientFromRedisClient(rdb)
	put := client.EnqueueContext
	if p.book {
		put = func(ctx context.Context, t *asynq.Task, o ...asynq.Option) (*asynq.TaskInfo, error) {
			return pacer.Enqueue(ctx, client, t, o...)
		}
	}
	for range p.tasks {
		if _, err := put(ctx, asynq.NewTask("ship", nil), asynq.Queue(queue)); err != nil {
			return err
		}
	}
	return nil
}

// start starts a worker, and returns a function that ends it.
func start(o order, runs *atomic.Int64, ended chan<- error) (end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(stdout); lines.Scan(); { // one for each run
			runs.Add(1)
		}
		ended <- cmd.Wait()
	}()
	return func() {
		_ = stdin.Close() // the worker shuts down
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	}, nil
}

// newPacer returns the pacer that all processes have in common.
func newPacer(rdb *redis.Client, queue string) (*asynqjobs.Pacer, error) {
	scheduler, err := newScheduler(rdb, queue)
	if err != nil {
		return nil, err
	}
	return asynqjobs.New(rdb, func(*asynq.Task) (outbound.Limiter, outbound.Cost) { return scheduler, outbound.Cost{1} }), nil
}
