package queue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// loud is a limiter that reports before a call waits for long, and why.
type loud struct{ queue *queue.Queue }

func (l loud) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	if e, err := l.queue.Explain(ctx, c); err == nil && e.Wait > 10*time.Second {
		fmt.Println(e)
	}
	return l.queue.Acquire(ctx, c)
}

// An event comes after the wait. Explain reports before it.
func ExampleQueue_Explain() {
	ctx := context.Background()
	bucket := outbound.Must(outbound.NewBucket("shop", outbound.Limit{Capacity: 40, LeakRate: 2}))
	limiter := loud{queue.New(bucket, queue.Config{MaxWait: time.Minute})}

	if err := bucket.Hold(ctx, 90*time.Second); err != nil {
		fmt.Println(err)
	}
	_, err := limiter.Acquire(ctx, outbound.Cost{1})
	fmt.Println(errors.Is(err, outbound.ErrThrottled))
	// Output:
	// "shop": would wait 1m30s for the hold to end
	//   held for 1m30s
	//   limit "40 burst, 2/s": level 39 of 40, capacity for 1 now
	// true
}

// README.md shows what a queue explains while its bucket is held.
func TestReadme_ShowsWhatAQueueExplains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		bucket := outbound.Must(outbound.NewBucket("github", outbound.PerSecond(10), outbound.Window(5000, time.Hour)))
		q := queue.New(bucket, queue.Config{})
		for i := range 1200 {
			p, err := q.Acquire(ctx, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			if i == 1199 {
				p.Answered(outbound.Answer{Kind: outbound.AnswerRemaining, Wait: 90 * time.Second}) // nothing remains until the reset
			}
			p.Done()
		}
		for range 3 {
			go func() { _, _ = q.Acquire(ctx, outbound.Cost{1}) }()
		}
		synctest.Wait()
		e, err := q.Explain(ctx, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		readme, err := os.ReadFile("../README.md")
		if err != nil {
			t.Fatal(err)
		}
		block := "    " + strings.ReplaceAll(e.String(), "\n", "\n    ") + "\n"
		if !strings.Contains(string(readme), block) {
			t.Errorf("README.md does not show\n%s", block)
		}
		cancel()
		synctest.Wait()
	})
}
