package watch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// The limiter of a key works as that of For: a Keyed around it may drop it, and it costs one allocation.
func TestTheLimiterOfAKeyIsAsForReturnsIt(t *testing.T) {
	var b Board
	of := AddKeyed(&b, "tenants", tenants(t, 10, outbound.Limit{Capacity: 1e9, LeakRate: 1e9}), nil)
	if i, ok := of("a").(idler); !ok || !i.Idle() {
		t.Error("it is not idle")
	}
	if n := testing.AllocsPerRun(100, func() {
		p, err := of("a").Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Done()
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
	if c := b.Snapshot(bg, Query{}).Limiters[0].Calls; c.Admitted != 101 {
		t.Errorf("%+v", c)
	}
}

// Of shared buckets, whose state is elsewhere, the keys come first that were refused lately, and not those whose
// callers have left, or that were refused long ago.
func TestKeysThatAreRefusedLatelyComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		keyed := &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			if key == "failing" {
				return limiterFunc(func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
					return outbound.Permit{}, context.Canceled
				}), nil
			}
			return outbound.NewBucket(key, outbound.PerHour(1))
		}}
		of := AddKeyed(&b, "tenants", keyed, func(key string) string { return key })
		ask := func(key string, times int) {
			for range times {
				_, _ = of(key).Acquire(bg, outbound.Cost{1})
			}
		}
		first := func() string {
			all := b.Snapshot(bg, Query{Rows: 2}).Limiters
			return all[0].Label + all[1].Label // one is the name's row
		}
		ask("failing", 100)
		ask("former", 1000)
		if got := first(); got != "former" {
			t.Errorf("first comes %q", got)
		}
		for _, l := range b.Snapshot(bg, Query{}).Limiters {
			if l.Label != "" && (l.Severity == Busy) != (l.Label == "former") {
				t.Errorf("%s: %d %q", l.Label, l.Severity, l.Trouble)
			}
		}
		time.Sleep(30 * time.Minute)
		ask("new", 3)
		if got := first(); got != "new" {
			t.Errorf("first comes %q, which was refused half an hour ago", got)
		}
	})
}

// Keys that share a label are shown, and an action finds none of them: it could be the wrong one. A key without a
// label does not look like all keys.
func TestLabelsThatCollide(t *testing.T) {
	var b Board
	of := AddKeyed(&b, "tenants", tenants(t, 10, outbound.PerHour(1)), func(key string) string { return strings.TrimRight(key, "0123456789") })
	for _, key := range []string{"acme1", "acme2", "other7", "5"} {
		_, _ = of(key).Acquire(bg, outbound.Cost{1})
	}
	s := b.Snapshot(bg, Query{})
	all := 0
	for _, l := range s.Limiters {
		if l.Label == "" {
			all++
		}
	}
	if len(s.Limiters) != 5 || all != 1 {
		t.Errorf("%d rows, %d of them for all keys", len(s.Limiters), all)
	}
	if b.bucketOf("tenants", "acme") != nil {
		t.Error("an action finds one of two keys with the same label")
	}
	if got := b.bucketOf("tenants", "other"); got == nil || got.Key() != "other7" {
		t.Errorf("an action finds %v", got)
	}
}

// However many keys are full, a name of the program keeps its row.
func TestSnapshot_KeysTakeAtMostHalf(t *testing.T) {
	var b Board
	for i := range 5 {
		b.Add(fmt.Sprint("api ", i), bucket(t, outbound.PerSecond(1)))
	}
	of := AddKeyed(&b, "tenants", tenants(t, 200, outbound.PerHour(1)), nil)
	for i := range 200 {
		_, _ = of(strconv.Itoa(i)).Acquire(bg, outbound.Cost{1})
	}
	for _, rows := range []int{50, 8, 4} {
		s := b.Snapshot(bg, Query{Rows: rows})
		names := 0
		for _, l := range s.Limiters {
			if l.Label == "" {
				names++
			}
		}
		if want := min(6, rows/2); len(s.Limiters) != rows || names < want || names == rows || s.Hidden != 206-rows {
			t.Errorf("of %d rows %d are names, want %d; %d are hidden", len(s.Limiters), names, want, s.Hidden)
		}
	}
}

// A row that stands for keys has no number of a queue or a hold of its own.
func TestAllKeysTogetherHaveNoQueue(t *testing.T) {
	var b Board
	of := AddKeyed(&b, "tenants", tenants(t, 5, outbound.PerSecond(1)), nil)
	_, _ = of("a").Acquire(bg, outbound.Cost{1})
	text := metricsOf(&b)
	for _, none := range []string{"calls_waiting{", "oldest_wait_seconds{", "queue_late_total{", "hold_time_seconds_total{"} {
		if strings.Contains(text, none) {
			t.Errorf("a metric tells %s of all keys", none)
		}
	}
	if !strings.Contains(text, `dripfeed_keys{limiter="tenants"} 1`) {
		t.Error("no number of keys")
	}
}

// A search makes the label of each key once, and then those of the keys that it has found, whose states
// are the latest. The last search is remembered.
func TestSearchesAreSpared(t *testing.T) {
	var b Board
	labels := 0
	of := AddKeyed(&b, "tenants", tenants(t, 1000, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), func(key string) string {
		labels++
		return "Tenant " + key
	})
	for i := range 1000 {
		go1(t, of(strconv.Itoa(i)))
	}
	set := b.shown[0].keyed.(*keyedSet[string])
	look := func(search string, rows int) (first string) {
		labels = 0
		s := b.Snapshot(bg, Query{Search: search, Rows: rows})
		set.last.until = now() + time.Hour // as if there were a million
		return fmt.Sprint(s.Limiters[0].Label, " of ", len(s.Limiters), " and ", s.Hidden)
	}
	look("TENANT 77", 50) // 77, and 770 to 779
	if labels != 1000+11 {
		t.Errorf("the first look has made %d labels", labels)
	}
	if _, err := of("773").Acquire(bg, outbound.Cost{5}); err != nil {
		t.Fatal(err)
	}
	if got := look("tenant 77", 5); got != "Tenant 773 of 5 and 6" || labels != 5 {
		t.Errorf("%s; the next look has made %d labels", got, labels)
	}
	if look("tenant 5", 50); labels <= 1000 {
		t.Errorf("another search has made %d labels", labels)
	}
	set.last.until = 0
	if look("tenant 5", 50); labels <= 1000 {
		t.Errorf("a look after the rest has made %d labels", labels)
	}
	if look("tenants", 5); labels != 5 {
		t.Errorf("a search for the name has made %d labels", labels)
	}
}

// However many keys are refused, only some are remembered: the latest, and a key that is refused again
// and again.
func TestRefusedKeysThatAreRememberedAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &keyedSet[int]{keyed: &outbound.Keyed[int]{}}
		for i := range 1000 {
			set.refuse(i)
			if i%10 == 0 {
				set.refuse(-1)
			}
			time.Sleep(time.Millisecond)
		}
		often := slices.IndexFunc(set.refused, func(r refusedKey[int]) bool { return r.key == -1 })
		if len(set.refused) != mostRefused || often < 0 || set.refused[often].times != 100 || set.refused[mostRefused-1].key != 999 {
			t.Errorf("%+v", set.refused)
		}
		time.Sleep(2 * lately)
		if set.refuse(-1); set.refused[mostRefused-1].times != 1 {
			t.Error("refusals of long ago count")
		}
	})
}
