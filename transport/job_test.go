package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
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

// get sends a request with ctx and reads the response to its end.
func get(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return err
}

func numbers(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// paced returns a client whose requests the limiter admits, and its API, which refuses nothing.
func paced(l outbound.Limiter) (*http.Client, *outboundtest.API) {
	api := &outboundtest.API{Latency: 50 * time.Millisecond}
	return &http.Client{Transport: &transport.Transport{Base: api, Limiter: l}}, api
}

// level returns what the bucket's first limit has been charged.
func level(t *testing.T, b *outbound.Bucket) float64 {
	t.Helper()
	s, err := b.States(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s[0].Level
}

// slow is a limit that hardly leaks, so that its level counts what was charged.
var slow = outbound.Limit{Capacity: 1000, LeakRate: 1e-6}

// A job's permit pays for its request, whatever is around the bucket in the job and in the client.
func TestEachOverAPacedClient_ChargesOnce(t *testing.T) {
	for name, limiters := range map[string]func(*outbound.Bucket) (job, client outbound.Limiter){
		"the same queue": func(b *outbound.Bucket) (outbound.Limiter, outbound.Limiter) {
			q := queue.New(b, queue.Config{})
			return q, q
		},
		"a queue, and the bucket": func(b *outbound.Bucket) (outbound.Limiter, outbound.Limiter) {
			return queue.New(b, queue.Config{}), b
		},
		"an observed queue, and another queue": func(b *outbound.Bucket) (outbound.Limiter, outbound.Limiter) {
			return outbound.Observe(queue.New(b, queue.Config{}), "b", func(context.Context, outbound.Event) {}), queue.New(b, queue.Config{})
		},
		"a scheduler, and a queue": func(b *outbound.Bucket) (outbound.Limiter, outbound.Limiter) {
			return waits{jobs.New(b, jobs.Config{})}, queue.New(b, queue.Config{})
		},
		"two handles of a key": func(b *outbound.Bucket) (outbound.Limiter, outbound.Limiter) {
			k := keyedOf(b)
			return k.For("b"), k.For("b")
		},
		"a handle, and the key's bucket": func(b *outbound.Bucket) (outbound.Limiter, outbound.Limiter) {
			return keyedOf(b).For("b"), b
		},
		"a queue around the bucket, and a handle": func(b *outbound.Bucket) (outbound.Limiter, outbound.Limiter) {
			return queue.New(b, queue.Config{}), outbound.Observe(keyedOf(b).For("b"), "b", func(context.Context, outbound.Event) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				job, limiter := limiters(outbound.Must(outbound.NewBucket("b", outbound.PerSecond(20))))
				client, api := paced(limiter)
				begin := time.Now()
				for i, err := range outbound.Each(context.Background(), job, outbound.Cost{1}, 8, numbers(100), func(ctx context.Context, _ int) error {
					return get(ctx, client)
				}) {
					if err != nil {
						t.Fatalf("item %d: %v", i, err)
					}
				}
				if took := time.Since(begin); took < 4900*time.Millisecond || took > 5100*time.Millisecond {
					t.Errorf("100 items at 20 per second took %v, want 5s", took)
				}
				if n := api.Report().Arrivals; n != 100 {
					t.Errorf("%d requests, want 100", n)
				}
			})
		})
	}
}

// keyedOf returns a Keyed whose keys all have a queue around b.
func keyedOf(b *outbound.Bucket) *outbound.Keyed[string] {
	return &outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return queue.New(b, queue.Config{}), nil }}
}

// Jobs that hold all places in flight can send as many requests as they like. None of them waits for a place.
func TestEachOverAPacedClient_InFlightNeverDeadlocks(t *testing.T) {
	for _, requests := range []int{1, 2, 4} {
		for name, together := range map[string]bool{"one after another": false, "together": true} {
			for kind, limits := range map[string][]outbound.Limit{
				"in flight":              {outbound.InFlight(5)},
				"in flight, 20 a second": {outbound.PerSecond(20), outbound.InFlight(5)},
			} {
				t.Run(fmt.Sprintf("%d requests %s, %s", requests, name, kind), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						const items = 40
						bucket := outbound.Must(outbound.NewBucket("b", limits...))
						q := queue.New(bucket, queue.Config{})
						client, api := paced(q)
						var mu sync.Mutex
						jobs, most := 0, 0
						begin := time.Now()
						ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
						defer cancel()
						for i, err := range outbound.Each(ctx, q, outbound.Cost{1}, 8, numbers(items), func(ctx context.Context, _ int) error {
							mu.Lock()
							jobs++
							most = max(most, jobs)
							mu.Unlock()
							defer func() { mu.Lock(); jobs--; mu.Unlock() }()
							errs := make([]error, requests)
							var all sync.WaitGroup
							for i := range errs {
								all.Go(func() { errs[i] = get(ctx, client) })
								if !together {
									all.Wait()
								}
							}
							all.Wait()
							return errors.Join(errs...)
						}) {
							if err != nil {
								t.Fatalf("item %d: %v", i, err)
							}
						}
						if n := api.Report().Arrivals; n != items*requests {
							t.Errorf("%d requests, want %d", n, items*requests)
						}
						if most > 5 {
							t.Errorf("%d jobs at the same time, want 5 at most", most)
						}
						ideal := time.Duration(0)
						if len(limits) > 1 {
							ideal = time.Duration(items*requests-1) * 50500 * time.Microsecond
						}
						if took := time.Since(begin); took < ideal || took > ideal+ideal/20+2*time.Second {
							t.Errorf("took %v, want %v and little more", took, ideal)
						}
						time.Sleep(time.Second) // what is forgotten with a bucket includes its last call
						if s := q.Stats(); !q.Idle() || s.Waiting != 0 {
							t.Errorf("the queue is not idle: %+v", s)
						}
					})
				})
			}
		}
	}
}

// The job's permit pays once. What follows is charged as usual: redirects, retries, and what comes after the job.
func TestJobsPermit_PaysForTheFirstRequestOnly(t *testing.T) {
	for name, c := range map[string]struct {
		job  func(ctx context.Context, b *outbound.Bucket) error
		want float64
	}{
		"one request": {func(ctx context.Context, b *outbound.Bucket) error {
			client, _ := paced(b)
			return get(ctx, client)
		}, 1},
		"three requests": {func(ctx context.Context, b *outbound.Bucket) error {
			client, _ := paced(b)
			return errors.Join(get(ctx, client), get(ctx, client), get(ctx, client))
		}, 3},
		"two clients": {func(ctx context.Context, b *outbound.Bucket) error {
			one, _ := paced(b)
			two, _ := paced(b)
			return errors.Join(get(ctx, one), get(ctx, two))
		}, 2},
		"none": {func(context.Context, *outbound.Bucket) error { return nil }, 1},
		"another bucket's": {func(ctx context.Context, b *outbound.Bucket) error {
			client, _ := paced(outbound.Must(outbound.NewBucket("b", slow)))
			return get(ctx, client)
		}, 1},
		"after Done": {func(ctx context.Context, b *outbound.Bucket) error {
			client, _ := paced(b)
			outbound.PermitFrom(ctx).Done()
			return get(ctx, client)
		}, 2},
		"a redirect": {func(ctx context.Context, b *outbound.Bucket) error {
			hop := 0
			client := &http.Client{Transport: &transport.Transport{Limiter: b, Base: trips(func(req *http.Request) *http.Response {
				if hop++; hop == 1 {
					return reply(req, http.StatusFound, "Location", "http://api.test/other")
				}
				return reply(req, http.StatusOK)
			})}}
			return get(ctx, client)
		}, 2},
		"a job within another": {func(ctx context.Context, b *outbound.Bucket) error {
			client, _ := paced(b)
			other := outbound.Must(outbound.NewBucket("other", slow))
			return outbound.Do(ctx, other, outbound.Cost{1}, func(ctx context.Context) error { return get(ctx, client) })
		}, 1},
		"a job of the same bucket within another": {func(ctx context.Context, b *outbound.Bucket) error {
			client, _ := paced(b)
			return outbound.Do(ctx, b, outbound.Cost{1}, func(ctx context.Context) error {
				return errors.Join(get(ctx, client), get(ctx, client), get(ctx, client))
			})
		}, 3},
		"two requests together": {func(ctx context.Context, b *outbound.Bucket) error {
			client, _ := paced(b)
			errs := make([]error, 2)
			var all sync.WaitGroup
			for i := range errs {
				all.Go(func() { errs[i] = get(ctx, client) })
			}
			all.Wait()
			return errors.Join(errs...)
		}, 2},
		"a limiter without Unwrap": {func(ctx context.Context, b *outbound.Bucket) error {
			client, _ := paced(outbound.Limiter(opaque{b}))
			return outbound.Do(ctx, opaque{b}, outbound.Cost{1}, func(ctx context.Context) error { return get(ctx, client) })
		}, 2},
		"a limiter that cannot be compared": {func(ctx context.Context, b *outbound.Bucket) error {
			l := function(b.Acquire)
			client, _ := paced(l)
			return outbound.Do(ctx, l, outbound.Cost{1}, func(ctx context.Context) error { return get(ctx, client) })
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := outbound.Must(outbound.NewBucket("b", slow))
				if err := outbound.Do(context.Background(), b, outbound.Cost{1}, func(ctx context.Context) error { return c.job(ctx, b) }); err != nil {
					t.Fatal(err)
				}
				if got := level(t, b); got < c.want-1e-3 || got > c.want+1e-3 {
					t.Errorf("charged %v, want %v", got, c.want)
				}
			})
		})
	}
}

// A request that the program sends after the job has ended, with the job's ctx, is acquired as usual.
func TestJobsPermit_EndsWithTheJob(t *testing.T) {
	b := outbound.Must(outbound.NewBucket("b", slow, outbound.InFlight(1)))
	client, _ := paced(b)
	var left context.Context
	_ = outbound.Do(context.Background(), b, outbound.Cost{1}, func(ctx context.Context) error { left = ctx; return nil })
	permit, err := b.Acquire(context.Background(), outbound.Cost{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := get(left, client); !errors.Is(err, outbound.ErrThrottled) {
		t.Errorf("a request after its job, while all places are taken: %v, want ErrThrottled", err)
	}
	permit.Done()
	if err := get(left, client); err != nil {
		t.Error(err)
	}
	if got := level(t, b); got < 3-1e-3 || got > 3+1e-3 {
		t.Errorf("charged %v, want 3", got)
	}
}

// A request that costs more than its job is charged for the difference before it leaves. What it really cost counts
// in the end.
func TestJobsPermit_SettlesUpToTheRequestsCost(t *testing.T) {
	tokens := slow.Of(1, "tokens")
	for name, wrap := range map[string]func(*outbound.Bucket) outbound.Limiter{
		"a bucket": func(b *outbound.Bucket) outbound.Limiter { return b },
		"a queue":  func(b *outbound.Bucket) outbound.Limiter { return queue.New(b, queue.Config{}) },
	} {
		for _, used := range []outbound.Cost{{}, {1, 700}, {1, 450}, {1, 30}, {5, 900}} {
			t.Run(fmt.Sprint(name, used), func(t *testing.T) {
				b := outbound.Must(outbound.NewBucket("b", slow, tokens))
				l := wrap(b)
				charged := func(want outbound.Cost, when string) {
					t.Helper()
					all, err := b.States(context.Background())
					if err != nil {
						t.Fatal(err)
					}
					for i := range all {
						if got := all[i].Level; got < want[i]-1e-3 || got > want[i]+1e-3 {
							t.Errorf("%s: charged %v of limit %d, want %v", when, got, i, want[i])
						}
					}
				}
				client := &http.Client{Transport: &transport.Transport{
					Limiter: l,
					Cost:    func(*http.Request) outbound.Cost { return outbound.Cost{1, 500} },
					Used:    func(*http.Response) (outbound.Cost, bool) { return used, used != outbound.Cost{} },
					Base: trips(func(req *http.Request) *http.Response {
						charged(outbound.Cost{3, 500}, "on its way")
						return reply(req, http.StatusOK)
					}),
				}}
				err := outbound.Do(context.Background(), l, outbound.Cost{3, 100}, func(ctx context.Context) error { return get(ctx, client) })
				if err != nil {
					t.Fatal(err)
				}
				want := used
				if used == (outbound.Cost{}) {
					want = outbound.Cost{3, 500}
				}
				charged(want, "in the end")
			})
		}
	}
}

// A job that costs less than its request, or nothing, paces nothing: the request waits for the difference.
func TestJobsPermit_TheDifferenceIsPaced(t *testing.T) {
	for name, c := range map[string]struct {
		limits       []outbound.Limit
		job, request outbound.Cost
		want         time.Duration
	}{
		"tokens": {[]outbound.Limit{outbound.PerSecond(1000), outbound.PerSecond(100).Of(1, "tokens")}, outbound.Cost{1}, outbound.Cost{1, 10}, 11 * time.Second},
		"free":   {[]outbound.Limit{outbound.PerSecond(10)}, outbound.Cost{outbound.Free}, outbound.Cost{1}, 9900 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limits := c.limits
				if name == "tokens" {
					limits[1] = limits[1].Burst(10)
				}
				q := queue.New(outbound.Must(outbound.NewBucket("b", limits...)), queue.Config{})
				client := &http.Client{Transport: &transport.Transport{
					Limiter: q,
					Cost:    func(*http.Request) outbound.Cost { return c.request },
					Base:    trips(func(req *http.Request) *http.Response { return reply(req, http.StatusOK) }),
				}}
				begin := time.Now()
				for _, err := range outbound.Each(context.Background(), q, c.job, 8, slices.Values(make([]int, 100)), func(ctx context.Context, _ int) error { return get(ctx, client) }) {
					if err != nil {
						t.Fatal(err)
					}
				}
				if d := time.Since(begin); d < c.want-200*time.Millisecond || d > c.want+300*time.Millisecond {
					t.Errorf("100 jobs took %v, want about %v", d, c.want)
				}
			})
		})
	}
}

// What a job has settled, as after a hit in a cache, admits no request.
func TestJobsPermit_AdmitsNothingOnceSettled(t *testing.T) {
	b := outbound.Must(outbound.NewBucket("b", slow))
	client := &http.Client{Transport: &transport.Transport{
		Limiter: b,
		Base:    trips(func(req *http.Request) *http.Response { return reply(req, http.StatusOK) }),
	}}
	err := outbound.Do(context.Background(), b, outbound.Cost{1}, func(ctx context.Context) error {
		outbound.PermitFrom(ctx).Settle(outbound.Cost{})
		return get(ctx, client)
	})
	if s, _ := b.State(context.Background()); err != nil || s.Level < 0.99 {
		t.Errorf("%v: level %v, want the request's 1", err, s.Level)
	}
}

// A nil queue is an error in a job as well.
func TestJobsPermit_NilQueue(t *testing.T) {
	var none *queue.Queue
	client := &http.Client{Transport: &transport.Transport{Limiter: none}}
	err := outbound.Do(context.Background(), outbound.Unlimited{}, outbound.Cost{1}, func(ctx context.Context) error { return get(ctx, client) })
	if !errors.Is(err, outbound.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// A request that can never go is refused, and charges nothing beyond the job.
func TestJobsPermit_RefusesWhatCanNeverGo(t *testing.T) {
	for cost, want := range map[outbound.Cost]error{{2000}: outbound.ErrTooLarge, {}: outbound.ErrInvalid, {-1}: outbound.ErrInvalid, {outbound.Free}: nil} {
		b := outbound.Must(outbound.NewBucket("b", slow))
		rt := &transport.Transport{
			Limiter: b,
			Cost:    func(*http.Request) outbound.Cost { return cost },
			Base:    trips(func(req *http.Request) *http.Response { return reply(req, http.StatusOK) }),
		}
		err := outbound.Do(context.Background(), b, outbound.Cost{1}, func(ctx context.Context) error {
			return get(ctx, &http.Client{Transport: rt})
		})
		if !errors.Is(err, want) {
			t.Errorf("cost %v: %v, want %v", cost, err, want)
		}
		if got := level(t, b); got < 1-1e-3 || got > 1 {
			t.Errorf("cost %v: charged %v, want 1", cost, got)
		}
	}
}

// A 429 to a job's request holds the bucket, and who listens to the job's permit learns of it.
func TestJobsPermit_HearsWhatTheAPIAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("b", slow))
		client := &http.Client{Transport: &transport.Transport{Limiter: b, Base: trips(func(req *http.Request) *http.Response {
			return reply(req, http.StatusTooManyRequests, "Retry-After", "7")
		})}}
		var heard answers
		_ = outbound.Do(context.Background(), b, outbound.Cost{1}, func(ctx context.Context) error {
			outbound.PermitFrom(ctx).Listen(&heard)
			if outbound.PermitFrom(ctx).Pending() {
				t.Error("a permit of a bucket without InFlight has something to free")
			}
			return get(ctx, client)
		})
		if s, _ := b.State(context.Background()); s.HeldFor != 7*time.Second {
			t.Errorf("held for %v, want 7s", s.HeldFor)
		}
		if len(heard) != 1 || heard[0].Kind != outbound.AnswerRefused {
			t.Errorf("heard %+v, want one refusal", heard)
		}
	})
}

// The request and its job may use the permit at the same time, also when the job has left the request behind.
func TestJobsPermit_IsSafeForBoth(t *testing.T) {
	b := outbound.Must(outbound.NewBucket("b", slow))
	arrived := make(chan struct{})
	client := &http.Client{Transport: &transport.Transport{
		Limiter: b,
		Used:    func(*http.Response) (outbound.Cost, bool) { return outbound.Cost{2}, true },
		Base: trips(func(req *http.Request) *http.Response {
			arrived <- struct{}{}
			return reply(req, http.StatusTooManyRequests, "Retry-After", "0")
		}),
	}}
	var all sync.WaitGroup
	for range 100 {
		_ = outbound.Do(context.Background(), b, outbound.Cost{1}, func(ctx context.Context) error {
			all.Go(func() { _ = get(ctx, client) })
			<-arrived
			outbound.PermitFrom(ctx).Settle(outbound.Cost{1})
			outbound.PermitFrom(ctx).Hold(0)
			return nil
		})
	}
	all.Wait()
}

// A request outside of a job pays nothing for the search.
func TestRoundTrip_AllocatesNothingMoreForJobs(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	wide := outbound.Must(outbound.NewBucket("b", outbound.Limit{Capacity: 1e9, LeakRate: 1e9}))
	base := trips(func(req *http.Request) *http.Response { return answered })
	req, _ := http.NewRequestWithContext(context.WithValue(context.Background(), io.EOF, 1), http.MethodGet, "http://api.test/", nil)
	count := func(rt http.RoundTripper) float64 {
		return testing.AllocsPerRun(100, func() { _, _ = rt.RoundTrip(req) })
	}
	if plain, paced := count(base), count(&transport.Transport{Base: base, Limiter: wide}); paced > plain {
		t.Errorf("%v allocations, and %v without a Transport", paced, plain)
	}
}

var answered = &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}

// trips is a base that answers by a function.
type trips func(*http.Request) *http.Response

func (f trips) RoundTrip(req *http.Request) (*http.Response, error) { return f(req), nil }

func reply(req *http.Request, status int, header ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp
}

// waits is a job system of the simplest kind: a job that is put back waits here.
type waits struct{ *jobs.Scheduler }

func (w waits) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	for {
		p, err := w.Scheduler.Acquire(ctx, c)
		later, ok := jobs.AsLater(err)
		if !ok {
			return p, err
		}
		time.Sleep(later.In)
		ctx = jobs.WithTicket(ctx, later.Ticket)
	}
}

// opaque is a limiter of somebody else's, without Unwrap.
type opaque struct{ b *outbound.Bucket }

func (o opaque) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return o.b.Acquire(ctx, c)
}

// function is a limiter that cannot be compared.
type function func(context.Context, outbound.Cost) (outbound.Permit, error)

func (f function) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return f(ctx, c)
}

// answers are what a listener has learnt.
type answers []outbound.Answer

func (a *answers) Answered(x outbound.Answer) { *a = append(*a, x) }
