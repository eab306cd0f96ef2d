package queue_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// Users before batch in two processes: batch work in one process leaves a fifth of the limit to
// the users of another one. The store would be Redis or PostgreSQL.
func Example_usersBeforeBatch() {
	common := store.NewMemory()
	process := func(c queue.Config) *queue.Queue {
		return queue.New(outbound.Must(outbound.NewSharedBucket(common, "crm", outbound.Window(100, time.Minute))), c)
	}
	batch := process(queue.Config{Headroom: 0.2})
	users := process(queue.Config{MaxWait: time.Second})

	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	var left sync.Map
	for i := range 500 { // far more than the limit admits
		all.Go(func() {
			if permit, err := batch.Acquire(ctx, outbound.Cost{1}); err == nil {
				permit.Done()
				left.Store(i, true)
			}
		})
	}
	all.Wait()
	n := 0
	left.Range(func(_, _ any) bool { n++; return true })
	fmt.Println("batch work:", n)

	served := 0
	for range 20 {
		if permit, err := users.Acquire(context.Background(), outbound.Cost{1}); err == nil {
			permit.Done()
			served++
		}
	}
	fmt.Println("users:", served)
	// Output:
	// batch work: 80
	// users: 20
}
