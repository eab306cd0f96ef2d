// Package prom brings the metrics of a [watch.Board] into a registry of Prometheus's client:
//
//	var board watch.Board
//	prometheus.MustRegister(prom.NewCollector(&board))
//
// They are those of [watch.Board.Metrics], which needs no registry.
package prom

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

type collector struct {
	board *watch.Board
	descs map[*watch.Metric]*prometheus.Desc
}

// NewCollector returns a Collector of all metrics of a Board, with the limiters and stores that are
// added later. A collection takes as long as [watch.Board.Collect].
func NewCollector(b *watch.Board) prometheus.Collector {
	c := collector{b, make(map[*watch.Metric]*prometheus.Desc)}
	for _, m := range watch.AllMetrics() {
		name, labels := m.Prometheus()
		c.descs[m] = prometheus.NewDesc(name, m.Help, labels, nil)
	}
	return c
}

// Describe implements [prometheus.Collector].
func (c collector) Describe(all chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		all <- d
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(all chan<- prometheus.Metric) {
	c.board.Collect(context.Background(), func(s watch.Sample) {
		desc := c.descs[s.Metric]
		switch s.Kind {
		case watch.Counter:
			all <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, s.Value, s.Values...)
		case watch.Gauge:
			all <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, s.Value, s.Values...)
		case watch.Histogram:
			within, n := make(map[float64]uint64), uint64(0)
			for i, bound := range store.TimeBounds {
				n += s.Times.Within[i]
				within[bound.Seconds()] = n
			}
			all <- prometheus.MustNewConstHistogram(desc, s.Times.Count, s.Value, within, s.Values...)
		}
	})
}
