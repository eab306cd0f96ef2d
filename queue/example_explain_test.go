package queue_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// README.md shows what a queue explains while its bucket is held.
func TestReadmeShowsWhatAQueueExplains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		bucket := outbound.Must(outbound.NewBucket("github", outbound.PerSecond(10), outbound.Window(5000, time.Hour)))
		q := queue.New(bucket, queue.Config{})
		for i := range 1200 {
			p, err := q.Acquire(ctx, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			if p.Done(); i == 1199 {
				p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: 90 * time.Second, Reason: outbound.ReasonRate})
			}
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
