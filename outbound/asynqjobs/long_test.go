package asynqjobs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

var rounds = flag.Int("rounds", 1, "how often TestLongWays measures each way")

const (
	longTasks   = 500
	longRate    = 20
	longServers = 3
	longWorkers = 50 // of each server
	longPoll    = time.Second
	longest     = 100 * time.Second // then the rest counts as not done
)

// way is one way to pace the tasks of a server.
type way struct {
	name string
	// serve returns a server's config and handler, and enqueue puts a task into the queue.
	serve   func(b *outbound.Bucket, rdb redis.UniversalClient, c asynq.Config, call asynq.HandlerFunc) (asynq.Config, asynq.Handler)
	enqueue func(w *world, b *outbound.Bucket, t *asynq.Task) error
}

var errFull = errors.New("rate limited")

func plainly(w *world, _ *outbound.Bucket, t *asynq.Task) error {
	_, err := w.client.Enqueue(t)
	return err
}

func pacer(b *outbound.Bucket, rdb redis.UniversalClient) *Pacer {
	l := jobs.New(b, jobs.Config{PollInterval: longPoll})
	return New(rdb, func(t *asynq.Task) (outbound.Limiter, outbound.Cost) {
		if t.Type() != "mail" {
			return nil, outbound.Cost{}
		}
		return l, outbound.Cost{1}
	})
}

func scheduled(b *outbound.Bucket, rdb redis.UniversalClient, c asynq.Config, call asynq.HandlerFunc) (asynq.Config, asynq.Handler) {
	p := pacer(b, rdb)
	return p.Config(c), p.Middleware(call)
}

var ways = []way{
	{"wait in the worker", func(b *outbound.Bucket, _ redis.UniversalClient, c asynq.Config, call asynq.HandlerFunc) (asynq.Config, asynq.Handler) {
		q := queue.New(b, queue.Config{})
		return c, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			if t.Type() != "mail" {
				return call(ctx, t)
			}
			return outbound.Do(ctx, q, outbound.Cost{1}, func(ctx context.Context) error { return call(ctx, t) })
		})
	}, plainly},
	// As the wiki of asynq says, with a bucket that all processes share in the place of a limiter
	// for each.
	{"back at random, 0-10 s", func(b *outbound.Bucket, _ redis.UniversalClient, c asynq.Config, call asynq.HandlerFunc) (asynq.Config, asynq.Handler) {
		c.IsFailure = func(err error) bool { return !errors.Is(err, errFull) }
		c.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
			if errors.Is(err, errFull) {
				return rand.N(10 * time.Second)
			}
			return asynq.DefaultRetryDelayFunc(n, err, t)
		}
		return c, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			if t.Type() != "mail" {
				return call(ctx, t)
			}
			permit, err := b.Acquire(ctx, outbound.Cost{1})
			if err != nil {
				return errFull
			}
			defer permit.Done()
			return call(ctx, t)
		})
	}, plainly},
	{"Scheduler", scheduled, plainly},
	{"Scheduler, booked by Enqueue", scheduled, func(w *world, b *outbound.Bucket, t *asynq.Task) error {
		_, err := pacer(b, w.rdb).Enqueue(w.Context(), w.client, t)
		return err
	}},
}

// measured is what a way came to.
type measured struct {
	runs, makespan, others, busy                          float64 // runs per task, s, s, workers
	undone, failed, archived, reported, refused, mostRuns float64
}

func TestLongWays(t *testing.T) {
	if os.Getenv("DRIPFEED_LONG") != "1" {
		t.Skip("it takes three minutes a round: DRIPFEED_LONG=1")
	}
	all := map[string][]measured{}
	for range *rounds {
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				m := measure(newWorld(t), way)
				t.Logf("%+v", m)
				all[way.name] = append(all[way.name], m)
				if strings.HasPrefix(way.name, "Scheduler") && m.failed+m.archived+m.reported+m.undone > 0 {
					t.Errorf("%+v", m)
				}
			})
		}
	}
	t.Logf("%d tasks at %d/s, %d servers with %d workers, %d other tasks; median of %d", longTasks, longRate, longServers, longWorkers, others, *rounds)
	t.Logf("%-24s %8s %8s %10s %8s %7s %7s %8s %8s %7s", "", "runs", "most", "makespan", "others", "busy", "failed", "reported", "refused", "undone")
	for _, way := range ways {
		if len(all[way.name]) == 0 { // -run has left it out
			continue
		}
		of := func(f func(measured) float64) float64 {
			var xs []float64
			for _, m := range all[way.name] {
				xs = append(xs, f(m))
			}
			slices.Sort(xs)
			return xs[len(xs)/2]
		}
		t.Logf("%-24s %8.2f %8.0f %9.2fx %6.2f s %7.0f %7.0f %8.0f %8.0f %7.0f", way.name,
			of(func(m measured) float64 { return m.runs }), of(func(m measured) float64 { return m.mostRuns }),
			of(func(m measured) float64 { return m.makespan }), of(func(m measured) float64 { return m.others }),
			of(func(m measured) float64 { return m.busy }), of(func(m measured) float64 { return m.failed + m.archived }),
			of(func(m measured) float64 { return m.reported }), of(func(m measured) float64 { return m.refused }),
			of(func(m measured) float64 { return m.undone }))
	}
}

const others = 40

func measure(w *world, way way) (m measured) {
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(longRate, time.Second)}}
	var mu sync.Mutex
	var waits []time.Duration
	ran := map[string]float64{}
	var last time.Time
	var done atomic.Int64
	call := asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		if t.Type() == "other" {
			at, err := strconv.ParseInt(string(t.Payload()), 10, 64)
			mu.Lock()
			defer mu.Unlock()
			waits = append(waits, time.Since(time.Unix(0, at)))
			return err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
		if err != nil {
			return err
		}
		res, err := api.RoundTrip(r)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		mu.Lock()
		defer mu.Unlock()
		last = time.Now()
		done.Add(1)
		return nil
	})
	bucket := func(rdb redis.UniversalClient) *outbound.Bucket {
		return outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), w.queue, outbound.PerSecond(longRate)))
	}
	own := bucket(w.rdb)
	begun := time.Now()
	for i := range longTasks {
		if err := way.enqueue(w, own, asynq.NewTask("mail", []byte(strconv.Itoa(i)), asynq.Queue(w.queue))); err != nil {
			w.Fatal(err)
		}
	}
	for range longServers {
		rdb := redis.NewClient(&redis.Options{Addr: w.addr})
		w.Cleanup(func() { _ = rdb.Close() })
		c := w.config()
		c.Concurrency, c.TaskCheckInterval, c.DelayedTaskCheckInterval = longWorkers, 0, longPoll
		c.ShutdownTimeout = 10 * time.Second
		c, h := way.serve(bucket(rdb), rdb, c, call)
		w.serve(c, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			if t.Type() == "mail" {
				mu.Lock()
				ran[string(t.Payload())]++
				mu.Unlock()
			}
			return h.ProcessTask(ctx, t)
		}))
	}
	samples, sent := 0.0, 0
	for done.Load() < longTasks && time.Since(begun) < longest {
		time.Sleep(250 * time.Millisecond)
		m.busy += float64(w.books().Active)
		if samples++; sent < others && int(samples)%2 == 0 {
			sent++
			if _, err := w.client.Enqueue(asynq.NewTask("other", []byte(fmt.Sprint(time.Now().UnixNano())), asynq.Queue(w.queue))); err != nil {
				w.Fatal(err)
			}
		}
	}
	b := w.books()
	mu.Lock()
	defer mu.Unlock()
	for _, n := range ran {
		m.runs += n / longTasks
		m.mostRuns = max(m.mostRuns, n)
	}
	slices.Sort(waits)
	if len(waits) > 0 {
		m.others = waits[len(waits)*95/100].Seconds()
	}
	m.busy /= samples
	m.makespan = last.Sub(begun).Seconds() / (longTasks / outbound.PerSecond(longRate).LeakRate)
	m.undone = float64(longTasks - done.Load())
	m.failed, m.archived, m.reported = float64(b.FailedTotal), float64(b.Archived), float64(w.reported.Load())
	m.refused = float64(api.Report().Refused)
	return m
}
