//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// promise is what a limit says of calls: in any interval there are at most so many units, and
// rate more for each second of its length. A window says it of half-open intervals of its own
// length, and nothing of longer ones; its rate is 0.
type promise struct {
	units, rate float64
	window      time.Duration // 0: the limit is leaky
}

// promiseOf returns the promise of a limit, as the limit itself writes it.
func promiseOf(t *testing.T, l outbound.Limit) promise {
	t.Helper()
	if _, window, ok := strings.Cut(l.String(), " in any "); ok {
		d, err := time.ParseDuration(window)
		require.NoError(t, err)
		return promise{units: l.Capacity, window: d}
	}
	require.Positive(t, l.LeakRate, "%v: only a leaky limit and a window promise something of any interval", l)
	return promise{units: l.Capacity, rate: l.LeakRate}
}

func (p promise) String() string {
	if p.window > 0 {
		return fmt.Sprintf("%v in any %v", p.units, p.window)
	}
	return fmt.Sprintf("%v + %v/s", p.units, p.rate)
}

// kept is what the reservations of a limit keep. Those of a window keep 10 ms more than it
// promises, so that the network may move arrivals closer together. The server counts in
// microseconds.
func (p promise) kept() promise {
	if p.window > 0 {
		p.window += 10*time.Millisecond - time.Microsecond
	}
	return p
}

// most returns how many units may go between two moments, both included. Of a window they are
// nearer to each other than its length.
func (p promise) most(apart time.Duration) float64 { return p.units + p.rate*apart.Seconds() }

// check returns an error if a history breaks the promise by more than slack units.
func (p promise) check(h *outboundtest.History, slack float64) error {
	if p.window > 0 {
		return h.CheckWindow(p.units+slack, p.window)
	}
	return h.Check(p.units, p.rate, slack)
}

// excess returns by how many units a history breaks the promise at worst.
func (p promise) excess(h *outboundtest.History) float64 {
	var e *outboundtest.Excess
	if errors.As(p.check(h, 0), &e) {
		return e.Over
	}
	return 0
}

// cost is how many units a fault may cost at most, beyond what a limit promises.
type cost func(promise) float64

func nothing(promise) float64 { return 0 }

// A worker uses a reply for up to 25 ms. It books up to 100 ms ahead, and a round trip or
// two more.
const (
	replyUse = 25 * time.Millisecond
	ahead    = 150 * time.Millisecond
)

// emptied is the cost of a bucket that is found empty. Of a leaky limit it is one more capacity,
// and the reservations that workers use before they know of it. Each life of the bucket keeps a
// window by itself, and so do those reservations: in an interval that meets two lives at most twice
// the window's units go.
func emptied(p promise) float64 { return p.units + p.rate*replyUse.Seconds() }

// forgotten is the highest cost of forgetting the last charges: of a leaky limit they are at most
// a full bucket, and the bookings ahead of it. The calls of the server that is lost keep a window,
// and so do those that the new one knows: together they are at most twice the window's units.
func forgotten(p promise) float64 { return p.units + p.rate*ahead.Seconds() }

// leaked is what leaks in a time. A window has no rate: this costs it nothing.
func leaked(d time.Duration) cost { return func(p promise) float64 { return p.rate * d.Seconds() } }
