package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
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
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

const (
	longTasks   = 500
	longRate    = 20
	longServers = 3
	longWorkers = 50 // of each server
	longPoll    = time.Second
	longest     = 100 * time.Second // then the rest counts as not done
)

// way returns a server's config and handler, which makes a call if the way admits it.
type way func(b *outbound.Bucket, rdb redis.UniversalClient, c asynq.Config, call asynq.HandlerFunc) (asynq.Config, asynq.Handler)

// do has a limiter admit each call.
func do(l outbound.Limiter, call asynq.HandlerFunc) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		return outbound.Do(ctx, l, outbound.Cost{1}, func(ctx context.Context) error { return call(ctx, t) })
	})
}

func waitInWorker(b *outbound.Bucket, _ redis.UniversalClient, c asynq.Config, call asynq.HandlerFunc) (asynq.Config, asynq.Handler) {
	return c, do(queue.New(b, queue.Config{}), call)
}

// backAtRandom is what the wiki of asynq says, with a bucket that all processes share.
func backAtRandom(b *outbound.Bucket, _ redis.UniversalClient, c asynq.Config, call asynq.HandlerFunc) (asynq.Config, asynq.Handler) {
	c.IsFailure = func(err error) bool { return !errors.Is(err, outbound.ErrThrottled) }
	c.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if errors.Is(err, outbound.ErrThrottled) {
			return rand.N(10 * time.Second)
		}
		return asynq.DefaultRetryDelayFunc(n, err, t)
	}
	return c, do(b, call)
}

func scheduled(b *outbound.Bucket, rdb redis.UniversalClient, c asynq.Config, call asynq.HandlerFunc) (asynq.Config, asynq.Handler) {
	p := New(rdb, only(jobs.New(b, jobs.Config{PollInterval: longPoll})))
	return p.Config(c), p.Middleware(call)
}

// TestMeasure makes the README's table.
func TestMeasure(t *testing.T) {
	of := func(way way, booked bool) func(*testing.T) []float64 {
		return func(t *testing.T) []float64 { return measure(newWorld(t), way, booked) }
	}
	jobtest.Measure(t, 5, "runs of a task | makespan / ideal | other tasks wait, p95, s | workers taken | ErrorHandler called | refused | undone", []jobtest.Way{
		{Name: "wait in the worker", Measure: of(waitInWorker, false)},
		{Name: "asynq's wiki: back at random, in 0-10 s", Measure: of(backAtRandom, false)},
		{Name: "Pacer", Measure: of(scheduled, false)},
		{Name: "Pacer, Enqueue", Measure: of(scheduled, true)},
	})
}

const others = 40

func measure(w *world, way way, booked bool) []float64 {
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(longRate, time.Second)}}
	var mu sync.Mutex
	var waits []time.Duration
	var last time.Time
	var done, runs atomic.Int64
	call := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if err := jobtest.Get(ctx, &http.Client{Transport: api}, "http://api.example.com/"); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		last = time.Now()
		done.Add(1)
		return nil
	})
	bucket := func(rdb redis.UniversalClient) *outbound.Bucket {
		return schedulerOf(rdb, w.queue, longRate, jobs.Config{}).Bucket()
	}
	p := w.pacer(nil)
	if booked {
		p = New(w.rdb, only(jobs.New(bucket(w.rdb), jobs.Config{PollInterval: longPoll})))
	}
	begun := time.Now()
	for range longTasks {
		jobtest.Must(p.Enqueue(w.Context(), w.client, asynq.NewTask("mail", nil, asynq.Queue(w.queue))))
	}
	for range longServers {
		rdb := redis.NewClient(&redis.Options{Addr: w.addr})
		w.Cleanup(func() { _ = rdb.Close() })
		c := w.config()
		c.Concurrency, c.TaskCheckInterval, c.DelayedTaskCheckInterval = longWorkers, 0, longPoll
		c.RetryDelayFunc, c.ShutdownTimeout = nil, 10*time.Second
		c, h := way(bucket(rdb), rdb, c, call)
		mux := asynq.NewServeMux()
		mux.HandleFunc("mail", func(ctx context.Context, t *asynq.Task) error { runs.Add(1); return h.ProcessTask(ctx, t) })
		mux.HandleFunc("other", func(_ context.Context, t *asynq.Task) error {
			at, err := strconv.ParseInt(string(t.Payload()), 10, 64)
			mu.Lock()
			defer mu.Unlock()
			waits = append(waits, time.Since(time.Unix(0, at)))
			return err
		})
		w.serve(c, mux)
	}
	samples, sent, busy := 0, 0, 0.0
	for done.Load() < longTasks && time.Since(begun) < longest {
		time.Sleep(250 * time.Millisecond)
		busy += float64(w.stats().Active)
		if samples++; sent < others && samples%2 == 0 {
			sent++
			w.enqueueTask(asynq.NewTask("other", fmt.Append(nil, time.Now().UnixNano())))
		}
	}
	undone := longTasks - done.Load()
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(waits)
	p95 := 0.0
	if len(waits) > 0 {
		p95 = waits[len(waits)*95/100].Seconds()
	}
	if strings.HasPrefix(w.Name(), "TestMeasure/Pacer") && (undone > 0 || w.reported.Load() > 0) {
		w.Errorf("%d of the Pacer's tasks are undone, %d reported", undone, w.reported.Load())
	}
	return []float64{float64(runs.Load()) / longTasks, last.Sub(begun).Seconds() * longRate / longTasks, p95, busy / float64(samples),
		float64(w.reported.Load()), float64(api.Report().Refused), float64(undone)}
}
