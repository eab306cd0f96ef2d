package outbound

import (
	"context"
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
