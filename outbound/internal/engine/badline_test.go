package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
)

// badLine is a carrier that loses what it sends or what comes back, repeats it later, and
// delays all.
type badLine struct {
	engine.Carrier
	lost     float64       // share of the requests that are lost
	unheard  float64       // share of the replies that are
	repeated float64       // share of the requests that arrive a second time
	delay    time.Duration // of each way, at most; a tenth of all take 100 times as long

	mu   sync.Mutex
	dice *rand.Rand
	wg   sync.WaitGroup // of what is still on its way
}

var errLost = errors.New("lost on the way")

// dice returns random numbers, which DRIPFEED_SEED repeats.
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

// wait waits until nothing is on its way.
func (b *badLine) wait() { b.wg.Wait() }

func (b *badLine) Send(ctx context.Context, to engine.Node, todo []engine.Attempt) {
	b.way()
	for i := range todo {
		if b.roll(b.lost) {
			todo[i].Err = errLost
			continue
		}
		b.Carrier.Send(ctx, to, todo[i:i+1])
		if b.roll(b.repeated) {
			again := []engine.Attempt{{Trip: todo[i].Trip}}
			b.wg.Go(func() {
				b.way()
				b.Carrier.Send(context.Background(), to, again)
			})
		}
		if b.roll(b.unheard) {
			todo[i].Err = errLost
		}
	}
	b.way()
}
