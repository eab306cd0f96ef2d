package main

import (
	"encoding/json"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// Workers that keep to their own parts of a limit and begin at one instant call in step: one
// of ten has room, and nine are refused and held.
func TestWorkersThatShareNoBucketStartApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := params{Workers: 10, Waiters: 2, Rate: 50, Burst: 1}
		api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(p.apiCapacity(), p.Rate)}}
		const lasts = 10 * time.Second
		var all sync.WaitGroup
		for i := range p.Workers {
			w := &worker{stopped: make(chan struct{}), order: order{
				Mode: share, Index: i, Workers: p.Workers, Waiters: p.Waiters, Rate: p.Rate, Burst: p.Burst,
				API: "http://api.example.com/", Bucket: workerName(i),
			}}
			if err := w.equip(api); err != nil {
				t.Fatal(err)
			}
			told := make(chan bool, 1)
			time.AfterFunc(lasts, func() { told <- true })
			all.Go(func() {
				if status := w.serve(json.NewEncoder(io.Discard), told); status != 0 {
					t.Errorf("%s ends with status %d", workerName(i), status)
				}
			})
		}
		all.Wait()
		r := api.Report()
		if used := float64(r.Admitted) / (p.Burst + p.Rate*lasts.Seconds()); used < 0.95 || r.Refused > 0 {
			t.Errorf("%.3f of the quota used, %d refused", used, r.Refused)
		}
	})
}
