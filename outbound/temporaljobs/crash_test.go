package temporaljobs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

func TestMain(m *testing.M) {
	jobtest.Worker(work)
	os.Exit(m.Run())
}

// task is the order of a worker process.
type task struct {
	Server, Redis, Queue, API, Booking string
	Order                              order
}

const crashRate = 20

// work is a worker process.
func work(k task) error {
	rdb := redis.NewClient(&redis.Options{Addr: k.Redis})
	defer rdb.Close()
	bucket := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), k.Queue, outbound.PerSecond(crashRate)))
	w := &world{server: k.Server, inner: jobs.New(bucket, jobs.Config{})}
	w.limiter, w.call = w.limits, func(ctx context.Context, _ int) error { return jobtest.Get(ctx, http.DefaultClient, k.API) }
	if !k.Order.Await {
		w.tickets = redisTickets{rdb, k}
	}
	c, err := w.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	worker, err := w.start(c, k.Queue, k.Order, w.options())
	if err != nil {
		return err
	}
	defer worker.Stop()
	jobtest.Wait()
	return nil
}

// redisTickets reports the activities that come back without a ticket.
type redisTickets struct {
	rdb *redis.Client
	task
}

func (r redisTickets) Get(ctx context.Context, activity string) string {
	ticket, err := r.rdb.Get(ctx, r.Queue+":"+activity).Result()
	if err != nil {
		_ = jobtest.Get(ctx, http.DefaultClient, r.Booking)
	}
	return ticket
}

func (r redisTickets) Put(ctx context.Context, activity, ticket string, ttl time.Duration) error {
	return r.rdb.Set(ctx, r.Queue+":"+activity, ticket, ttl).Err()
}

// The activities of a killed process, which call or wait, run again after their StartToCloseTimeout, and the next
// process keeps to the limit. No other activity loses its reservation.
func TestCrash_KilledWorkerLosesNoActivity(t *testing.T) {
	for _, await := range []bool{false, true} {
		t.Run(fmt.Sprint("await ", await), func(t *testing.T) {
			onServer(t, func(t *testing.T, w *world) {
				const n = 60
				r := redistest.Shared(t)
				if !r.Real() {
					t.Skip("the processes need a real redis-server")
				}
				api := jobtest.StartAPI(t, &outboundtest.API{Latency: 200 * time.Millisecond, Rules: []outboundtest.Rule{outboundtest.LeakyBucket(1+crashRate/2, crashRate)}})
				c := jobtest.Must(w.dial())
				defer c.Close()
				name := queueName()
				k := task{w.server, r.Addr(), name, api.URL, api.Booking, order{Activities: n, Await: await,
					Start: 8 * time.Second, Interval: time.Millisecond}} // no attempt waits for longer than n calls take, 3 s
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // only ends a test that hangs
				defer cancel()
				run := jobtest.Must(c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: name, TaskQueue: name, WorkflowExecutionTimeout: 2 * time.Minute}, "Order"))
				kill := jobtest.Start(t, k)
				for r := api.Report(); r.Answered < n/4 || r.InProgress == 0; r = api.Report() {
					if time.Sleep(time.Millisecond); ctx.Err() != nil {
						t.Fatalf("before the kill: %+v", r)
					}
				}
				kill()
				with := map[string]bool{} // the activities that were with the process
				for started := true; started; time.Sleep(50 * time.Millisecond) {
					d := jobtest.Must(c.DescribeWorkflowExecution(ctx, name, ""))
					started = false
					for _, a := range d.GetPendingActivities() {
						if a.GetState() == enums.PENDING_ACTIVITY_STATE_STARTED {
							started, with[a.GetActivityId()] = true, true
						}
					}
				}
				jobtest.Start(t, k)
				if err := run.Get(ctx, nil); err != nil { // all have succeeded
					t.Error(err)
				}
				api.Check(t, n, len(with))
				if booked := int(api.Booked.Load()); len(with) == 0 || booked > len(with) {
					t.Errorf("%d activities came back without a ticket; %d were with the process", booked, len(with))
				}
			})
		})
	}
}
