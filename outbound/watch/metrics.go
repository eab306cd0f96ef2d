package watch

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dripfeed/dripfeed/outbound/ledger"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// Metric is one of the metrics that each [Board] has.
type Metric struct {
	Name   string // as OpenTelemetry has it: "dripfeed.calls"
	Kind   string
	Unit   string // as OpenTelemetry has it, or empty where it would spoil Prometheus's name
	Help   string
	Labels []string // "limiter", "error.type", ...
}

// The kinds of metrics.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
)

// Prometheus returns the name of the metric and of its labels as Prometheus has them, and as the
// exporters of OpenTelemetry make them: "dripfeed_calls_total".
func (m *Metric) Prometheus() (name string, labels []string) {
	name = strings.ReplaceAll(m.Name, ".", "_")
	switch m.Unit {
	case "s":
		name += "_seconds"
	case "1":
		name += "_ratio"
	}
	if m.Kind == Counter {
		name += "_total"
	}
	for _, l := range m.Labels {
		labels = append(labels, strings.ReplaceAll(l, ".", "_"))
	}
	return name, labels
}

// Sample is one number of a [Metric], or one histogram.
type Sample struct {
	*Metric
	// Values are those of the Metric's Labels: valid UTF-8, and 210 bytes at most. They are valid
	// until the function that got the Sample returns.
	Values []string
	Value  float64      // finite
	Times  *store.Times // of a [Histogram], which is in seconds
}

// family is a Metric with where its numbers come from: each limiter, each store, or each row of a
// ledger.
type family struct {
	Metric
	limiter func(*Limiter, *samples)
	store   func(*Store, *samples)
	row     func(*ledger.Row) float64
}

// families are all metrics, in the order of the text.
var families = []family{
	limiterMetric(Counter, "calls", "{call}", "Calls, by what became of them.", func(l *Limiter, s *samples) {
		s.put(float64(l.Calls.Admitted), "admitted", "")
		s.put(float64(l.Calls.Refused), "refused", "")
		s.put(float64(l.Calls.Cancelled), "cancelled", "")
		for why, n := range l.Calls.ByError {
			s.put(float64(n), "failed", why)
		}
		if l.Calls.ByError["store"] == 0 { // so that an alert sees the first one
			s.put(0, "failed", "store")
		}
	}, "result", "error.type"),
	limiterMetric(Counter, "calls.over_limit", "{call}", "Calls that were refused, by the limit that had no capacity.",
		each(func(l *Limiter) map[string]uint64 { return l.Calls.ByLimit }), "limit"),
	limiterMetric(Histogram, "call.wait_time", "s", "How long calls waited that were admitted.", func(l *Limiter, s *samples) { s.times(&l.Calls.Waits) }),
	queueMetric(Gauge, "calls.waiting", "{call}", "Calls in the queue.", func(q *queue.Stats) float64 { return float64(q.Waiting) }),
	queueMetric(Gauge, "calls.oldest_wait", "s", "How long the first call in the queue has waited.", func(q *queue.Stats) float64 { return q.Oldest.Seconds() }),
	limiterMetric(Counter, "units", "{unit}", "Units that admitted calls took, by their number in a Cost.", func(l *Limiter, s *samples) {
		for i, n := range l.Calls.Units {
			if n > 0 || i == 0 {
				s.put(n, strconv.Itoa(i), "")
			}
		}
	}, "unit"),
	limitMetric("limit.level", "{unit}", "Units in the bucket, those included that are booked.", func(l *Limit) float64 { return l.Level }),
	limitMetric("limit.capacity", "{unit}", "Units that the bucket holds.", func(l *Limit) float64 { return l.Capacity }),
	limitMetric("limit.leak_rate", "", "Units a second that may leave in the long run.", func(l *Limit) float64 { return l.LeakRate }),
	limiterMetric(Gauge, "limit.used_up_in", "s", "How long until the quota is used up, if that is before it begins again.", func(l *Limiter, s *samples) {
		for i := range l.Limits {
			if x := &l.Limits[i]; l.Err == "" && x.UsedUpIn > 0 {
				s.put(x.UsedUpIn.Seconds(), x.Name, "")
			}
		}
	}, "limit"),
	limiterMetric(Counter, "refusals", "{call}", "Calls that the API has refused, by its reason.",
		each(func(l *Limiter) map[string]uint64 { return l.Calls.ByReason }), "reason"),
	limiterMetric(Gauge, "hold.remaining", "s", "For how long no call leaves.", func(l *Limiter, s *samples) {
		if l.Explain != nil && l.Err == "" {
			s.put(l.HeldFor.Seconds(), l.Reason, "")
		}
	}, "reason"),
	limiterMetric(Counter, "hold.time", "s", "For how long no call left, in all.", func(l *Limiter, s *samples) {
		if l.Bucket {
			s.put(l.HeldTime.Seconds(), "", "")
		}
	}),
	limiterMetric(Gauge, "speed", "", "Speed of the bucket's clock: 1, or less after refusals.", func(l *Limiter, s *samples) {
		if l.Explain != nil && l.Err == "" {
			s.put(l.Speed, "", "")
		}
	}),
	limiterMetric(Gauge, "keys", "{key}", "Limiters of a set by keys.", func(l *Limiter, s *samples) {
		if l.Keyed {
			s.put(float64(l.Keys), "", "")
		}
	}),
	apiMetric("api.limit", "{unit}", "The API's quota, as it reports.", func(x *Budget) float64 { return x.Limit }),
	apiMetric("api.remaining", "{unit}", "What is left of the API's quota, as it reports.", func(x *Budget) float64 { return x.Remaining }),
	apiMetric("api.reset", "s", "How long until the API's quota is whole again.", func(x *Budget) float64 { return x.Reset.Seconds() }),
	apiMetric("api.others", "1", "The part of the API's quota that others have used, about.", func(x *Budget) float64 { return x.OtherClients }),
	queueMetric(Counter, "calls.unanswered", "{call}", "Calls that left a queue and got no answer before their deadline.", func(q *queue.Stats) float64 { return float64(q.Unanswered) }),
	queueMetric(Counter, "queue.late", "{reservation}", "Reservations that were lost because the process was late.", func(q *queue.Stats) float64 { return float64(q.Late) }),
	ledgerMetric(Counter, "charged", "{unit}", "Units of admitted calls, by a label of the program.", func(r *ledger.Row) float64 { return r.Charged }),
	ledgerMetric(Counter, "returned", "{unit}", "Units that calls did not need, by label.", func(r *ledger.Row) float64 { return r.Returned }),
	ledgerMetric(Counter, "added", "{unit}", "Units that calls took beyond their charge, by label.", func(r *ledger.Row) float64 { return r.Added }),
	ledgerMetric(Counter, "refused", "{unit}", "Units of calls over the limit, by label.", func(r *ledger.Row) float64 { return r.Refused }),
	ledgerMetric(Counter, "waited", "{unit}", "Units of admitted calls that had to wait, by label.", func(r *ledger.Row) float64 { return r.Waited }),
	ledgerMetric(Gauge, "money", "", "Price of the units used, by label.", func(r *ledger.Row) float64 { return r.Money }),
	storeMetric(Gauge, "store.unavailable", "", "Whether the store is unavailable: 1, or 0.", func(x *Store, s *samples) {
		away := 0.0
		if x.Unavailable {
			away = 1
		}
		s.put(away, "", "")
	}),
	countMetric("store.requests", "{request}", "Requests to the store.", func(c *store.StoreStats) uint64 { return c.Requests.Count }),
	storeMetric(Histogram, "store.request_time", "s", "How long requests to the store took.", func(x *Store, s *samples) {
		if x.Stats != nil {
			s.times(&x.Stats.Requests)
		}
	}),
	countMetric("store.operations", "{operation}", "Operations on buckets that requests have answered; several share a request.", func(c *store.StoreStats) uint64 { return c.Answered }),
	countMetric("store.repeats", "{request}", "Requests that were sent once more.", func(c *store.StoreStats) uint64 { return c.Repeats }),
	countMetric("store.failures", "{operation}", "Operations that ended with an error of the store.", func(c *store.StoreStats) uint64 { return c.Failed }),
}

func limiterMetric(kind, name, unit, help string, of func(*Limiter, *samples), labels ...string) family {
	return family{Metric{"dripfeed." + name, kind, unit, help, append([]string{"limiter"}, labels...)}, of, nil, nil}
}

func ledgerMetric(kind, name, unit, help string, of func(*ledger.Row) float64) family {
	return family{Metric{"dripfeed.ledger." + name, kind, unit, help, []string{"limiter", "label", "unit"}}, nil, nil, of}
}

// each puts a sample for each name.
func each(of func(*Limiter) map[string]uint64) func(*Limiter, *samples) {
	return func(l *Limiter, s *samples) {
		for name, n := range of(l) {
			s.put(float64(n), name, "")
		}
	}
}

func queueMetric(kind, name, unit, help string, of func(*queue.Stats) float64) family {
	return limiterMetric(kind, name, unit, help, func(l *Limiter, s *samples) {
		if l.Queue != nil {
			s.put(of(l.Queue), "", "")
		}
	})
}

func limitMetric(name, unit, help string, of func(*Limit) float64) family {
	return limiterMetric(Gauge, name, unit, help, func(l *Limiter, s *samples) {
		for i := range l.Limits {
			if l.Err == "" { // else the state is an old one
				s.put(of(&l.Limits[i]), l.Limits[i].Name, "")
			}
		}
	}, "limit")
}

func apiMetric(name, unit, help string, of func(*Budget) float64) family {
	return limiterMetric(Gauge, name, unit, help, func(l *Limiter, s *samples) {
		for i := range l.Budgets {
			if n := of(&l.Budgets[i]); n >= 0 {
				s.put(n, l.Budgets[i].Policy, l.Budgets[i].Unit)
			}
		}
	}, "policy", "unit")
}

func storeMetric(kind, name, unit, help string, of func(*Store, *samples)) family {
	return family{Metric{"dripfeed." + name, kind, unit, help, []string{"store"}}, nil, of, nil}
}

func countMetric(name, unit, help string, of func(*store.StoreStats) uint64) family {
	return storeMetric(Counter, name, unit, help, func(x *Store, s *samples) {
		if x.Stats != nil {
			s.put(float64(of(x.Stats)), "", "")
		}
	})
}

// AllMetrics returns what a Board has samples of.
func AllMetrics() (all []*Metric) {
	for i := range families {
		all = append(all, &families[i].Metric)
	}
	return all
}

// Collect calls f with each sample of the Board, one metric after the other: with the same numbers
// as [Board.Metrics] serves. It asks the store for each shared limiter that was added, within 0.8
// s, and for no key.
func (b *Board) Collect(ctx context.Context, f func(Sample)) {
	rows, at := b.rows(), now()
	for _, r := range rows {
		r.read(at, false)
	}
	b.fill(ctx, rows)
	stores, names := b.storesShown(), make([]string, len(rows))
	for i, r := range rows {
		names[i] = clean(r.Name)
	}
	ledgers := b.ledgerRows()
	s := samples{f: f}
	for i := range families {
		of := &families[i]
		s.Metric = &of.Metric
		for i, r := range rows {
			if s.values[0] = names[i]; of.limiter != nil {
				of.limiter(&r.Limiter, &s)
			}
		}
		for i := range stores {
			if s.values[0] = clean(stores[i].Name); of.store != nil {
				of.store(&stores[i], &s)
			}
		}
		for i := range ledgers {
			if r := &ledgers[i]; of.row != nil {
				s.values[0] = clean(r.Limiter)
				s.put(of.row(r), r.Label, r.Unit)
			}
		}
	}
}

// samples are on their way to the function of Collect.
type samples struct {
	f func(Sample)
	Sample
	values [3]string
}

// put passes a number on, with the values of the labels behind the first.
func (s *samples) put(n float64, a, b string) {
	s.values[1], s.values[2] = clean(a), clean(b)
	s.Values = s.values[:len(s.Labels)]
	if s.Value = n; !math.IsNaN(n) && !math.IsInf(n, 0) {
		s.f(s.Sample)
	}
}

// times passes a histogram on.
func (s *samples) times(t *store.Times) {
	s.Times = t
	s.put(t.Time.Seconds(), "", "")
	s.Times = nil
}

// longestLabel is how many bytes of a label's value are served.
const longestLabel = 200

// clean makes a label's value valid UTF-8 that is not too long. What it changes ends with a hash,
// because two series with the same labels would break the scrape.
func clean(s string) string {
	if len(s) <= longestLabel && utf8.ValidString(s) {
		return s
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // cannot fail
	return strings.ToValidUTF8(s[:min(len(s), longestLabel)], "\uFFFD") + fmt.Sprintf("#%08x", h.Sum32())
}
