package watch

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Among very many keys the fullest are shown, and metrics have one series for all. DRIPFEED_LONG=1 makes it a million keys.
func TestKeyed_ShowsTheFullest(t *testing.T) {
	n, found := 100_000, 11
	switch {
	case os.Getenv("DRIPFEED_LONG") == "1":
		n, found = 1_000_000, 111
	case raced:
		n, found = 10_000, 1
	}
	var b Board
	of := AddKeyed(&b, "tenants", tenants(n, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), func(key string) string { return "tenant " + key })
	for i := range n {
		cost := 0.001
		if i%(n/20) == 7 {
			cost = 5 + float64(i)/float64(n)
		}
		take(t, of(strconv.Itoa(i)), cost)
	}
	refused, fullest := strconv.Itoa(n/3), strconv.Itoa(n/20*19+7)
	for range 5 {
		_, err := of(refused).Acquire(bg, outbound.Cost{9.9999})
		fatalIf(t, err == nil, "it is not refused")
	}
	s := b.Snapshot(bg, Query{Rows: 11})
	var labels []string
	for _, l := range s.Limiters {
		if l.Label != "" {
			labels = append(labels, l.Label)
		} else if l.Keys != n || l.Calls.Admitted != uint64(n) || l.Calls.Refused != 5 {
			t.Errorf("%+v", l)
		}
	}
	want := []string{"tenant " + refused, "tenant " + fullest, "tenant " + strconv.Itoa(n/20*18+7)}
	errorIf(t, len(labels) < 10 || !slices.Equal(labels[:3], want), "%v, want %v first", labels, want)
	errorIf(t, s.Hidden != n+1-11, "%d are hidden", s.Hidden)
	s = b.Snapshot(bg, Query{Search: "TENANT 4242", Rows: 1000})
	errorIf(t, len(s.Limiters) != found || s.Limiters[0].Label == "", "a search found %d", len(s.Limiters))
	exports(t, &b, `keys{limiter="tenants"} `+strconv.Itoa(n))
	lacks(t, &b, "tenant ", "calls_waiting{", "oldest_wait_seconds{", "queue_late_total{", "hold_time_seconds_total{")
	equal(t, strings.Count(metricsOf(&b), "dripfeed_calls_total{"), 4, "series")
	bucket := b.bucketOf("tenants", "tenant "+fullest)
	errorIf(t, bucket == nil || bucket.Key() != fullest, "the bucket of a label: %v", bucket)
	errorIf(t, b.bucketOf("tenants", "") != nil || b.bucketOf("tenants", "no") != nil || b.bucketOf("no", "") != nil,
		"a bucket without a limiter")
}

// Which keys a board shows, by which labels, and at which cost.
func TestKeyed_ShowsKeysThatMatter(t *testing.T) {
	question(t, "Without a label function a key is shown by digits that do not reveal it", func(t *testing.T, b *Board) {
		take(t, AddKeyed(b, "tokens", tenants(10, outbound.PerHour(1)), nil)("ghp_secret"))
		s := b.Snapshot(bg, Query{})
		text := jsonOf(t, s)
		errorIf(t, strings.Contains(text, "secret") || len(s.Limiters) != 2, "%v", text)
		for _, l := range s.Limiters {
			errorIf(t, l.Label != "" && (len(l.Label) != 16 || b.bucketOf("tokens", l.Label) == nil),
				"label %q", l.Label)
		}
		nan := AddKeyed(b, "floats", &outbound.Keyed[float64]{New: func(float64) (outbound.Limiter, error) { return outbound.Unlimited{}, nil }}, nil)
		_, err := nan(math.NaN()).Acquire(bg, outbound.Cost{1})
		errorIf(t, err == nil, "NaN is a key")
	})
	question(t, "Between two walks over very many keys, a look reads the keys again that the last walk has found", func(t *testing.T, b *Board) {
		of := AddKeyed(b, "tenants", tenants(100, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), itself)
		for i := range 20 {
			take(t, of(strconv.Itoa(i)), 1+float64(i)/100)
		}
		set := b.shown[0].keyed.(*keyedSet[string])
		first := func(n int, want string) {
			t.Helper()
			all, more := set.worst(n, "")
			got := fmt.Sprint(all[0].label, " of ", len(all), " and ", more)
			errorIf(t, got != want, "%s, want %s", got, want)
		}
		first(5, "19 of 5 and 15")
		set.last.until = now() + time.Hour // as if there were a million
		take(t, of("3"), 8)                // it was not among the five
		take(t, of("16"), 5)
		first(5, "16 of 5 and 15")
		first(2, "16 of 2 and 18")
		first(6, "3 of 6 and 14") // more than the last walk has found
		take(t, of("5"), 8.9)
		set.last.until = 0
		first(5, "5 of 5 and 15")
	})
	question(t, "The keys come first that were refused lately, and not those whose callers have left, or that were refused long ago", func(t *testing.T, b *Board) {
		of := AddKeyed(b, "tenants", &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			if key == "failing" {
				return limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
					return outbound.Permit{}, context.Canceled
				}), nil
			}
			return outbound.NewBucket(key, outbound.PerHour(1))
		}}, itself)
		ask := func(key string, times int) {
			for range times {
				_, _ = of(key).Acquire(bg, outbound.Cost{1})
			}
		}
		first := func(want string) {
			t.Helper()
			all := b.Snapshot(bg, Query{Rows: 2}).Limiters
			equal(t, all[0].Label+all[1].Label, want, "first comes") // one stands for all keys
		}
		ask("failing", 100)
		ask("former", 1000)
		first("former")
		for _, l := range b.Snapshot(bg, Query{}).Limiters {
			errorIf(t, l.Label != "" && (l.Severity == Busy) != (l.Label == "former"),
				"%s: %d %q", l.Label, l.Severity, l.Trouble)
		}
		time.Sleep(30 * time.Minute)
		ask("new", 3)
		first("new")
	})
	question(t, "Keys that share a label are shown, and an action finds neither of them, because it could be the wrong one", func(t *testing.T, b *Board) {
		// A key with an empty label does not look like all keys.
		of := AddKeyed(b, "tenants", tenants(10, outbound.PerHour(1)), func(key string) string { return strings.TrimRight(key, "0123456789") })
		for _, key := range []string{"acme1", "acme2", "other7", "5"} {
			take(t, of(key))
		}
		var labels []string
		for _, l := range b.Snapshot(bg, Query{}).Limiters {
			labels = append(labels, l.Label)
		}
		slices.Sort(labels)
		errorIf(t, fmt.Sprintf("%q", labels) != `["" "(no label)" "acme" "acme" "other"]`, "%q", labels)
		errorIf(t, b.bucketOf("tenants", "acme") != nil, "an action finds one of two keys with the same label")
		got := b.bucketOf("tenants", "other")
		errorIf(t, got == nil || got.Key() != "other7", "an action finds %v", got)
	})
	question(t, "However many keys are full, the names of the program are shown", func(t *testing.T, b *Board) {
		for i := range 5 {
			b.Add(fmt.Sprint("api ", i), bucket(t, outbound.PerSecond(1)))
		}
		of := AddKeyed(b, "tenants", tenants(200, outbound.PerHour(1)), nil)
		for i := range 200 {
			take(t, of(strconv.Itoa(i)))
		}
		for _, most := range []int{50, 8, 4} {
			s := b.Snapshot(bg, Query{Rows: most})
			names := 0
			for _, l := range s.Limiters {
				if l.Label == "" {
					names++
				}
			}
			if want := min(6, most/2); len(s.Limiters) != most || names < want || names == most || s.Hidden != 206-most {
				t.Errorf("%d of %d are names, want %d; %d are hidden", names, most, want, s.Hidden)
			}
		}
	})
	question(t, "A search makes the label of each key once, and then those of the keys that it has found, whose states are the latest. The last search is remembered", func(t *testing.T, b *Board) {
		labels := 0
		of := AddKeyed(b, "tenants", tenants(1000, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), func(key string) string {
			labels++
			return "Tenant " + key
		})
		for i := range 1000 {
			take(t, of(strconv.Itoa(i)))
		}
		set := b.shown[0].keyed.(*keyedSet[string])
		look := func(search string, most int) (first string) {
			labels = 0
			s := b.Snapshot(bg, Query{Search: search, Rows: most})
			set.last.until = now() + time.Hour // as if there were a million
			return fmt.Sprint(s.Limiters[0].Label, " of ", len(s.Limiters), " and ", s.Hidden)
		}
		look("TENANT 77", 50) // 77, and 770 to 779
		errorIf(t, labels != 1000+11, "the first look has made %d labels", labels)
		take(t, of("773"), 5)
		if got := look("tenant 77", 5); got != "Tenant 773 of 5 and 6" || labels != 5 {
			t.Errorf("%s; the next look has made %d labels", got, labels)
		}
		look("tenant 5", 50)
		errorIf(t, labels <= 1000, "another search has made %d labels", labels)
		set.last.until = 0
		look("tenant 5", 50)
		errorIf(t, labels <= 1000, "a look after the pause has made %d labels", labels)
		look("tenants", 5)
		errorIf(t, labels != 5, "a search for the name has made %d labels", labels)
	})
	bubble(t, "However many keys are refused, only some are remembered: the latest, and a key that is refused again and again", func(t *testing.T) {
		set := &keyedSet[int]{keyed: &outbound.Keyed[int]{}}
		for i := range 1000 {
			set.refuse(i)
			if i%10 == 0 {
				set.refuse(-1)
			}
			time.Sleep(time.Millisecond)
		}
		often := slices.IndexFunc(set.refused, func(r refusedKey[int]) bool { return r.key == -1 })
		errorIf(t, len(set.refused) != mostRefused || often < 0 || set.refused[often].times != 100 || set.refused[mostRefused-1].key != 999,
			"%+v", set.refused)
		time.Sleep(2 * lately)
		set.refuse(-1)
		errorIf(t, set.refused[mostRefused-1].times != 1, "refusals of long ago count")
	})
}
