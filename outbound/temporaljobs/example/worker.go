package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/temporaljobs"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// workerEnv holds the order in the environment of a worker process.
const workerEnv = "DRIPFEED_EXAMPLE_WORKER"

// order is all that a worker has to know.
type order struct {
	Server, Redis, API, Name string
	Activities               int
	Rate                     float64
	Await                    bool
}

// work is a worker process, until its input ends. It writes "attempt" for each attempt of an
// activity, and "call" for each call.
func work(text string, stdin io.Reader, stdout io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	c, err := dial(ctx, o.Server)
	if err != nil {
		return err
	}
	defer c.Close()
	rdb, err := dialRedis(ctx, o.Redis)
	if err != nil {
		return err
	}
	defer rdb.Close()
	bucket, err := outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), o.Name, outbound.PerSecond(o.Rate))
	if err != nil {
		return err
	}
	calls := counted{jobs.New(bucket, jobs.Config{}), stdout}
	limiter := func(info activity.Info) (outbound.Limiter, outbound.Cost) {
		if info.ActivityType.Name != "Call" {
			return nil, outbound.Cost{} // not paced
		}
		return calls, outbound.Cost{1}
	}
	w := worker.New(c, o.Name, worker.Options{
		Interceptors:      []interceptor.WorkerInterceptor{temporaljobs.NewInterceptor(limiter, tickets{rdb, o.Name + ":"})},
		WorkerStopTimeout: 5 * time.Second,
	})
	w.RegisterWorkflowWithOptions(o.callAll, workflow.RegisterOptions{Name: "CallAll"})
	w.RegisterActivityWithOptions(func(ctx context.Context) error {
		_, _ = fmt.Fprintln(stdout, "call") // the reader may have ended
		return call(ctx, o.API)
	}, activity.RegisterOptions{Name: "Call"})
	if err := w.Start(); err != nil {
		return err
	}
	defer w.Stop()
	_, err = io.Copy(io.Discard, stdin)
	return err
}

// counted is a Scheduler that reports each attempt.
type counted struct {
	*jobs.Scheduler
	to io.Writer
}

func (c counted) Acquire(ctx context.Context, cost outbound.Cost) (outbound.Permit, error) {
	_, _ = fmt.Fprintln(c.to, "attempt")
	return c.Scheduler.Acquire(ctx, cost)
}

// tickets is the Tickets of a fleet. Redis forgets them.
type tickets struct {
	rdb    *redis.Client
	prefix string
}

func (t tickets) Get(ctx context.Context, activity string) string {
	ticket, _ := t.rdb.Get(ctx, t.prefix+activity).Result() // without a ticket the activity gets another reservation
	return ticket
}

func (t tickets) Put(ctx context.Context, activity, ticket string, ttl time.Duration) error {
	return t.rdb.Set(ctx, t.prefix+activity, ticket, ttl).Err()
}

// callAll is the workflow.
func (o order) callAll(ctx workflow.Context) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second},
	})
	all := workflow.NewWaitGroup(ctx)
	var failed error
	for range o.Activities {
		all.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer all.Done()
			var err error
			if o.Await {
				ctx, err = temporaljobs.Await(ctx, "Call", outbound.Cost{1})
			}
			if err == nil {
				err = workflow.ExecuteActivity(ctx, "Call").Get(ctx, nil)
			}
			if err != nil {
				failed = err
			}
		})
	}
	all.Wait(ctx)
	return failed
}

// call calls the API, and reports a refusal to the permit.
func call(ctx context.Context, api string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, api, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusTooManyRequests {
		outbound.PermitFrom(ctx).Refused(0) // all processes pause
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// process is a worker, and what it has written.
type process struct {
	attempts, calls atomic.Int64
	end             func()
}

// start starts a worker. It sends on ended when the process has ended.
func start(o order, stderr io.Writer, ended chan<- error) (*process, error) {
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
	cmd.Stderr = stderr
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
	p, done := new(process), make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if lines.Text() == "call" {
				p.calls.Add(1)
			} else {
				p.attempts.Add(1)
			}
		}
		ended <- cmd.Wait()
	}()
	p.end = func() {
		_ = stdin.Close() // the worker stops
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	}
	return p, nil
}
