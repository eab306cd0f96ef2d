// Command fleet runs worker processes that call one API as fast as its limit allows, in three ways,
// and shows how much of the API's quota each way uses:
//
//	go run ./examples/fleet
//
// In the first way (none) calls are unpaced: a worker calls, and retries later what the API has
// refused. In the second (share) each worker keeps to its own part of the limit, in memory. What
// one worker leaves unused is lost. The workers start at different times, because the API would
// refuse most calls of workers in step. In the third (shared) all keep to one limit, whose bucket
// is in Redis, and wait in a queue. Look at the last row of the table: no call is refused, the
// quota is used, and all workers get the same.
//
// The workers are processes of this program: see the package internal/workers. The program serves
// the API, and Redis as well: by a redis-server if one is installed, otherwise by a miniredis. With
// -redis the server is yours. -kill kills workers in the middle of their work.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/examples/internal/workers"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

const shows = "Worker processes call one API, in three ways."

var example = cli.Example{Name: "fleet", New: program, Usage: shows + `

	go run ./examples/fleet [flags]

  none    nothing paces the calls; what is refused is tried
          again, after its Retry-After and a random pause
  share   each worker keeps to 1/N of the limit, in memory
  shared  all keep to one limit: a bucket in Redis, a queue

` + workers.APILimit}

func main() {
	workers.Work(bucket)
	example.Main()
}

// bucket returns a worker's bucket. Its calls wait in a queue around it.
func bucket(o *workers.Order, c *workers.Counter) (*outbound.Bucket, error) {
	switch o.Way {
	case "none":
		return nil, nil
	case "share":
		n := float64(o.Workers)
		// A bucket of less than one call never admits one.
		return outbound.NewBucket(o.Bucket, outbound.Limit{Capacity: max(1, o.Burst/n), LeakRate: o.Rate / n})
	}
	options, err := redis.ParseURL(o.Store)
	if err != nil {
		return nil, errNoURL
	}
	rdb := redis.NewClient(options)
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		return nil, err
	}
	c.Store = redisstore.New(rdb, redisstore.Config{})
	return outbound.NewSharedBucket(c, o.Bucket, o.Limit())
}

func program(flags *flag.FlagSet) cli.Run {
	var f workers.Fleet
	f.Flags(flags)
	mode := flags.String("mode", "", "try only this `way`: none, share or shared")
	url := flags.String("redis", "", "use the server at this `URL`, redis://localhost:6379\nor so; else one is started, or a miniredis")
	return func(ctx context.Context, out io.Writer) error {
		ways := []string{"none", "share", "shared"}
		if *mode != "" {
			if !slices.Contains(ways, *mode) {
				return cli.Wrong("-mode needs none, share or shared, not %q", *mode)
			}
			ways = []string{*mode}
		}
		var s server
		if slices.Contains(ways, "shared") {
			var err error
			if s, err = newServer(ctx, *url); err != nil {
				return err
			}
			defer s.end()
		}
		fmt.Fprintf(out, "%s\n%s\nlimit: %v\nRedis: %s\n\n", shows, &f, f.Limit(), cmp.Or(s.what, "not needed"))
		_, err := f.TryAll(ctx, out, workers.Order{Store: s.url}, ways...)
		return err
	}
}
