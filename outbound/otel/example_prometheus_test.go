package otel_test

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

// collector is a prometheus.Collector of a Board's numbers, for a program that has a registry. It needs nothing of
// OpenTelemetry. A program without a registry serves Board.Metrics.
type collector struct {
	board *watch.Board
	waits *prometheus.HistogramVec
}

var (
	calls    = prometheus.NewDesc("dripfeed_calls_total", "Calls that asked for room, by what became of them.", []string{"limiter", "result"}, nil)
	waiting  = prometheus.NewDesc("dripfeed_calls_waiting", "Calls in the queue.", []string{"limiter"}, nil)
	refusals = prometheus.NewDesc("dripfeed_refusals_total", "Calls that the API has refused, by its reason.", []string{"limiter", "reason"}, nil)
	level    = prometheus.NewDesc("dripfeed_limit_level", "Units in the bucket, those included that are booked.", []string{"limiter", "limit"}, nil)
	capacity = prometheus.NewDesc("dripfeed_limit_capacity", "Units that the bucket holds.", []string{"limiter", "limit"}, nil)
	hold     = prometheus.NewDesc("dripfeed_hold_remaining_seconds", "For how long no call goes.", []string{"limiter"}, nil)
)

func newCollector(b *watch.Board) *collector {
	c := &collector{b, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "dripfeed_call_wait_time_seconds", Help: "How long calls waited that were admitted.",
		Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 1800, 3600},
	}, []string{"limiter"})}
	b.OnCall(func(_ context.Context, call watch.Call) {
		if call.Err == nil {
			c.waits.WithLabelValues(call.Name).Observe(call.Wait.Seconds())
		}
	})
	return c
}

func (c *collector) Describe(all chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{calls, waiting, refusals, level, capacity, hold} {
		all <- d
	}
	c.waits.Describe(all)
}

func (c *collector) Collect(all chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		all <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	for _, l := range c.board.Snapshot(context.Background(), watch.Query{Rows: 1000, Names: true}).Limiters {
		put(calls, prometheus.CounterValue, float64(l.Calls.Admitted), l.Name, "admitted")
		put(calls, prometheus.CounterValue, float64(l.Calls.Refused), l.Name, "refused")
		put(calls, prometheus.CounterValue, float64(l.Calls.Failed), l.Name, "failed")
		put(calls, prometheus.CounterValue, float64(l.Calls.Cancelled), l.Name, "cancelled")
		put(waiting, prometheus.GaugeValue, float64(l.Waiting), l.Name)
		put(hold, prometheus.GaugeValue, l.HeldFor.Seconds(), l.Name)
		for why, n := range l.Refusals {
			put(refusals, prometheus.CounterValue, float64(n), l.Name, why)
		}
		for _, x := range l.Limits {
			put(level, prometheus.GaugeValue, x.Level, l.Name, x.Name)
			put(capacity, prometheus.GaugeValue, x.Capacity, l.Name, x.Name)
		}
	}
	c.waits.Collect(all)
}

func Example_prometheus() {
	registry := prometheus.NewRegistry() // prometheus.DefaultRegisterer in most programs
	var board watch.Board
	registry.MustRegister(newCollector(&board))

	bucket := outbound.Must(outbound.NewBucket("weather", outbound.Window(1, time.Hour)))
	limiter := board.Add("weather", bucket)
	for range 3 {
		if permit, err := limiter.Acquire(context.Background(), outbound.Cost{1}); err == nil {
			permit.Done()
		}
	}
	families, err := registry.Gather() // promhttp.HandlerFor serves it
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		if f.GetName() != "dripfeed_calls_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			fmt.Println(m.GetLabel()[1].GetValue(), m.GetCounter().GetValue())
		}
	}
	// Output:
	// admitted 1
	// cancelled 0
	// failed 0
	// refused 2
}
