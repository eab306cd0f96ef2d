package queue

import (
	"slices"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// How long the queue holds its lock, at most and in all, while 100 000 calls with deadlines wait: it checks all of them
// after a change, and it foretells the line anew for newcomers.
//
//	go test -run - -bench Foretell ./queue
func BenchmarkForetell(b *testing.B) {
	for name, limits := range map[string][]outbound.Limit{
		"leaky": {outbound.PerSecond(1000)}, "window": {outbound.Window(1e5, time.Minute)}, "both": {outbound.PerSecond(1000), outbound.Window(3e6, time.Hour)},
	} {
		for where, store := range map[string]leak.Store{"memory": nil, "store": leak.NewMemory()} {
			paced := outbound.Must(outbound.NewBucket("k", limits...))
			if store != nil {
				paced = outbound.Must(outbound.NewSharedBucket(store, "k", limits...))
			}
			q := New(paced, Config{})
			if err := paced.Hold(b.Context(), time.Minute); err != nil {
				b.Fatal(err)
			}
			k := outbound.Booking{Costs: []outbound.Cost{{1}, {1}}, Wait: time.Hour, Horizon: time.Hour}
			if err := paced.Book(b.Context(), &k); err != nil {
				b.Fatal(err)
			}
			q.clock = k.Clock
			for range crowd {
				q.line.add(&waiter{cost: outbound.Cost{1}, deadline: time.Now().Add(time.Hour)})
			}
			for _, t := range k.Tickets {
				q.line.book(t)
			}
			b.Run(name+"/"+where+"/check", func(b *testing.B) {
				measure(b, func(held func()) {
					for c := q.newCheck(true); c.next != nil; held() {
						if all := q.hopeless(c, piece, time.Now()); len(all) > 0 {
							b.Fatal(all[0].err)
						}
					}
				})
			})
			b.Run(name+"/"+where+"/newcomers", func(b *testing.B) {
				measure(b, func(held func()) {
					q.ahead, q.uncounted, q.credit = nil, nil, crowd
					for q.look() != q.ahead {
						held()
					}
					held()
				})
			})
		}
	}
}

// measure reports how long the queue's lock is held for a piece, by the median and the longest, and for the whole line.
// work calls held after each piece. On a busy machine the longest is the scheduler's.
func measure(b *testing.B, work func(held func())) {
	var pieces []time.Duration
	for b.Loop() {
		begin := time.Now()
		work(func() {
			now := time.Now()
			pieces = append(pieces, now.Sub(begin))
			begin = now
		})
	}
	slices.Sort(pieces)
	b.ReportMetric(pieces[len(pieces)/2].Seconds()*1000, "ms/piece")
	b.ReportMetric(pieces[len(pieces)-1].Seconds()*1000, "ms/longest")
	b.ReportMetric(b.Elapsed().Seconds()*1000/float64(b.N), "ms/line")
	b.ReportMetric(0, "ns/op")
}
