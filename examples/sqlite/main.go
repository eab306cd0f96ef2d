// Command sqlite makes calls at the pace of a bucket that is in a SQLite file:
//
//	go run -C examples/sqlite . -n 5
//
// Run it twice at a time, or twice in a row: the runs share the limit, and the bucket outlives each
// of them. rows.go is all that it takes to keep buckets in another database.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/queue"
)

func main() {
	file := flag.String("file", filepath.Join(os.TempDir(), "dripfeed.db"), "the `file` of the buckets")
	n := flag.Int("n", 5, "calls")
	flag.Parse()
	if err := run(*file, *n); err != nil {
		fmt.Fprintln(os.Stderr, "sqlite:", err)
		os.Exit(1)
	}
}

// run makes n calls, two a second over all runs.
func run(file string, n int) error {
	rows, err := open(file)
	if err != nil {
		return err
	}
	defer rows.db.Close()
	bucket, err := outbound.NewSharedBucket(rowstore.New(rows, rowstore.Config{}), "weather", outbound.PerSecond(2))
	if err != nil {
		return err
	}
	calls := queue.New(bucket, queue.Config{MaxWait: time.Minute})
	for i := range n {
		err := outbound.Do(context.Background(), calls, outbound.Cost{1}, func(context.Context) error {
			fmt.Printf("call %d at %s\n", i+1, time.Now().Format("05.00"))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
