// Command rueidis shares a bucket in Redis or Valkey by the client rueidis. Two stores stand for
// two processes: together they admit what the limit allows.
//
// # What to look at
//
// client.go makes the client of a store from rueidis, in 20 lines. valkey-go has the same methods.
//
//	go run -C examples/rueidis . -redis localhost:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

func main() {
	addr := flag.String("redis", "localhost:6379", "the address of the server")
	flag.Parse()
	if err := run(os.Stdout, rueidis.ClientOption{InitAddress: []string{*addr}}); err != nil {
		fmt.Fprintln(os.Stderr, "rueidis:", err)
		os.Exit(1)
	}
}

// run makes 30 calls of a bucket with a capacity of 20, in two stores by turns.
func run(w io.Writer, server rueidis.ClientOption) error {
	client, err := rueidis.NewClient(server)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	key := fmt.Sprint("example ", time.Now().UnixNano())
	var buckets []*outbound.Bucket
	for range 2 {
		store := redisstore.New(by(client), redisstore.Config{})
		bucket, err := outbound.NewSharedBucket(store, key, outbound.Limit{Capacity: 20, LeakRate: 1e-3})
		if err != nil {
			return err
		}
		buckets = append(buckets, bucket)
	}
	admitted := 0
	for i := range 30 {
		switch _, err := buckets[i%2].Acquire(ctx, outbound.Cost{1}); {
		case err == nil:
			admitted++
		case !errors.Is(err, outbound.ErrThrottled):
			return err
		}
	}
	_, err = fmt.Fprintf(w, "%d of 30 calls are admitted; the limit is 20\n", admitted)
	return err
}
