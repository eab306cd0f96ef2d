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
	"flag"
	"fmt"
	"log"
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
		err = run(context.Background(), c)
	}
	if err != nil {
		log.Fatal("mysql: ", err)
	}
}

// run makes 15 calls in each of two stores, of a bucket with a capacity of 20.
func run(ctx context.Context, c *mysql.Config) error {
	key := fmt.Sprint("example ", time.Now().UnixNano())
	for range 2 {
		rows, err := open(ctx, c.Clone())
		if err != nil {
			return err
		}
		defer rows.db.Close()
		bucket := outbound.Must(outbound.NewSharedBucket(rowstore.New(rows, rowstore.Config{}), key, outbound.Limit{Capacity: 20, LeakRate: 1e-3}))
		for i := range 15 {
			if _, err := bucket.Acquire(ctx, outbound.Cost{1}); err != nil {
				fmt.Println(i, "calls are admitted, and then:", err)
				break
			}
		}
	}
	return nil
}
