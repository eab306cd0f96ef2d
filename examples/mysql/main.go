// Command mysql shares a bucket in MySQL or MariaDB between two stores, which stand for two
// processes: together they admit what the limit allows.
//
// # What to look at
//
// rows.go is all that a store in another database takes, and the traps of MySQL.
//
//	go run -C examples/mysql . -dsn 'user:password@tcp(localhost:3306)/database'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
)

func main() {
	dsn := flag.String("dsn", "root@tcp(localhost:3306)/test", "the data source name of the database")
	flag.Parse()
	c, err := mysql.ParseDSN(*dsn)
	if err == nil {
		err = run(os.Stdout, c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mysql:", err)
		os.Exit(1)
	}
}

// run makes 30 calls of a bucket with a capacity of 20, in two stores by turns.
func run(w io.Writer, c *mysql.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	key := fmt.Sprint("example ", time.Now().UnixNano())
	var buckets []*outbound.Bucket
	for range 2 {
		rows, err := open(ctx, c.Clone())
		if err != nil {
			return err
		}
		defer rows.db.Close()
		bucket, err := outbound.NewSharedBucket(rowstore.New(rows, rowstore.Config{}), key, outbound.Limit{Capacity: 20, LeakRate: 1e-3})
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
	_, err := fmt.Fprintf(w, "%d of 30 calls are admitted; the limit is 20\n", admitted)
	return err
}
