package otel

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/dripfeed/dripfeed/outbound/watch"
)

// kind is what an instrument is.
type kind uint8

const (
	counter kind = iota // whole numbers
	sum                 // a counter of parts, too
	gauge
	wholeGauge
)

// The instruments that are read at collection, as indices of definitions.
const (
	calls = iota
	withoutRoom
	waiting
	oldestWait
	units
	level
	capacity
	leakRate
	refusals
	holdRemaining
	holdTime
	speed
	keys
	apiLimit
	apiRemaining
	apiReset
	apiOthers
	late
	storeAway
	storeTrips
	storeTripsTime
	storeOperations
	storeRepeats
	storeFailures
	instruments // how many there are
)

// definition is an instrument as the MeterProvider gets it. An exporter for Prometheus adds _per_second and _ratio
// for some units. leakRate and speed have none, so that they are called as by [watch.Board.Metrics].
type definition struct {
	kind             kind
	name, unit, help string
}

var definitions = [instruments]definition{
	calls:           {counter, "dripfeed.calls", "{call}", "Calls that asked for room, by what became of them."},
	withoutRoom:     {counter, "dripfeed.calls.without_room", "{call}", "Calls that were refused, by the limit that had no room."},
	waiting:         {wholeGauge, "dripfeed.calls.waiting", "{call}", "Calls in the queue."},
	oldestWait:      {gauge, "dripfeed.calls.oldest_wait", "s", "How long the first call in the queue has waited."},
	units:           {sum, "dripfeed.units", "{unit}", "Units that admitted calls took, by their number in a Cost."},
	level:           {gauge, "dripfeed.limit.level", "{unit}", "Units in the bucket, those included that are booked."},
	capacity:        {gauge, "dripfeed.limit.capacity", "{unit}", "Units that the bucket holds."},
	leakRate:        {gauge, "dripfeed.limit.leak_rate", "", "Units a second that may go in the long run."},
	refusals:        {counter, "dripfeed.refusals", "{call}", "Calls that the API has refused, by its reason."},
	holdRemaining:   {gauge, "dripfeed.hold.remaining", "s", "For how long no call goes."},
	holdTime:        {sum, "dripfeed.hold.time", "s", "For how long no call went, in all."},
	speed:           {gauge, "dripfeed.speed", "", "Speed of the bucket's clock: 1, or less after refusals."},
	keys:            {wholeGauge, "dripfeed.keys", "{key}", "Limiters of a set by keys."},
	apiLimit:        {gauge, "dripfeed.api.limit", "{unit}", "The API's quota, as it has told."},
	apiRemaining:    {gauge, "dripfeed.api.remaining", "{unit}", "What is left of the API's quota, as it has told."},
	apiReset:        {gauge, "dripfeed.api.reset", "s", "How long until the API's quota is whole again."},
	apiOthers:       {gauge, "dripfeed.api.others", "1", "The part of the API's quota that somebody else has used, about."},
	late:            {counter, "dripfeed.queue.late", "{place}", "Places in the queue that were lost because the process was late."},
	storeAway:       {wholeGauge, "dripfeed.store.away", "", "Whether the store is away: 1, or 0."},
	storeTrips:      {counter, "dripfeed.store.trips", "{trip}", "Requests to the store."},
	storeTripsTime:  {sum, "dripfeed.store.trips.time", "s", "How long trips to the store took, in all."},
	storeOperations: {counter, "dripfeed.store.operations", "{operation}", "Operations on buckets that trips have answered; several share a trip."},
	storeRepeats:    {counter, "dripfeed.store.repeats", "{trip}", "Trips that were sent once more."},
	storeFailures:   {counter, "dripfeed.store.failures", "{operation}", "Operations that ended with an error of the store."},
}

// mostRows is how many limiters a Board tells of at most.
const mostRows = 1000

// numbers are the instruments that are read at collection, all of them in one look at the Board.
type numbers struct {
	board       *watch.Board
	instruments [instruments]metric.Observable

	mu    sync.Mutex // protects what follows
	peaks map[peak]float64
}

// peak is a counter of a limiter or a store.
type peak struct {
	instrument int
	name       string
}

// register makes the instruments, and has them read.
func (n *numbers) register(m metric.Meter) (metric.Registration, error) {
	for i, d := range definitions {
		var err error
		switch d.kind {
		case counter:
			n.instruments[i], err = m.Int64ObservableCounter(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.help))
		case sum:
			n.instruments[i], err = m.Float64ObservableCounter(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.help))
		case gauge:
			n.instruments[i], err = m.Float64ObservableGauge(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.help))
		case wholeGauge:
			n.instruments[i], err = m.Int64ObservableGauge(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.help))
		}
		if err != nil {
			return nil, err
		}
	}
	return m.RegisterCallback(n.collect, n.instruments[:]...)
}

// collect looks at the Board once, and tells all instruments.
func (n *numbers) collect(ctx context.Context, o metric.Observer) error {
	s := n.board.Snapshot(ctx, watch.Query{Rows: mostRows, Names: true})
	n.tell(o, &s)
	if s.Hidden > 0 {
		return fmt.Errorf("otel: the Board has %d names, and %d of them are not told", len(s.Limiters)+s.Hidden, s.Hidden)
	}
	return nil
}

// tell tells all instruments what the Board has shown.
func (n *numbers) tell(o metric.Observer, s *watch.Snapshot) {
	observe := func(instrument int, value float64, attributes ...attribute.KeyValue) {
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return // no number for an exporter
		}
		set := metric.WithAttributeSet(attribute.NewSet(attributes...))
		switch i := n.instruments[instrument].(type) {
		case metric.Int64Observable:
			o.ObserveInt64(i, int64(value), set)
		case metric.Float64Observable:
			o.ObserveFloat64(i, value, set)
		}
	}
	for i := range s.Limiters {
		l := &s.Limiters[i]
		limiter := text("limiter", l.Name)
		become := func(result string, times uint64) {
			observe(calls, float64(times), limiter, text("result", result))
		}
		become("admitted", l.Calls.Admitted)
		become("refused", l.Calls.Refused)
		become("cancelled", l.Calls.Cancelled)
		for kind, times := range l.Calls.ByError {
			observe(calls, float64(times), limiter, text("result", "failed"), text("error.type", kind))
		}
		for limit, times := range l.Calls.ByLimit {
			observe(withoutRoom, float64(times), limiter, text("limit", limit))
		}
		if l.Queued {
			observe(waiting, float64(l.Waiting), limiter)
			observe(oldestWait, l.Oldest.Seconds(), limiter)
			observe(late, n.highest(late, l.Name, float64(l.Late)), limiter)
		}
		for unit, amount := range l.Calls.Units {
			if amount > 0 || unit == 0 {
				observe(units, amount, limiter, text("unit", strconv.Itoa(unit)))
			}
		}
		for j := range l.Limits {
			if l.Err != "" { // the state is an old one
				break
			}
			x := &l.Limits[j]
			limit := text("limit", x.Name)
			observe(level, x.Level, limiter, limit)
			observe(capacity, x.Capacity, limiter, limit)
			observe(leakRate, x.LeakRate, limiter, limit)
		}
		for why, times := range l.Refusals {
			observe(refusals, float64(times), limiter, text("reason", why))
		}
		if l.Kept {
			observe(holdTime, n.highest(holdTime, l.Name, l.HeldTime.Seconds()), limiter)
		}
		if l.Explain != nil && l.Err == "" {
			observe(holdRemaining, l.HeldFor.Seconds(), limiter, text("reason", l.Reason))
			observe(speed, l.Speed, limiter)
		}
		if l.Keyed {
			observe(keys, float64(l.Keys), limiter)
		}
		for j := range l.Budgets {
			x := &l.Budgets[j]
			told := func(instrument int, value float64) {
				if value >= 0 {
					observe(instrument, value, limiter, text("policy", x.Policy), text("unit", x.Unit))
				}
			}
			told(apiLimit, x.Limit)
			told(apiRemaining, x.Remaining)
			told(apiReset, x.ResetIn.Seconds())
			told(apiOthers, x.Others)
		}
	}
	for i := range s.Stores {
		x := &s.Stores[i]
		store := text("store", x.Name)
		away := 0.0
		if x.Away {
			away = 1
		}
		observe(storeAway, away, store)
		if !x.Counts {
			continue
		}
		counted := func(instrument int, value float64) {
			observe(instrument, n.highest(instrument, x.Name, value), store)
		}
		counted(storeTrips, float64(x.Trips))
		counted(storeTripsTime, x.TripTime.Seconds())
		counted(storeOperations, float64(x.Operations))
		counted(storeRepeats, float64(x.Repeats))
		counted(storeFailures, float64(x.Failures))
	}
}

// highest returns the highest value so far of a counter that goes back in the Board. A queue or a store that is added
// again under a name counts from 0, and so do those of a Board that has had no time to look. Backends take a counter
// that goes back for a process that has begun anew, and count all of it once more.
func (n *numbers) highest(instrument int, name string, value float64) float64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := peak{instrument, name}
	value = max(value, n.peaks[p])
	if n.peaks == nil {
		n.peaks = make(map[peak]float64)
	}
	n.peaks[p] = value
	return value
}

// longestText is how many bytes of an attribute's value are told.
const longestText = 200

// text is an attribute. What an API calls its quotas is the API's own, and an exporter gives up all of its numbers for
// one text that is not UTF-8.
func text(key, value string) attribute.KeyValue {
	if len(value) > longestText {
		value = value[:longestText]
	}
	return attribute.String(key, strings.ToValidUTF8(value, "\uFFFD"))
}
