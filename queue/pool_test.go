package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// poolOf returns a pool of n queues, and their buckets.
func poolOf(t *testing.T, n int, limit outbound.Limit) (p *outbound.Pool, buckets []*outbound.Bucket) {
	p = new(outbound.Pool)
	for i := range n {
		b, err := outbound.NewBucket(fmt.Sprint("key ", i), limit)
		if err != nil {
			t.Fatal(err)
		}
		buckets, p.Members = append(buckets, b), append(p.Members, New(b, Config{}))
	}
	return p, buckets
}

// Five members of 60 calls a minute admit 300 a minute, calls that come together too. One that is
// held for a minute delays the slowest calls by a tenth at most.
func TestPool_UsesAllMembers(t *testing.T) {
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p, buckets := poolOf(t, 5, outbound.PerMinute(60))
			var mu sync.Mutex
			var by [5]int
			all := make(calls, 300)
			for i := range all {
				all[i] = comeAndUse(bg, p, func(permit *outbound.Permit) {
					mu.Lock()
					by[p.Member(permit)]++
					mu.Unlock()
					permit.Done()
				}, 1)
			}
			pass(time.Second)
			ideal := time.Minute
			if held { // four members for a minute, and then all
				ideal += 12 * time.Second
				if err := buckets[2].Hold(bg, time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			pass(3 * time.Minute)
			slices.SortFunc(all, func(a, b *call) int { return a.ended().left.Compare(b.ended().left) })
			n, _ := all.admitted()
			p99 := all[len(all)*99/100].took()
			if t.Logf("held: %v: p99 %v, by each %v", held, p99, by); n != len(all) || p99 > ideal*11/10 {
				t.Errorf("held: %v: %d calls, p99 %v, want %v; by each %v", held, n, p99, ideal, by)
			}
		})
	}
}

// Calls that wait for as long as other calls are in flight keep their order, because no member is better.
func TestPool_KeepsOrderAtEqualMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOf(t, 2, outbound.InFlight(1))
		begin, all := time.Now(), calls(nil)
		for range 20 {
			all = append(all, comeAndUse(bg, p, func(p *outbound.Permit) { time.Sleep(10 * time.Second); p.Done() }, 1))
			time.Sleep(ms)
		}
		pass(time.Hour)
		for i, c := range all {
			if want := time.Duration(i/2) * 10 * time.Second; c.ended().err != nil || c.ended().left.Sub(begin).Round(time.Second) != want {
				t.Errorf("call %d leaves after %v, want %v: %v", i, c.ended().left.Sub(begin), want, c.ended().err)
			}
		}
	})
}

// Buckets refuse immediately: the next one is asked, and if all refuse the error is the one with the
// least RetryAfter. A refusal by the API holds the member that has admitted the call.
func TestPool_AsksTheNextMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &outbound.Pool{}
		for _, rate := range []float64{1, 0.5, 0.1} {
			p.Members = append(p.Members, bucket(t, outbound.Limit{Capacity: 1, LeakRate: rate}))
		}
		var members []int
		for range 3 {
			permit := admitted(t, p, 1)
			m := p.Member(&permit)
			if members = append(members, m); m == 0 {
				permit.Refused(time.Hour)
			}
			permit.Done()
		}
		if slices.Sort(members); !slices.Equal(members, []int{0, 1, 2}) {
			t.Errorf("members %v", members)
		}
		if c := come(bg, p, 1); c.refused().RetryAfter != 2*time.Second {
			t.Errorf("%v, want to retry in 2 s", c.ended().err)
		}
		var other outbound.Pool
		if _, err := other.Acquire(bg, one); !errors.Is(err, outbound.ErrInvalid) || other.Member(nil) != -1 {
			t.Error(err)
		}
		if _, err := p.Acquire(bg, outbound.Cost{2}); !errors.Is(err, outbound.ErrTooLarge) {
			t.Error(err)
		}
	})
}

// A call whose ctx ends while it waits at a member is charged to none.
func TestPool_CancelledCallIsNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, buckets := poolOf(t, 2, outbound.PerMinute(60))
		admitted(t, p, 1)
		admitted(t, p, 1)
		c := comeIn(t, 500*ms, p, 1)
		if pass(2500 * ms); !errors.Is(c.ended().err, context.DeadlineExceeded) {
			t.Error(c.ended().err)
		}
		for _, b := range buckets {
			if is, err := b.State(bg); err != nil || is.Level > 0 || !p.Idle() {
				t.Errorf("%v, %v", is, err)
			}
		}
	})
}
