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

// poolOf returns a pool of queues of 60 calls a minute each, and their buckets.
func poolOf(n int) (p *outbound.Pool, buckets []*outbound.Bucket) {
	p = new(outbound.Pool)
	for i := range n {
		buckets = append(buckets, outbound.Must(outbound.NewBucket(fmt.Sprint("key ", i), outbound.PerMinute(60))))
		p.Members = append(p.Members, New(buckets[i], Config{}))
	}
	return p, buckets
}

// Five members of 60 calls a minute admit 300 a minute, calls that come together too. One that is
// held for a minute delays the slowest calls by a tenth at most.
func TestPool_UsesAllMembers(t *testing.T) {
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p, buckets := poolOf(5)
			var mu sync.Mutex
			var left []time.Duration
			by := make([]int, 5)
			begin := time.Now()
			const calls = 300
			for range calls {
				go func() {
					err := outbound.Do(bg, p, outbound.Cost{1}, func(ctx context.Context) error {
						mu.Lock()
						defer mu.Unlock()
						left = append(left, time.Since(begin))
						by[p.Member(outbound.PermitFrom(ctx))]++
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}()
			}
			pass(time.Second)
			if held {
				if err := buckets[2].Hold(bg, time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			pass(3 * time.Minute)
			slices.Sort(left)
			ideal := time.Minute
			if held { // four members for a minute, and then all
				ideal = time.Minute + 12*time.Second
			}
			p99 := left[len(left)*99/100]
			t.Logf("held: %v: p99 %v, by each %v", held, p99, by)
			if len(left) != calls || p99 > ideal*11/10 {
				t.Errorf("held: %v: %d calls, p99 %v, want %v; by each %v", held, len(left), p99, ideal, by)
			}
		})
	}
}

// Calls that wait for as long as other calls run keep their order, because no member is better.
func TestPool_KeepsOrderAtEqualMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(outbound.Pool)
		for i := range 2 {
			p.Members = append(p.Members, New(outbound.Must(outbound.NewBucket(fmt.Sprint(i), outbound.InFlight(1))), Config{}))
		}
		begin := time.Now()
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				_ = outbound.Do(bg, p, outbound.Cost{1}, func(context.Context) error {
					if want := time.Duration(n/2) * 10 * time.Second; time.Since(begin).Round(time.Second) != want {
						t.Errorf("call %d leaves after %v, want %v", n, time.Since(begin), want)
					}
					time.Sleep(10 * time.Second)
					return nil
				})
			})
			time.Sleep(ms)
		}
		wg.Wait()
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
			permit, err := p.Acquire(bg, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			m := p.Member(&permit)
			if members = append(members, m); m == 0 {
				permit.Refused(time.Hour)
			}
			permit.Done()
		}
		if slices.Sort(members); !slices.Equal(members, []int{0, 1, 2}) {
			t.Errorf("members %v", members)
		}
		_, err := p.Acquire(bg, outbound.Cost{1})
		if full, ok := errors.AsType[*outbound.ThrottledError](err); !ok || full.RetryAfter != 2*time.Second {
			t.Errorf("%v, want to retry in 2 s", err)
		}
		var other outbound.Pool
		if _, err := other.Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) || other.Member(nil) != -1 {
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
		p, buckets := poolOf(2)
		for range 2 {
			if _, err := p.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(bg, 500*ms)
		defer cancel()
		if _, err := p.Acquire(ctx, outbound.Cost{1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		for _, b := range buckets {
			if is, err := b.State(bg); err != nil || is.Level > 0 || !p.Idle() {
				t.Errorf("%v, %v", is, err)
			}
		}
	})
}
