package watch

import (
	"bufio"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Metrics returns a handler that serves what the Board has counted as Prometheus text. Series are by limiter and
// limit, whatever the number of keys; no label has a key, a URL or a host in it. A scrape makes one trip for each
// shared limiter that was added, within 0.8 s, and none for keys.
func (b *Board) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		b.prometheus(r.Context(), w)
	})
}

// metric is one of them: its name, type and help.
type metric struct{ name, kind, help string }

// The names of histograms, whose lines have more names.
const (
	waitTime = "dripfeed_call_wait_time_seconds"
	tripTime = "dripfeed_store_trip_time_seconds"
)

// The metrics, in the order in which they are served. Times are in seconds.
var (
	famCalls     = metric{"dripfeed_calls_total", "counter", "Calls that asked for room, by what became of them."}
	famByLimit   = metric{"dripfeed_calls_without_room_total", "counter", "Calls that were refused, by the limit that had no room."}
	famWait      = metric{waitTime, "histogram", "How long calls waited that were admitted."}
	famWaiting   = metric{"dripfeed_calls_waiting", "gauge", "Calls in the queue."}
	famOldest    = metric{"dripfeed_calls_oldest_wait_seconds", "gauge", "How long the first call in the queue has waited."}
	famUnits     = metric{"dripfeed_units_total", "counter", "Units that admitted calls took, by their number in a Cost."}
	famLevel     = metric{"dripfeed_limit_level", "gauge", "Units in the bucket, those included that are booked."}
	famCapacity  = metric{"dripfeed_limit_capacity", "gauge", "Units that the bucket holds."}
	famLeak      = metric{"dripfeed_limit_leak_rate", "gauge", "Units a second that may go in the long run."}
	famRefusals  = metric{"dripfeed_refusals_total", "counter", "Calls that the API has refused, by its reason."}
	famHold      = metric{"dripfeed_hold_remaining_seconds", "gauge", "For how long no call goes."}
	famHeld      = metric{"dripfeed_hold_time_seconds_total", "counter", "For how long no call went, in all."}
	famSpeed     = metric{"dripfeed_speed", "gauge", "Speed of the bucket's clock: 1, or less after refusals."}
	famKeys      = metric{"dripfeed_keys", "gauge", "Limiters of a set by keys."}
	famAPILimit  = metric{"dripfeed_api_limit", "gauge", "The API's quota, as it has told."}
	famAPIRemain = metric{"dripfeed_api_remaining", "gauge", "What is left of the API's quota, as it has told."}
	famAPIReset  = metric{"dripfeed_api_reset_seconds", "gauge", "How long until the API's quota is whole again."}
	famAPIOthers = metric{"dripfeed_api_others_ratio", "gauge", "The part of the API's quota that somebody else has used, about."}
	famLate      = metric{"dripfeed_queue_late_total", "counter", "Places in the queue that were lost because the process was late."}
	famStoreAway = metric{"dripfeed_store_away", "gauge", "Whether the store is away: 1, or 0."}
	famTrips     = metric{"dripfeed_store_trips_total", "counter", "Requests to the store."}
	famTripTime  = metric{tripTime, "histogram", "How long trips to the store took."}
	famOps       = metric{"dripfeed_store_operations_total", "counter", "Operations on buckets that trips have answered; several share a trip."}
	famRepeats   = metric{"dripfeed_store_repeats_total", "counter", "Trips that were sent once more."}
	famFailures  = metric{"dripfeed_store_failures_total", "counter", "Operations that ended with an error of the store."}
)

// text is Prometheus text on its way to the scraper.
type text struct{ *bufio.Writer }

// begin writes the head of a family.
func (t text) begin(f metric) {
	t.WriteString("# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + f.kind + "\n")
}

// sample writes one line. The labels are as label returns them.
func (t text) sample(name string, value float64, labels ...string) {
	t.WriteString(name)
	between := byte('{')
	for _, l := range labels {
		t.WriteByte(between)
		t.WriteString(l)
		between = ','
	}
	t.WriteString("} ")
	if n := int64(value); n >= 0 && float64(n) == value { // as most are, and this is quicker
		t.Write(strconv.AppendInt(t.AvailableBuffer(), n, 10))
	} else {
		t.Write(strconv.AppendFloat(t.AvailableBuffer(), value, 'g', -1, 64))
	}
	t.WriteByte('\n')
}

// counts writes a line for each count, with a label of this name.
func (t text) counts(f metric, r *row, name string, all map[string]uint64) {
	if len(all) == 0 {
		return
	}
	for _, is := range slices.Sorted(maps.Keys(all)) {
		t.sample(f.name, float64(all[is]), r.label, label(name, is))
	}
}

// label returns a label with its value.
func label(name, value string) string { return name + `="` + escape.Replace(clean(value)) + `"` }

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// longestLabel is how many bytes of a label's value are served.
const longestLabel = 200

// clean makes a label's value valid UTF-8 that is not too long. What it changes ends with a hash, because two series
// with the same labels would break the scrape.
func clean(s string) string {
	if len(s) <= longestLabel && utf8.ValidString(s) {
		return s
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // cannot fail
	return strings.ToValidUTF8(s[:min(len(s), longestLabel)], "\uFFFD") + fmt.Sprintf("#%08x", h.Sum32())
}

// prometheus writes what the Board has counted.
func (b *Board) prometheus(ctx context.Context, w io.Writer) {
	rows, _ := b.rows(&Query{Rows: math.MaxInt, Names: true}, false)
	b.fill(ctx, rows, false)
	slices.SortFunc(rows, func(x, y *row) int { return strings.Compare(x.Name, y.Name) })
	t := text{bufio.NewWriter(w)}
	defer t.Flush() // an error means that the scraper has gone
	for _, r := range rows {
		r.label = label("limiter", r.Name)
		for i := range r.Limits {
			r.limits = append(r.limits, label("limit", r.Limits[i].Name))
		}
	}
	family := func(f metric, each func(f metric, r *row)) {
		t.begin(f)
		for _, r := range rows {
			each(f, r)
		}
	}
	const noError = `error_type=""`
	family(famCalls, func(f metric, r *row) {
		t.sample(f.name, float64(r.Calls.Admitted), r.label, `result="admitted"`, noError)
		t.sample(f.name, float64(r.Calls.Refused), r.label, `result="refused"`, noError)
		t.sample(f.name, float64(r.Calls.Cancelled), r.label, `result="cancelled"`, noError)
		for _, kind := range failureNames {
			if n := r.Calls.ByError[kind]; n > 0 || kind == failureNames[failedStore] {
				t.sample(f.name, float64(n), r.label, `result="failed"`, label("error_type", kind))
			}
		}
	})
	family(famByLimit, func(f metric, r *row) {
		t.counts(f, r, "limit", r.Calls.ByLimit)
	})
	family(famWait, t.waits)
	queues := func(f metric, value func(*row) float64) {
		family(f, func(f metric, r *row) {
			if r.Queued {
				t.sample(f.name, value(r), r.label)
			}
		})
	}
	queues(famWaiting, func(r *row) float64 { return float64(r.Waiting) })
	queues(famOldest, func(r *row) float64 { return r.Oldest.Seconds() })
	family(famUnits, func(f metric, r *row) {
		for unit, n := range r.Calls.Units {
			if n > 0 || unit == 0 {
				t.sample(f.name, n, r.label, label("unit", strconv.Itoa(unit)))
			}
		}
	})
	limits := func(f metric, value func(*Limit) float64) {
		family(f, func(f metric, r *row) {
			if r.Err != "" { // the state is an old one
				return
			}
			for i := range r.Limits {
				t.sample(f.name, value(&r.Limits[i]), r.label, r.limits[i])
			}
		})
	}
	limits(famLevel, func(l *Limit) float64 { return l.Level })
	limits(famCapacity, func(l *Limit) float64 { return l.Capacity })
	limits(famLeak, func(l *Limit) float64 { return l.LeakRate })
	family(famRefusals, func(f metric, r *row) {
		t.counts(f, r, "reason", r.Refusals)
	})
	family(famHold, func(f metric, r *row) {
		if r.Explain != nil && r.Err == "" {
			t.sample(f.name, r.HeldFor.Seconds(), r.label, label("reason", r.Reason))
		}
	})
	family(famHeld, func(f metric, r *row) {
		if r.Kept {
			t.sample(f.name, r.HeldTime.Seconds(), r.label)
		}
	})
	family(famSpeed, func(f metric, r *row) {
		if r.Explain != nil && r.Err == "" {
			t.sample(f.name, r.Speed, r.label)
		}
	})
	family(famKeys, func(f metric, r *row) {
		if r.Keyed {
			t.sample(f.name, float64(r.Keys), r.label)
		}
	})
	budgets := func(f metric, value func(*Budget) float64) {
		family(f, func(f metric, r *row) {
			for i := range r.Budgets {
				if v := value(&r.Budgets[i]); v >= 0 {
					t.sample(f.name, v, r.label, label("policy", r.Budgets[i].Policy), label("unit", r.Budgets[i].Unit))
				}
			}
		})
	}
	budgets(famAPILimit, func(x *Budget) float64 { return x.Limit })
	budgets(famAPIRemain, func(x *Budget) float64 { return x.Remaining })
	budgets(famAPIReset, func(x *Budget) float64 { return x.ResetIn.Seconds() })
	budgets(famAPIOthers, func(x *Budget) float64 { return x.Others })
	queues(famLate, func(r *row) float64 { return float64(r.Late) })
	t.stores(b.storesShown())
}

// les are the labels of the buckets of the waits' histogram.
var les = func() (all [len(bounds) + 1]string) {
	for i, s := range bounds {
		all[i] = le(s)
	}
	all[len(bounds)] = le(math.Inf(1))
	return all
}()

// le is the label of a histogram's bucket.
func le(seconds float64) string { return label("le", strconv.FormatFloat(seconds, 'g', -1, 64)) }

// waits writes the histogram of a limiter.
func (t text) waits(_ metric, r *row) {
	m, n := &r.shown.meter, uint64(0)
	for i := range m.waits {
		n += m.waits[i].Load()
		t.sample(waitTime+"_bucket", float64(n), r.label, les[i])
	}
	t.sample(waitTime+"_sum", time.Duration(m.waited.Load()).Seconds(), r.label)
	t.sample(waitTime+"_count", float64(n), r.label)
}

// stores writes the metrics of stores.
func (t text) stores(all []Store) {
	family := func(f metric, value func(*Store) float64) {
		t.begin(f)
		for i := range all {
			t.sample(f.name, value(&all[i]), label("store", all[i].Name))
		}
	}
	family(famStoreAway, func(s *Store) float64 {
		if s.Away {
			return 1
		}
		return 0
	})
	all = slices.DeleteFunc(all, func(s Store) bool { return !s.Counts })
	family(famTrips, func(s *Store) float64 { return float64(s.Trips) })
	family(famOps, func(s *Store) float64 { return float64(s.Operations) })
	family(famRepeats, func(s *Store) float64 { return float64(s.Repeats) })
	family(famFailures, func(s *Store) float64 { return float64(s.Failures) })
	t.begin(famTripTime)
	for i := range all {
		s, own := &all[i], label("store", all[i].Name)
		for _, w := range s.Within {
			t.sample(tripTime+"_bucket", float64(w.Count), own, le(w.Bound.Seconds()))
		}
		t.sample(tripTime+"_bucket", float64(s.Trips), own, le(math.Inf(1)))
		t.sample(tripTime+"_sum", s.TripTime.Seconds(), own)
		t.sample(tripTime+"_count", float64(s.Trips), own)
	}
}
