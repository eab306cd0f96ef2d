package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
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
		must(t, err)
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
			all := make(calls, 300)
			for i := range all {
				all[i] = comeAndUse(bg, p, done, 1)
			}
			pass(time.Second)
			ideal := time.Minute
			if held { // four members for a minute, and then all
				ideal += 12 * time.Second
				must(t, buckets[2].Hold(bg, time.Minute))
			}
			pass(3 * time.Minute)
			slices.SortFunc(all, func(a, b *call) int { return a.ended().left.Compare(b.ended().left) })
			n, _ := all.admitted()
			p99 := all[len(all)*99/100].took()
			t.Logf("held: %v: p99 %v", held, p99)
			errorIf(t, n != len(all) || p99 > ideal*11/10, "held: %v: %d calls, p99 %v, want %v", held, n, p99, ideal)
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
		slices.Sort(members)
		errorIf(t, !slices.Equal(members, []int{0, 1, 2}), "members %v", members)
		c := come(bg, p, 1)
		errorIf(t, c.refused().RetryAfter != 2*time.Second, "%v, want to retry in 2 s", c.ended().err)
		var other outbound.Pool
		_, err := other.Acquire(bg, one)
		errorIf(t, !errors.Is(err, outbound.ErrInvalid) || other.Member(nil) != -1, "%v", err)
		_, err = p.Acquire(bg, outbound.Cost{2})
		errorIf(t, !errors.Is(err, outbound.ErrTooLarge), "%v", err)
	})
}

// A call whose ctx ends while it waits at a member is charged to none.
func TestPool_CancelledCallIsNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, buckets := poolOf(t, 2, outbound.PerMinute(60))
		admitted(t, p, 1)
		admitted(t, p, 1)
		c := comeIn(t, 500*ms, p, 1)
		pass(2500 * ms)
		errorIf(t, !errors.Is(c.ended().err, context.DeadlineExceeded), "%v", c.ended().err)
		for _, b := range buckets {
			is, err := b.State(bg)
			errorIf(t, err != nil || is.Level > 0 || !p.Idle(), "%v, %v", is, err)
		}
	})
}

// Jobs that fail at one member, in silence or with a report, cost the other members nothing. The dead
// member gets a probe a second at most, and is used within 5 s of its recovery, even if no more jobs
// come.
func TestPool_DeadMemberOfJobs(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	for _, c := range []struct {
		name    string
		workers int // 0: all jobs come at the beginning
		fail    func(context.Context)
	}{
		{"error", 10, func(context.Context) {}},
		{"Failed", 10, func(ctx context.Context) { outbound.PermitFrom(ctx).Failed() }},
		{"Failed, all at the beginning", 0, func(ctx context.Context) { outbound.PermitFrom(ctx).Failed() }},
	} {
		for dead := range 3 {
			synctest.Test(t, func(t *testing.T) {
				p, _ := poolOf(t, 3, outbound.PerSecond(10))
				begin := time.Now()
				var mu sync.Mutex
				var probes, back []time.Duration
				answered := 0
				job := func(ctx context.Context) error {
					at, m := time.Since(begin), p.Member(outbound.PermitFrom(ctx))
					mu.Lock()
					if m == dead && at < 30*time.Second {
						probes = append(probes, at)
						mu.Unlock()
						c.fail(ctx)
						return errors.New("dead")
					}
					mu.Unlock()
					time.Sleep(50 * ms)
					mu.Lock()
					defer mu.Unlock()
					if at < 30*time.Second {
						answered++
					}
					if m == dead {
						back = append(back, at)
					}
					return nil
				}
				var all sync.WaitGroup
				for range c.workers {
					all.Go(func() {
						for time.Since(begin) < 36*time.Second {
							_ = outbound.Do(bg, p, one, job)
						}
					})
				}
				for range 900 * (10 - c.workers) / 10 {
					all.Go(func() { _ = outbound.Do(bg, p, one, job) })
				}
				all.Wait()
				late := probes[max(0, slices.IndexFunc(probes, func(d time.Duration) bool { return d > 2*time.Second })):]
				errorIf(t, answered < 588 || len(late) > 15,
					"%s, member %d: %d answered, want 600; probes at %v", c.name, dead, answered, probes)
				if len(back) == 0 || back[0] > 35*time.Second {
					t.Errorf("%s: member %d is not back: %v", c.name, dead, back[:min(len(back), 1)])
				}
			})
		}
	}
}

// Three calls without an answer for eight times as long as usual are a failure, before the first of
// them ends. Later calls go elsewhere.
func TestPool_SilentMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOf(t, 2, outbound.Limit{Capacity: 1, LeakRate: 100})
		ctx, cancel := context.WithCancel(bg)
		var all sync.WaitGroup
		var asked atomic.Int32
		for i := range 400 {
			all.Go(func() {
				_ = outbound.Do(ctx, p, one, func(ctx context.Context) error {
					if p.Member(outbound.PermitFrom(ctx)) == 0 && i >= 10 {
						asked.Add(1)
						<-ctx.Done()
						return ctx.Err()
					}
					time.Sleep(10 * ms)
					return nil
				})
			})
			time.Sleep(50 * ms)
		}
		n := asked.Load()
		errorIf(t, n > 25, "%d calls at the silent member", n)
		cancel()
		all.Wait()
	})
}

// Calls leave a member that fails, or takes much longer than usual, although none would wait there. One
// that has failed fast is back within 5 s of its recovery, although no call would wait elsewhere.
func TestPool_LeavesAMemberAndComesBack(t *testing.T) {
	for name, bad := range map[string]func(*outbound.Permit){
		"fails":   func(p *outbound.Permit) { time.Sleep(10 * ms); p.Failed() },
		"is slow": func(p *outbound.Permit) { time.Sleep(2 * time.Second); p.Done() },
	} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := poolOf(t, 2, outbound.Limit{Capacity: 10, LeakRate: 1000})
			p.Repeats = func(context.Context) bool { return true }
			begin, tries, back := time.Now(), 0, time.Duration(0)
			var all sync.WaitGroup
			for time.Since(begin) < 40*time.Second {
				permit := admitted(t, p, 1)
				at := time.Since(begin)
				is := p.Member(&permit) == 0 && at > 10*time.Second && at < 25*time.Second
				if is {
					tries++
				} else if p.Member(&permit) == 0 && at >= 25*time.Second && back == 0 {
					back = at
				}
				all.Go(func() {
					if is {
						bad(&permit)
					}
					time.Sleep(20 * ms)
					permit.Done()
				})
				time.Sleep(20 * ms)
			}
			errorIf(t, tries == 0 || tries > 75, "%s: %d of 750 calls at the member", name, tries)
			errorIf(t, name == "fails" && (back == 0 || back > 30*time.Second), "%s: back after %v, want 30 s at most", name, back)
			all.Wait()
		})
	}
}

// Calls that were never sent are no calls without an answer.
func TestPool_UnsentCallsAreNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOf(t, 2, outbound.Limit{Capacity: 10, LeakRate: 1})
		for i := range 4 {
			permit := admitted(t, p, 1)
			if i > 0 {
				permit.Settle(outbound.Cost{})
			}
			permit.Done()
		}
		pass(10 * time.Second)
		permit := admitted(t, p, 1)
		errorIf(t, p.Member(&permit) != 0, "the next call goes to member %d", p.Member(&permit))
	})
}

// What is usual follows the calls slowly: one of half a second does not make 1.5 s usual.
func TestPool_UsualIsAnAverage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOf(t, 2, outbound.Limit{Capacity: 1, LeakRate: 1})
		for _, takes := range []time.Duration{10 * ms, 500 * ms, 1500 * ms} {
			first, second := admitted(t, p, 1), admitted(t, p, 1)
			if takes > time.Second {
				second.Done()
			}
			pass(takes)
			first.Done()
			second.Done()
			pass(2 * time.Second)
		}
		permit := admitted(t, p, 1)
		errorIf(t, p.Member(&permit) != 1, "after a slow call at member 0 the next goes to member %d", p.Member(&permit))
	})
}

// When a member's rest ends, one of the calls that wait elsewhere probes it, and the others keep their
// order. A probe that was never sent is no success: the member rests no longer for it, and the next call
// that would wait probes it.
func TestPool_OneCallProbesAMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOf(t, 2, outbound.PerMinute(60))
		dead, fine := admitted(t, p, 1), admitted(t, p, 1)
		fine.Done()
		pass(1100 * ms)
		dead.Failed()
		var mu sync.Mutex
		var waited, probes []int
		calls := func(from, to int) {
			for i := range to - from {
				comeAndUse(bg, p, func(permit *outbound.Permit) {
					mu.Lock()
					defer mu.Unlock()
					if p.Member(permit) == 1 {
						waited = append(waited, i+from)
					} else if probes = append(probes, i+from); len(probes) == 1 {
						permit.Failed()
					} else {
						permit.Settle(outbound.Cost{})
					}
					permit.Done()
				}, 1)
			}
		}
		want := func(n int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			errorIf(t, !slices.IsSorted(waited) || len(probes) != n, "%v were admitted in turn, and %v as probes, want %d", waited, probes, n)
		}
		calls(0, 9)
		pass(2500 * ms) // a second later one has probed the member, which rests for two more
		want(1)
		pass(600 * ms)
		want(2)
		calls(9, 10)
		want(3)
		pass(time.Minute)
	})
}

// looked is a member of a pool that says how long a call would wait, and admits it when it may.
type looked struct {
	wait  time.Duration
	ahead int
	admit chan struct{}
}

func (l *looked) Explain(context.Context, outbound.Cost) (outbound.Explanation, error) {
	return outbound.Explanation{Wait: l.wait, Ahead: l.ahead}, nil
}

func (l *looked) Acquire(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
	select {
	case <-l.admit:
		return outbound.Permit{}, nil
	case <-ctx.Done():
		return outbound.Permit{}, ctx.Err()
	}
}

// Without failures a call goes to the least wait, then to the fewest calls that wait, then to the
// first member: as in a pool that knows no failures.
func TestPool_HealthyMembersChoose(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			p, waiting := new(outbound.Pool), make([]int, 1+r.IntN(5))
			members := make([]*looked, len(waiting))
			for i := range members {
				members[i] = &looked{admit: make(chan struct{})}
				p.Members = append(p.Members, members[i])
			}
			permits := make(chan *outbound.Permit, 300)
			admit := func(i int) {
				select {
				case members[i].admit <- struct{}{}:
				default:
					t.Fatalf("seed %d: no call at member %d, %v", seed, i, waiting)
				}
			}
			for range 100 {
				best, least := -1, time.Duration(0)
				for i, m := range members {
					m.ahead, m.wait = r.IntN(waiting[i]+1), time.Duration(r.IntN(3))*time.Second
					each := cmp.Or(m.wait/time.Duration(m.ahead+1), time.Second)
					w := m.wait + each*time.Duration(waiting[i]-m.ahead)
					if best < 0 || w < least || w == least && waiting[i] < waiting[best] {
						best, least = i, w
					}
				}
				go func() {
					permit, err := p.Acquire(bg, one)
					if err == nil {
						permits <- &permit
					}
				}()
				synctest.Wait()
				waiting[best]++
				for i := range members {
					for waiting[i] > 0 && r.IntN(2) == 0 {
						admit(i)
						synctest.Wait()
						waiting[i]--
						permit := <-permits
						permit.Done()
					}
				}
			}
			for i, n := range waiting {
				for range n {
					admit(i)
				}
			}
		})
	}
}

// A job that fails because its caller has hung up is no failure of its member: the next tie goes to
// that member as before.
func TestPool_EndedCallCountsAsNothing(t *testing.T) {
	for next, hangsUp := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := poolOf(t, 2, outbound.Limit{Capacity: 10, LeakRate: 1})
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			_ = outbound.Do(ctx, p, one, func(context.Context) error {
				if hangsUp {
					cancel()
				}
				return errors.New("no answer")
			})
			permit := admitted(t, p, 1)
			errorIf(t, p.Member(&permit) != next, "hangs up: %v: the next call goes to member %d", hangsUp, p.Member(&permit))
		})
	}
}

// If all members would rest, none does: the next call is admitted immediately.
func TestPool_AllFailAndNoneRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOf(t, 2, outbound.Limit{Capacity: 1, LeakRate: 0.5})
		first, second := admitted(t, p, 1), admitted(t, p, 1)
		pass(2 * time.Second)
		first.Failed()
		second.Failed()
		begin, members := time.Now(), 0
		for range 2 {
			permit := admitted(t, p, 1)
			members += 1 + p.Member(&permit)
		}
		errorIf(t, members != 1+2 || time.Since(begin) != 0, "members 0 and 1 add up to %d after %v", members, time.Since(begin))
	})
}

// One error of a job rests a member that the job probes, also if the member has failed only once before.
func TestPool_OneErrorOfAProbeRestsAMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, buckets := poolOf(t, 2, outbound.Limit{Capacity: 100, LeakRate: 1})
		fails := func() {
			_ = outbound.Do(bg, p, one, func(ctx context.Context) error {
				errorIf(t, p.Member(outbound.PermitFrom(ctx)) != 0, "the job runs at the other member")
				return errors.New("dead")
			})
		}
		fails()
		for range 50 { // from then on a job may probe it
			permit := admitted(t, p, 1)
			permit.Done()
		}
		pass(1100 * ms)
		fails()
		must(t, buckets[1].Hold(bg, time.Minute))
		c := come(bg, p, 1)
		pass(time.Minute)
		c.wantWait(t, time.Second)
	})
}

// asked is a ctx that does something when it is asked for its end.
type asked struct {
	context.Context
	do func()
}

func (a asked) Done() <-chan struct{} { a.do(); return a.Context.Done() }

// If a member begins to rest after a call has chosen it, and before the call asks it, the call goes to
// another one.
func TestPool_MemberRestsBeforeItIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := poolOf(t, 2, outbound.Limit{Capacity: 10, LeakRate: 1})
		dead := admitted(t, p, 1)
		pass(1100 * ms)
		permit, err := p.Acquire(asked{bg, sync.OnceFunc(dead.Failed)}, one)
		errorIf(t, err != nil || p.Member(&permit) != 1, "%v, the call went to member %d, which rests", err, p.Member(&permit))
	})
}

// When a member's rest ends, a call of the longest line probes it.
func TestPool_LongestLineProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free, waits := make(chan struct{}), make(chan struct{})
		close(free)
		short, long := &looked{wait: 20 * time.Second, admit: waits}, &looked{wait: time.Minute, admit: waits}
		p := &outbound.Pool{Members: []outbound.Limiter{&looked{admit: free}, short, long}}
		dead := admitted(t, p, 1)
		pass(1100 * ms)
		dead.Failed()
		ctx, cancel := context.WithCancel(bg)
		first := come(ctx, p, 1)
		short.wait = time.Hour
		others := comeAll(2, ctx, p, 1)
		pass(1100 * ms)
		n, _ := others.admitted()
		errorIf(t, first.admitted() || n != 1, "of the short line %v and of the long one %d calls were admitted", first.admitted(), n)
		cancel()
	})
}
