package watch

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
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
		text := b.prometheus(r.Context())
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(text) // the scraper has gone
	})
}

// metric is one of them: its name, type and help.
type metric struct{ name, kind, help string }

// The metrics, in the order in which they are served. Times are in seconds.
var (
	famCalls     = metric{"dripfeed_calls_total", "counter", "Calls that asked for room, by what became of them."}
	famByLimit   = metric{"dripfeed_calls_without_room_total", "counter", "Calls that were refused, by the limit that had no room."}
	famWait      = metric{"dripfeed_call_wait_time_seconds", "histogram", "How long calls waited that were admitted."}
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
	famTripTime  = metric{"dripfeed_store_trip_time_seconds", "histogram", "How long trips to the store took."}
	famOps       = metric{"dripfeed_store_operations_total", "counter", "Operations on buckets that trips have answered; several share a trip."}
	famRepeats   = metric{"dripfeed_store_repeats_total", "counter", "Trips that were sent once more."}
	famFailures  = metric{"dripfeed_store_failures_total", "counter", "Operations that ended with an error of the store."}
)

// text is Prometheus text as it grows.
type text struct{ bytes.Buffer }

// begin writes the head of a family.
func (t *text) begin(f metric) {
	t.WriteString("# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + f.kind + "\n")
}

// sample writes one line. own is the label that the row has, as labelOf returns it; labels are further names and
// values in turn.
func (t *text) sample(name string, value float64, own string, labels ...string) {
	t.WriteString(name)
	t.WriteByte('{')
	t.WriteString(own)
	for i := 0; i < len(labels); i += 2 {
		t.WriteByte(',')
		t.label(labels[i], labels[i+1])
	}
	t.WriteString("} ")
	if n := int64(value); n >= 0 && n < 1e6 && float64(n) == value { // as most are, and this is quicker
		t.Write(strconv.AppendInt(t.AvailableBuffer(), n, 10))
	} else {
		t.Write(strconv.AppendFloat(t.AvailableBuffer(), value, 'g', -1, 64))
	}
	t.WriteByte('\n')
}

// label writes a label with its value.
func (t *text) label(name, value string) {
	t.WriteString(name)
	t.WriteString(`="`)
	_, _ = escape.WriteString(t, clean(value)) // cannot fail
	t.WriteByte('"')
}

// labelOf returns a label with its value.
func labelOf(name, value string) string {
	var t text
	t.label(name, value)
	return t.String()
}

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

// prometheus returns what the Board has counted.
func (b *Board) prometheus(ctx context.Context) []byte {
	rows, _ := b.rows(&Query{Rows: math.MaxInt, Names: true}, false)
	b.fill(ctx, rows, false)
	slices.SortFunc(rows, func(x, y *row) int { return strings.Compare(x.Name, y.Name) })
	t := new(text)
	t.Grow(8192 + 4096*len(rows))
	for _, r := range rows {
		r.label = labelOf("limiter", r.Name)
	}
	family := func(f metric, each func(f metric, r *row)) {
		t.begin(f)
		for _, r := range rows {
			each(f, r)
		}
	}
	family(famCalls, func(f metric, r *row) {
		t.sample(f.name, float64(r.Calls.Admitted), r.label, "result", "admitted", "error_type", "")
		t.sample(f.name, float64(r.Calls.Refused), r.label, "result", "refused", "error_type", "")
		t.sample(f.name, float64(r.Calls.Cancelled), r.label, "result", "cancelled", "error_type", "")
		for _, kind := range failureNames {
			if n := r.Calls.ByError[kind]; n > 0 || kind == failureNames[failedStore] {
				t.sample(f.name, float64(n), r.label, "result", "failed", "error_type", kind)
			}
		}
	})
	family(famByLimit, func(f metric, r *row) {
		for _, limit := range slices.Sorted(maps.Keys(r.Calls.ByLimit)) {
			t.sample(f.name, float64(r.Calls.ByLimit[limit]), r.label, "limit", limit)
		}
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
				t.sample(f.name, n, r.label, "unit", strconv.Itoa(unit))
			}
		}
	})
	limits := func(f metric, value func(*Limit) float64) {
		family(f, func(f metric, r *row) {
			if r.Err != "" { // the state is an old one
				return
			}
			for i := range r.Limits {
				t.sample(f.name, value(&r.Limits[i]), r.label, "limit", r.Limits[i].Name)
			}
		})
	}
	limits(famLevel, func(l *Limit) float64 { return l.Level })
	limits(famCapacity, func(l *Limit) float64 { return l.Capacity })
	limits(famLeak, func(l *Limit) float64 { return l.LeakRate })
	family(famRefusals, func(f metric, r *row) {
		for _, why := range slices.Sorted(maps.Keys(r.Refusals)) {
			t.sample(f.name, float64(r.Refusals[why]), r.label, "reason", why)
		}
	})
	family(famHold, func(f metric, r *row) {
		if r.Explain != nil && r.Err == "" {
			t.sample(f.name, r.HeldFor.Seconds(), r.label, "reason", r.Reason)
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
					t.sample(f.name, v, r.label, "policy", r.Budgets[i].Policy, "unit", r.Budgets[i].Unit)
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
	return t.Bytes()
}

// bucketName and les are the name and the labels of the histogram's buckets.
var (
	bucketName = famWait.name + "_bucket"
	les        = func() (all [len(bounds) + 1]string) {
		for i, s := range bounds {
			all[i] = strconv.FormatFloat(s, 'g', -1, 64)
		}
		all[len(bounds)] = "+Inf"
		return all
	}()
)

// waits writes the histogram of a limiter.
func (t *text) waits(f metric, r *row) {
	m, sum := &r.shown.meter, uint64(0)
	for i := range m.waits {
		sum += m.waits[i].Load()
		t.sample(bucketName, float64(sum), r.label, "le", les[i])
	}
	t.sample(f.name+"_sum", time.Duration(m.waited.Load()).Seconds(), r.label)
	t.sample(f.name+"_count", float64(sum), r.label)
}

// stores writes the metrics of stores.
func (t *text) stores(all []Store) {
	family := func(f metric, value func(*Store) float64) {
		t.begin(f)
		for i := range all {
			t.sample(f.name, value(&all[i]), labelOf("store", all[i].Name))
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
		s := &all[i]
		label := labelOf("store", s.Name)
		for _, w := range s.Within {
			t.sample(famTripTime.name+"_bucket", float64(w.Count), label, "le", strconv.FormatFloat(w.Bound.Seconds(), 'g', -1, 64))
		}
		t.sample(famTripTime.name+"_bucket", float64(s.Trips), label, "le", "+Inf")
		t.sample(famTripTime.name+"_sum", s.TripTime.Seconds(), label)
		t.sample(famTripTime.name+"_count", float64(s.Trips), label)
	}
}
