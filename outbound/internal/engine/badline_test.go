package engine_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
)

// badLine is a carrier on a bad line: the line loses requests and replies, repeats
// requests later, and delays both.
type badLine struct {
	engine.Carrier
	lost     float64       // share of the requests that are lost
	noReply  float64       // share of the replies that are lost
	repeated float64       // share of the requests that arrive a second time
	delay    time.Duration // of each way, at most; every tenth way takes up to 100 times as long

	mu   sync.Mutex
	dice *rand.Rand
	wg   sync.WaitGroup // counts the repeated requests that are still on their way
}

// dice returns a source of random numbers. With DRIPFEED_SEED it draws the same numbers
// again.
func dice(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("DRIPFEED_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("to draw the same random numbers again: DRIPFEED_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func (b *badLine) roll(share float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dice.Float64() < share
}

func (b *badLine) way() {
	b.mu.Lock()
	d := time.Duration(b.dice.Float64() * float64(b.delay))
	if b.dice.IntN(10) == 0 {
		d *= 100
	}
	b.mu.Unlock()
	time.Sleep(d)
}

// wait waits until no repeated request is on its way.
func (b *badLine) wait() { b.wg.Wait() }

func (b *badLine) Send(ctx context.Context, todo []engine.Attempt) {
	b.way()
	for i := range todo {
		if b.roll(b.lost) {
			todo[i].Err = errLost
			continue
		}
		b.Carrier.Send(ctx, todo[i:i+1])
		if b.roll(b.repeated) {
			again := []engine.Attempt{{Trip: todo[i].Trip}}
			b.wg.Go(func() {
				b.way()
				b.Carrier.Send(context.Background(), again)
			})
		}
		if b.roll(b.noReply) {
			todo[i].Err = errLost
		}
	}
	b.way()
}
