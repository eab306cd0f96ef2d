package queue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// A worker that gets the signal to end takes no more jobs. For ten seconds it goes on with
// the jobs that it has. Then it puts the rest back.
func Example_drain() {
	stopped, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The jobs' own context outlives the signal, by ten seconds at most.
	working, end := context.WithCancel(context.WithoutCancel(stopped))
	defer end()
	context.AfterFunc(stopped, func() { time.AfterFunc(10*time.Second, end) })

	q := queue.New(outbound.Must(outbound.NewBucket("mail", outbound.PerSecond(100))), queue.Config{})
	jobs := make(chan int, 3)
	for id := range 3 {
		jobs <- id
	}
	send := func(_ context.Context, id int) error {
		if id == 2 {
			stop() // the signal comes; the channel is still open
		}
		return nil
	}
	for id, err := range outbound.Each(working, q, outbound.Cost{1}, 1, outbound.Receive(stopped, jobs), send) {
		if err != nil {
			fmt.Println("job", id, "goes back:", err)
			continue
		}
		fmt.Println("job", id, "is done")
	}
	fmt.Println("no job is left")
	// Output:
	// job 0 is done
	// job 1 is done
	// job 2 is done
	// no job is left
}

// A server has stopped listening. For ten seconds the calls of its handlers may go. Then
// those that still wait fail, and the program ends.
func ExampleQueue_Shutdown_timeout() {
	const grace = 10 * time.Millisecond // in a program 10 * time.Second
	q := queue.New(outbound.Must(outbound.NewBucket("reports", outbound.PerHour(1))), queue.Config{})
	report := func() {
		permit, err := q.Acquire(context.Background(), outbound.Cost{1})
		if err != nil {
			fmt.Println("not sent, because the queue is closed:", errors.Is(err, queue.ErrClosed))
			return
		}
		defer permit.Done()
		fmt.Println("sent")
	}
	report()
	var handlers sync.WaitGroup
	handlers.Go(report)

	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := q.Shutdown(ctx); err != nil {
		_ = q.Close() // it never fails
	}
	handlers.Wait()
	// Output:
	// sent
	// not sent, because the queue is closed: true
}
