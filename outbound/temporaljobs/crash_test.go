package temporaljobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// workerEnv holds the task in the environment of a test binary that is to be a worker process.
const workerEnv = "DRIPFEED_TEMPORALJOBS_WORKER"

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		if err := work(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// task is all that a worker process has to know.
type task struct {
	Server, Redis, Queue, API string
	Order                     order
}

const crashRate = 20

// work is a worker process, until its input ends.
func work(text string) error {
	var k task
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: k.Redis})
	defer rdb.Close()
	w := &world{server: k.Server}
	bucket := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), k.Queue, outbound.PerSecond(crashRate)))
	w.limiter = (&counted{Limiter: jobs.New(bucket, jobs.Config{})}).limits
	if !k.Order.Await {
		w.tickets = redisTickets{rdb, k.Queue + ":"}
	}
	w.call = func(context.Context, int) error {
		res, err := http.Get(k.API)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	}
	c, err := w.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	work, err := w.start(c, k.Queue, k.Order, w.options())
	if err != nil {
		return err
	}
	defer work.Stop()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// redisTickets counts the activities that come back without a ticket.
type redisTickets struct {
	rdb    *redis.Client
	prefix string
}

func (r redisTickets) Get(ctx context.Context, activity string) string {
	ticket, err := r.rdb.Get(ctx, r.prefix+activity).Result()
	if err != nil {
		r.rdb.Incr(ctx, r.prefix+"none")
	}
	return ticket
}

func (r redisTickets) Put(ctx context.Context, activity, ticket string, ttl time.Duration) error {
	return r.rdb.Set(ctx, r.prefix+activity, ticket, ttl).Err()
}

// start starts a worker process, and returns a function that kills it.
func (k task) start(t *testing.T) (kill func()) {
	t.Helper()
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // which ends with this process
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it says that the process was killed
	})
	t.Cleanup(kill)
	return kill
}

// The activities of a killed process, which call or wait, run again after their StartToCloseTimeout, and the next
// process keeps to the limit. No other activity loses its reservation.
func TestCrash_KilledWorkerLosesNoActivity(t *testing.T) {
	address := serverAddress(t)
	for _, await := range []bool{false, true} {
		t.Run(fmt.Sprint("await ", await), func(t *testing.T) {
			t.Parallel()
			const n = 60
			r := redistest.Shared(t)
			if !r.Real() {
				t.Skip("the processes need a real redis-server")
			}
			api := &outboundtest.API{Latency: 200 * time.Millisecond, Rules: []outboundtest.Rule{outboundtest.LeakyBucket(1+crashRate/2, crashRate)}}
			server := httptest.NewServer(api)
			t.Cleanup(server.Close)
			c, err := newWorld(t, address).dial()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			name := queueName()
			k := task{address, r.Addr(), name, server.URL, order{Activities: n, SideBySide: true, Await: await,
				Start: 8 * time.Second, Interval: time.Millisecond}} // no attempt waits for longer than n calls take, 3 s
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // only ends a test that hangs
			defer cancel()
			run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: name, TaskQueue: name, WorkflowExecutionTimeout: 2 * time.Minute}, "Order")
			if err != nil {
				t.Fatal(err)
			}
			kill := k.start(t)
			for r := api.Report(); r.Answered < n/4 || r.InProgress == 0; r = api.Report() {
				if time.Sleep(time.Millisecond); ctx.Err() != nil {
					t.Fatalf("before the kill: %+v", r)
				}
			}
			kill()
			before := api.Report()
			with := map[string]bool{} // the activities that were with the process
			for started := true; started; time.Sleep(50 * time.Millisecond) {
				d, err := c.DescribeWorkflowExecution(ctx, name, "")
				if err != nil {
					t.Fatal(err)
				}
				started = false
				for _, a := range d.GetPendingActivities() {
					if a.GetState() == enums.PENDING_ACTIVITY_STATE_STARTED {
						started, with[a.GetActivityId()] = true, true
					}
				}
			}
			k.start(t)
			if err := run.Get(ctx, nil); err != nil { // all have succeeded
				t.Error(err)
			}
			after := api.Report()
			if len(with) == 0 || after.Refused != 0 || after.Arrivals < n || after.Arrivals > n+len(with) {
				t.Errorf("%d of %d activities were with the process, %d calls in all, %d refused", len(with), n, after.Arrivals, after.Refused)
			}
			none, err := r.Client(t).Get(ctx, name+":none").Int()
			if err != nil && !errors.Is(err, redis.Nil) || none > len(with) {
				t.Errorf("%d came back without a ticket, %v; %d were with the process", none, err, len(with))
			}
			t.Logf("%d calls until the kill, %d activities with the process, %d of them without a ticket, %d calls in all", before.Arrivals, len(with), none, after.Arrivals)
		})
	}
}
