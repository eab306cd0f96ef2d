package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
	"github.com/dripfeed/dripfeed/transport"
)

// each does n jobs, 8 at a time.
func each(t *testing.T, l outbound.Limiter, cost outbound.Cost, n int, job func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for _, err := range outbound.Each(ctx, l, cost, 8, slices.Values(make([]int, n)), func(ctx context.Context, _ int) error { return job(ctx) }) {
		fatalIf(t, err != nil, "%v", err)
	}
}

// together calls f n times at the same time.
func together(n int, f func() error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = f() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// A job's permit pays for its request, whatever is around the bucket in the job and in the client.
func TestJobPermit_PaysWhateverIsAroundTheBucket(t *testing.T) {
	type limiter = outbound.Limiter
	queued := func(b *outbound.Bucket) limiter { return queue.New(b, queue.Config{}) }
	keyed := func(b *outbound.Bucket) *outbound.Keyed[string] {
		return &outbound.Keyed[string]{New: func(string) (limiter, error) { return queued(b), nil }}
	}
	observed := func(l limiter) limiter { return outbound.Observe(l, "b", func(context.Context, outbound.Event) {}) }
	for name, limiters := range map[string]func(*outbound.Bucket) (job, client limiter){
		"the same queue":                       func(b *outbound.Bucket) (limiter, limiter) { q := queued(b); return q, q },
		"a queue, and the bucket":              func(b *outbound.Bucket) (limiter, limiter) { return queued(b), b },
		"an observed queue, and another queue": func(b *outbound.Bucket) (limiter, limiter) { return observed(queued(b)), queued(b) },
		"a scheduler, and a queue":             func(b *outbound.Bucket) (limiter, limiter) { return jobs.New(b, jobs.Config{}), queued(b) },
		"two handles of a key": func(b *outbound.Bucket) (limiter, limiter) {
			k := keyed(b)
			return k.For("b"), k.For("b")
		},
		"a handle, and the key's bucket":          func(b *outbound.Bucket) (limiter, limiter) { return keyed(b).For("b"), b },
		"a queue around the bucket, and a handle": func(b *outbound.Bucket) (limiter, limiter) { return queued(b), observed(keyed(b).For("b")) },
	} {
		bubble(t, name, func(t *testing.T) {
			b := bucket(slow)
			job, client := limiters(b)
			for n := range 3 {
				err := outbound.Do(t.Context(), job, outbound.Cost{1}, func(ctx context.Context) error {
					return get(ctx, &transport.Transport{Base: answer(200, nil), Limiter: client})
				})
				wantCharged(t, b, float64(n+1))
				check(t, err)
			}
		})
	}
}

// Jobs that hold all calls in flight can send as many requests as they like, and none of these waits
// for a job to end.
func TestEachOverAPacedClient_InFlightNeverDeadlocks(t *testing.T) {
	for _, requests := range []int{1, 2, 4} {
		for _, parallel := range []bool{false, true} {
			for kind, limits := range map[string][]outbound.Limit{
				"in flight":              {outbound.InFlight(5)},
				"in flight, 20 a second": {outbound.PerSecond(20), outbound.InFlight(5)},
			} {
				bubble(t, fmt.Sprintf("%d requests, parallel %v, %s", requests, parallel, kind), func(t *testing.T) {
					const items = 40
					q := queue.New(bucket(limits...), queue.Config{})
					api := &outboundtest.API{Latency: 50 * time.Millisecond}
					rt := &transport.Transport{Base: api, Limiter: q}
					var mu sync.Mutex
					jobs, most := 0, 0
					begin := time.Now()
					each(t, q, outbound.Cost{1}, items, func(ctx context.Context) error {
						mu.Lock()
						jobs++
						most = max(most, jobs)
						mu.Unlock()
						defer func() { mu.Lock(); jobs--; mu.Unlock() }()
						send := func() error { return get(ctx, rt) }
						if parallel {
							return together(requests, send)
						}
						errs := make([]error, requests)
						for i := range errs {
							errs[i] = send()
						}
						return errors.Join(errs...)
					})
					n := api.Report().Arrivals
					errorIf(t, n != items*requests, "%d requests, want %d", n, items*requests)
					errorIf(t, most > 5, "%d jobs at the same time, want 5 at most", most)
					ideal := time.Duration(0)
					if len(limits) > 1 {
						ideal = time.Duration(items*requests-1) * 50500 * time.Microsecond
					}
					if took := time.Since(begin); took < ideal || took > ideal+ideal/20+2*time.Second {
						t.Errorf("took %v, want %v and little more", took, ideal)
					}
					time.Sleep(time.Second) // what is forgotten with a bucket includes its last call
					s := q.Stats()
					errorIf(t, !q.Idle() || s.Waiting != 0, "the queue is not idle: %+v", s)
				})
			}
		}
	}
}

// The job's permit pays once. What follows is charged as usual: redirects, retries, and what comes
// after the job. What the job has settled, as after a hit in a cache, pays for no request.
func TestJobPermit_PaysForTheFirstRequestOnly(t *testing.T) {
	ok := answer(200, nil)
	paced := func(l outbound.Limiter) http.RoundTripper { return &transport.Transport{Base: ok, Limiter: l} }
	within := func(ctx context.Context, l outbound.Limiter, rt http.RoundTripper, requests int) error {
		return outbound.Do(ctx, l, outbound.Cost{1}, func(ctx context.Context) error {
			var err error
			for range requests {
				err = errors.Join(err, get(ctx, rt))
			}
			return err
		})
	}
	for name, c := range map[string]struct {
		job  func(ctx context.Context, b *outbound.Bucket) error
		want float64
	}{
		"one request": {func(ctx context.Context, b *outbound.Bucket) error { return get(ctx, paced(b)) }, 1},
		"three requests": {func(ctx context.Context, b *outbound.Bucket) error {
			return errors.Join(get(ctx, paced(b)), get(ctx, paced(b)), get(ctx, paced(b)))
		}, 3},
		"none":             {func(context.Context, *outbound.Bucket) error { return nil }, 1},
		"another bucket's": {func(ctx context.Context, b *outbound.Bucket) error { return get(ctx, paced(bucket(slow))) }, 1},
		"after Done": {func(ctx context.Context, b *outbound.Bucket) error {
			outbound.PermitFrom(ctx).Done()
			return get(ctx, paced(b))
		}, 2},
		"after Settle": {func(ctx context.Context, b *outbound.Bucket) error {
			outbound.PermitFrom(ctx).Settle(outbound.Cost{})
			return get(ctx, paced(b))
		}, 1},
		"a redirect": {func(ctx context.Context, b *outbound.Bucket) error {
			return get(ctx, &transport.Transport{Limiter: b, Base: roundTripper(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == "/" {
					return answer(http.StatusFound, nil, "Location", "http://api.test/other")(req)
				}
				return ok(req)
			})})
		}, 2},
		"a job within another": {func(ctx context.Context, b *outbound.Bucket) error {
			return within(ctx, bucket(slow), paced(b), 1)
		}, 1},
		"a job of the same bucket within another": {func(ctx context.Context, b *outbound.Bucket) error {
			return within(ctx, b, paced(b), 3)
		}, 3},
		"two requests together": {func(ctx context.Context, b *outbound.Bucket) error {
			return together(2, func() error { return get(ctx, paced(b)) })
		}, 2},
		"a limiter without Unwrap": {func(ctx context.Context, b *outbound.Bucket) error {
			opaque := struct{ outbound.Limiter }{b}
			return within(ctx, opaque, paced(opaque), 1)
		}, 2},
		"a limiter that cannot be compared": {func(ctx context.Context, b *outbound.Bucket) error {
			return within(ctx, limiterFunc(b.Acquire), paced(limiterFunc(b.Acquire)), 1)
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			b := bucket(slow)
			check(t, outbound.Do(t.Context(), b, outbound.Cost{1}, func(ctx context.Context) error { return c.job(ctx, b) }))
			wantCharged(t, b, c.want)
		})
	}
}

// A request that the program sends after the job has ended, with the job's ctx, is acquired as usual.
func TestJobPermit_EndsWithTheJob(t *testing.T) {
	b := bucket(slow, outbound.InFlight(1))
	rt := &transport.Transport{Base: answer(200, nil), Limiter: b}
	var left context.Context
	_ = outbound.Do(t.Context(), b, outbound.Cost{1}, func(ctx context.Context) error { left = ctx; return nil })
	permit := must(b.Acquire(t.Context(), outbound.Cost{1}))
	if err := get(left, rt); !errors.Is(err, outbound.ErrThrottled) {
		t.Errorf("a request after its job, during another call in flight: %v, want ErrThrottled", err)
	}
	permit.Done()
	check(t, get(left, rt))
	wantCharged(t, b, 3)
}

// A request that costs more than its job is charged for the difference before it leaves. What it
// really cost counts in the end.
func TestJobPermit_SettlesUpToTheRequestsCost(t *testing.T) {
	for _, queued := range []bool{false, true} {
		for _, used := range []outbound.Cost{{}, {1, 700}, {1, 450}, {1, 30}, {5, 900}} {
			t.Run(fmt.Sprint(queued, used), func(t *testing.T) {
				b := bucket(slow, slow.Of(1, "tokens"))
				l := outbound.Limiter(b)
				if queued {
					l = queue.New(b, queue.Config{})
				}
				rt := &transport.Transport{
					Limiter: l,
					Cost:    func(*http.Request) outbound.Cost { return outbound.Cost{1, 500} },
					Used:    func(*http.Response) (outbound.Cost, bool) { return used, used != outbound.Cost{} },
					Base: roundTripper(func(req *http.Request) (*http.Response, error) {
						wantCharged(t, b, 3, 500)
						return answer(200, nil)(req)
					}),
				}
				check(t, outbound.Do(t.Context(), l, outbound.Cost{3, 100}, func(ctx context.Context) error { return get(ctx, rt) }))
				if used == (outbound.Cost{}) {
					used = outbound.Cost{3, 500}
				}
				wantCharged(t, b, used[0], used[1])
			})
		}
	}
}

// A job that costs less than its request, or nothing, paces nothing: the request waits for the
// difference.
func TestJobPermit_TheDifferenceIsPaced(t *testing.T) {
	for name, c := range map[string]struct {
		limits       []outbound.Limit
		job, request outbound.Cost
		want         time.Duration
	}{
		"tokens": {[]outbound.Limit{outbound.PerSecond(1000), outbound.PerSecond(100).Of(1, "tokens").Burst(10)}, outbound.Cost{1}, outbound.Cost{1, 10}, 11 * time.Second},
		"free":   {[]outbound.Limit{outbound.PerSecond(10)}, outbound.Cost{outbound.Free}, outbound.Cost{1}, 9900 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := queue.New(bucket(c.limits...), queue.Config{})
			rt := &transport.Transport{Limiter: q, Cost: func(*http.Request) outbound.Cost { return c.request }, Base: answer(200, nil)}
			begin := time.Now()
			each(t, q, c.job, 100, func(ctx context.Context) error { return get(ctx, rt) })
			if d := time.Since(begin); d < c.want-200*time.Millisecond || d > c.want+300*time.Millisecond {
				t.Errorf("%s: 100 jobs took %v, want about %v", name, d, c.want)
			}
		})
	}
}

// A request that can never be admitted is refused, also by a nil queue, and charges nothing in
// addition to the job.
func TestJobPermit_RefusesWhatCanNeverBeAdmitted(t *testing.T) {
	var none *queue.Queue
	for _, c := range []struct {
		cost outbound.Cost
		l    outbound.Limiter // nil: the bucket
		want error
	}{
		{outbound.Cost{2000}, nil, outbound.ErrTooLarge},
		{outbound.Cost{}, nil, outbound.ErrInvalid},
		{outbound.Cost{-1}, nil, outbound.ErrInvalid},
		{outbound.Cost{outbound.Free}, nil, nil},
		{outbound.Cost{1}, none, outbound.ErrInvalid},
	} {
		b := bucket(slow)
		rt := &transport.Transport{Limiter: b, Cost: func(*http.Request) outbound.Cost { return c.cost }, Base: answer(200, nil)}
		if c.l != nil {
			rt.Limiter = c.l
		}
		err := outbound.Do(t.Context(), b, outbound.Cost{1}, func(ctx context.Context) error { return get(ctx, rt) })
		errorIf(t, !errors.Is(err, c.want), "cost %v: %v, want %v", c.cost, err, c.want)
		wantCharged(t, b, 1)
	}
}

// A 429 to a job's request holds the bucket, and the listener of the job's permit gets it.
func TestJobPermit_ListensToTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(slow)
		rt := &transport.Transport{Limiter: b, Base: answer(429, nil, "Retry-After", "7")}
		var got listener
		_ = outbound.Do(t.Context(), b, outbound.Cost{1}, func(ctx context.Context) error {
			outbound.PermitFrom(ctx).Listen(&got)
			errorIf(t, outbound.PermitFrom(ctx).Pending(),
				"a permit of a bucket without InFlight has something to free")
			return get(ctx, rt)
		})
		if s := stateOf(t, b); s.HeldFor != 7*time.Second || len(got) != 1 || got[0].Kind != outbound.AnswerRefused {
			t.Errorf("held for %v, want 7s; got %+v, want one refusal", s.HeldFor, got)
		}
	})
}

// The request and its job may use the permit at the same time, also when the job has ended before
// the request.
func TestJobPermit_IsSafeForBoth(t *testing.T) {
	b := bucket(slow)
	arrived := make(chan struct{})
	rt := &transport.Transport{
		Limiter: b,
		Used:    func(*http.Response) (outbound.Cost, bool) { return outbound.Cost{2}, true },
		Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			arrived <- struct{}{}
			return answer(429, nil, "Retry-After", "0")(req)
		}),
	}
	var all sync.WaitGroup
	for range 100 {
		_ = outbound.Do(t.Context(), b, outbound.Cost{1}, func(ctx context.Context) error {
			all.Go(func() { _ = get(ctx, rt) })
			<-arrived
			outbound.PermitFrom(ctx).Settle(outbound.Cost{1})
			outbound.PermitFrom(ctx).Hold(0)
			return nil
		})
	}
	all.Wait()
}

// A request outside of a job pays nothing for the search of a job's permit.
func TestTransport_AllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}
	base := roundTripper(func(*http.Request) (*http.Response, error) { return resp, nil })
	req := newRequest(t, nil).WithContext(context.WithValue(context.Background(), io.EOF, 1))
	count := func(rt http.RoundTripper) float64 {
		return testing.AllocsPerRun(100, func() { _, _ = rt.RoundTrip(req) })
	}
	wide := bucket(outbound.Limit{Capacity: 1e9, LeakRate: 1e9})
	plain, paced := count(base), count(&transport.Transport{Base: base, Limiter: wide})
	errorIf(t, paced > plain, "%v allocations, and %v without a Transport", paced, plain)
}
