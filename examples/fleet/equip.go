package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/redis/go-redis/v9"
)

// newBase returns the transport that sends the worker's calls.
func (w *worker) newBase() *http.Transport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = w.Waiters
	base.ResponseHeaderTimeout = 30 * time.Second
	return base
}

// equip gives the worker its client, paced as its mode says.
func (w *worker) equip(base http.RoundTripper) error {
	w.client = &http.Client{
		Transport: base,
		// A redirect would be another call, to an unknown server, that nobody has counted.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if w.Mode == none {
		return nil
	}
	bucket, err := w.bucket()
	if err != nil {
		return err
	}
	w.queue = queue.New(bucket, queue.Config{})
	w.client.Transport = &transport.Transport{Base: base, Limiter: w.queue}
	return nil
}

// bucket returns the worker's own bucket, or the one that it shares.
func (w *worker) bucket() (*outbound.Bucket, error) {
	if w.Mode == share {
		n := float64(w.Workers)
		// A bucket of less than one call never lets one go.
		return outbound.NewBucket(w.Bucket, outbound.Limit{Capacity: max(1, w.Burst/n), LeakRate: w.Rate / n})
	}
	options, err := redis.ParseURL(w.Redis)
	if err != nil {
		return nil, errNoURL
	}
	rdb := redis.NewClient(options)
	w.scripts = new(scripts)
	rdb.AddHook(w.scripts)
	ctx, cancel := context.WithTimeout(context.Background(), redisPatience)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("redis does not answer: %w", err)
	}
	return outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), w.Bucket, outbound.Limit{Capacity: w.Burst, LeakRate: w.Rate})
}

// scripts counts the scripts that a client has sent.
type scripts struct{ atomic.Int64 }

func (s *scripts) count(cmd redis.Cmder) {
	if strings.HasPrefix(cmd.Name(), "eval") {
		s.Add(1)
	}
}

func (s *scripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.count(cmd)
		return next(ctx, cmd)
	}
}

func (s *scripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.count(cmd)
		}
		return next(ctx, cmds)
	}
}
