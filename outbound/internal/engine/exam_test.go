package engine_test

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

func TestTheExam(t *testing.T) {
	t.Parallel() // it waits most of the time
	s := newShelf()
	outboundtest.TestStore(t, func(*testing.T) leak.Store { return s.worker(engine.Config{}) })
}

func TestTheExamOverABadLine(t *testing.T) {
	t.Parallel() // it waits most of the time
	s := newShelf()
	outboundtest.TestStore(t, func(t *testing.T) leak.Store {
		// The line loses no reply. A repeated reply tells the state of a moment ago, and the
		// exam wants the state of now.
		line := &badLine{Carrier: &porter{s}, dice: dice(t), lost: 0.1, repeated: 0.2, delay: time.Millisecond / 10}
		t.Cleanup(line.wait)
		return s.worker(engine.Config{Carrier: line})
	})
}

func TestTheExamOfAGoodStoreOnRows(t *testing.T) {
	t.Parallel() // it waits most of the time
	s := newTable()
	outboundtest.TestStore(t, func(*testing.T) leak.Store { return newRowStore(s, time.Minute) })
}
