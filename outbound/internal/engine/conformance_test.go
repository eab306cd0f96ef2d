package engine_test

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestConformance_OverABadLine(t *testing.T) {
	t.Parallel() // it waits most of the time
	s := newShelf()
	outboundtest.TestStore(t, func(t *testing.T) store.Store {
		// The line loses no reply: a repeated reply has the state of a moment ago, and the test
		// wants the state of now.
		line := &badLine{Carrier: &porter{s}, dice: dice(t), lost: 0.1, repeated: 0.2, delay: time.Millisecond / 10}
		t.Cleanup(line.wait)
		return s.worker(engine.Config{Carrier: line})
	})
}
