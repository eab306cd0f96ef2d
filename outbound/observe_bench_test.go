package outbound

import (
	"context"
	"errors"
	"testing"
)

// What an empty function costs that is told of each call, beside the same call without one, with Done:
//
//	go test -run - -bench Observe -count 5 ./outbound
func BenchmarkObserve(b *testing.B) {
	bucket := Must(NewBucket("bench", Limit{Capacity: 1e9, LeakRate: 1e9}))
	for _, l := range []struct {
		name string
		Limiter
	}{{"bare", bucket}, {"observed", Observe(bucket, "bench", func(context.Context, Event) {})}} {
		b.Run(l.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p, err := l.Acquire(ctx, Cost{1})
				if err != nil {
					b.Fatal(err)
				}
				p.Done()
			}
		})
	}
}

// What a bucket decides at one moment is told with that moment, so that nobody reads the clock once more for it.
func TestObserve_ImmediateDecisionWaitsZero(t *testing.T) {
	var events []Event
	b := Must(NewBucket("b", Limit{Capacity: 1, LeakRate: 1e-3}))
	l := Observe(b, "api", func(_ context.Context, e Event) { events = append(events, e) })
	before := now()
	p := mustAcquire(t, l)
	if _, err := l.Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
		t.Fatal(err)
	}
	p.Done()
	end := now()
	if len(events) != 3 || events[0].Kind != EventAdmitted || events[1].Kind != EventRefused || events[2].Kind != EventEnded {
		t.Fatalf("%+v", events)
	}
	if events[0].Wait != 0 || events[1].Wait != 0 {
		t.Errorf("waited %v and %v", events[0].Wait, events[1].Wait)
	}
	if took := events[2].Took; took <= 0 || took > end-before {
		t.Errorf("took %v, of %v", took, end-before)
	}
}
