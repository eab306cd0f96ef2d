package transport_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/shadow"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

type tenantKey struct{}

// Tenants with a total, and nothing but defaults: the API refuses four tenants once each, and nobody else waits for
// that. The total stays in use.
func TestTenantsWithATotal_RefusalOfOneHoldsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tenants, pause, whole = 20, 10 * time.Second, time.Minute
		limiters := &outbound.Keyed[int]{New: func(tenant int) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(fmt.Sprint("tenant ", tenant), outbound.PerSecond(5))
			return queue.New(b, queue.Config{}), err
		}}
		total := outbound.Must(outbound.NewBucket("total", outbound.Limit{Capacity: 1, LeakRate: 50}))
		var mu sync.Mutex
		var served [tenants][]time.Duration
		refused := map[int]time.Duration{1: 5 * time.Second, 4: 12 * time.Second, 9: 25 * time.Second, 16: 40 * time.Second}
		begin := time.Now()
		ctx, cancel := context.WithDeadline(context.Background(), begin.Add(whole))
		defer cancel()
		client := &http.Client{Transport: &transport.Transport{
			For: func(req *http.Request) outbound.Limiter {
				return limiters.For(req.Context().Value(tenantKey{}).(int))
			},
			Base: &transport.Transport{
				Limiter: queue.New(total, queue.Config{}),
				Base: trips(func(req *http.Request) *http.Response {
					mu.Lock()
					defer mu.Unlock()
					tenant, at := req.Context().Value(tenantKey{}).(int), time.Since(begin)
					if from, ok := refused[tenant]; ok && at >= from {
						delete(refused, tenant)
						return reply(req, http.StatusTooManyRequests, "Retry-After", fmt.Sprint(pause.Seconds()))
					}
					served[tenant] = append(served[tenant], at)
					return reply(req, http.StatusOK)
				}),
			},
		}}
		var all sync.WaitGroup
		for tenant := range tenants {
			for range 4 {
				all.Go(func() {
					ctx := context.WithValue(ctx, tenantKey{}, tenant)
					for !errors.Is(get(ctx, client), context.DeadlineExceeded) {
					}
				})
			}
		}
		all.Wait()
		n := 0
		for tenant, at := range served {
			n += len(at)
			longest := time.Duration(0)
			for i := range at[1:] {
				longest = max(longest, at[i+1]-at[i])
			}
			switch tenant {
			case 1, 4, 9, 16:
				if longest < pause {
					t.Errorf("tenant %d was refused, and waited %v at most, want %v", tenant, longest, pause)
				}
			default:
				if longest > 2*time.Second {
					t.Errorf("tenant %d waited %v for others", tenant, longest)
				}
			}
		}
		t.Logf("%d calls in a minute", n)
		if n < 2950 || len(refused) > 0 {
			t.Errorf("%d calls of 3,000 in a minute, want 2,950; %d refusals are missing", n, len(refused))
		}
	})
}

// unwrapped is a round tripper of the program's own in between.
type unwrapped struct{ http.RoundTripper }

func (u unwrapped) Unwrap() http.RoundTripper { return u.RoundTripper }

func (u unwrapped) RoundTrip(req *http.Request) (*http.Response, error) {
	return u.RoundTripper.RoundTrip(req.Clone(req.Context()))
}

// hidden is one that does not say what it is around.
type hidden struct{ http.RoundTripper }

// A response is judged by the outermost transport that has a limiter for it, and Judge says otherwise.
func TestTransportsInARow_OneJudges(t *testing.T) {
	type row = transport.Transport
	none := func(http.RoundTripper) http.RoundTripper { return nil }
	direct := func(rt http.RoundTripper) http.RoundTripper { return rt }
	for name, c := range map[string]struct {
		outer, inner row
		between      func(http.RoundTripper) http.RoundTripper
		want         string
	}{
		"alone":                   {row{}, row{}, none, "outer"},
		"alone, always":           {row{Judge: transport.JudgeAlways}, row{}, none, "outer"},
		"alone, never":            {row{Judge: transport.JudgeNever}, row{}, none, ""},
		"in a row":                {row{}, row{}, direct, "outer"},
		"with OnResponse":         {row{OnResponse: look}, row{OnResponse: look}, direct, "outer"},
		"with a Timeout":          {row{Timeout: time.Hour}, row{Timeout: time.Hour}, direct, "outer"},
		"one that unwraps":        {row{}, row{}, func(rt http.RoundTripper) http.RoundTripper { return unwrapped{rt} }, "outer"},
		"one that hides":          {row{}, row{}, func(rt http.RoundTripper) http.RoundTripper { return hidden{rt} }, "outer inner"},
		"one that hides, told":    {row{}, row{Judge: transport.JudgeNever}, func(rt http.RoundTripper) http.RoundTripper { return hidden{rt} }, "outer"},
		"inner always":            {row{}, row{Judge: transport.JudgeAlways}, direct, "outer inner"},
		"outer never":             {row{Judge: transport.JudgeNever}, row{}, direct, "inner"},
		"no limiter for this one": {row{For: func(*http.Request) outbound.Limiter { return nil }}, row{}, direct, "inner"},
		"unlimited":               {row{For: func(*http.Request) outbound.Limiter { return outbound.Unlimited{} }}, row{}, direct, "inner"},
		"three": {row{}, row{}, func(rt http.RoundTripper) http.RoundTripper {
			return &transport.Transport{Base: rt, Judge: transport.JudgeNever}
		}, "outer"},
		"three, the outermost never": {row{Judge: transport.JudgeNever}, row{}, func(rt http.RoundTripper) http.RoundTripper {
			return &transport.Transport{Base: rt}
		}, "inner"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer := outbound.Must(outbound.NewBucket("outer", slow))
				inner := outbound.Must(outbound.NewBucket("inner", slow))
				api := trips(func(req *http.Request) *http.Response {
					return reply(req, http.StatusTooManyRequests, "Retry-After", "7")
				})
				c.inner.Limiter, c.inner.Base = inner, api
				if c.outer.For == nil {
					c.outer.Limiter = outer
				}
				if c.outer.Base = c.between(&c.inner); c.outer.Base == nil {
					c.outer.Base = api
				}
				if err := get(context.Background(), &http.Client{Transport: &c.outer}); err == nil {
					t.Fatal("no refusal")
				}
				held := ""
				for _, b := range []*outbound.Bucket{outer, inner} {
					s, err := b.State(context.Background())
					if err != nil {
						t.Fatal(err)
					}
					if s.HeldFor > 0 {
						held += " " + b.Key()
					}
				}
				if held != c.want && held != " "+c.want {
					t.Errorf("held:%s, want %s", held, c.want)
				}
			})
		})
	}
}

// deaf is a limiter whose permits hear nothing, as that of package outbound/xrate is.
type deaf struct{}

func (deaf) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, nil
}

// A limiter that cannot hear does not keep the next transport from judging, whatever is around it.
func TestTransportsInARow_UnheardLimiterLeavesJudgingToTheNext(t *testing.T) {
	unlimited := &outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return outbound.Unlimited{}, nil }}
	tried := func(report func(context.Context, shadow.Verdict)) outbound.Limiter {
		return shadow.New(outbound.Must(outbound.NewBucket("tried", slow)), time.Minute, report)
	}
	for name, outer := range map[string]outbound.Limiter{
		"a shadow":                       tried(func(context.Context, shadow.Verdict) {}),
		"a shadow without report":        tried(nil),
		"a shadow, observed":             outbound.Observe(tried(func(context.Context, shadow.Verdict) {}), "", func(context.Context, outbound.Event) {}),
		"no permit":                      deaf{},
		"Unlimited of a Keyed":           unlimited.For("tenant"),
		"Unlimited of a Keyed, observed": outbound.Observe(unlimited.For("tenant"), "", func(context.Context, outbound.Event) {}),
	} {
		for _, jobs := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, jobs %t", name, jobs), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					total := outbound.Must(outbound.NewBucket("total", slow))
					client := &http.Client{Transport: &transport.Transport{Limiter: outer, Base: &transport.Transport{
						Limiter: total,
						Base: trips(func(req *http.Request) *http.Response {
							return reply(req, http.StatusTooManyRequests, "Retry-After", "30")
						}),
					}}}
					send := func(ctx context.Context) error { return get(ctx, client) }
					err := error(nil)
					if jobs {
						err = outbound.Do(context.Background(), outer, outbound.Cost{1}, send)
					} else {
						err = send(context.Background())
					}
					if s, _ := total.State(context.Background()); err == nil || s.HeldFor != 30*time.Second {
						t.Errorf("the total is held for %v, want 30 s; %v", s.HeldFor, err)
					}
				})
			})
		}
	}
}

func look(*http.Response, *outbound.Permit) {}

// The limiter of a transport that does not judge counts the call, and takes no answer for a success.
func TestTransportsInARow_TheOtherSettles(t *testing.T) {
	b := outbound.Must(outbound.NewBucket("inner", slow, outbound.InFlight(1)))
	client := &http.Client{Transport: &transport.Transport{
		Limiter: outbound.Must(outbound.NewBucket("outer", slow)),
		Base: &transport.Transport{
			Limiter: b,
			Used:    func(*http.Response) (outbound.Cost, bool) { return outbound.Cost{5}, true },
			Base:    trips(func(req *http.Request) *http.Response { return reply(req, http.StatusOK) }),
		},
	}}
	for range 3 {
		if err := get(context.Background(), client); err != nil {
			t.Fatal(err)
		}
	}
	if got := level(t, b); got < 15-1e-3 || got > 15 {
		t.Errorf("charged %v, want 15", got)
	}
}

// An answer from another host than the first steers a limiter of For only, also if that is the inner one's.
func TestTransportsInARow_RedirectToAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		total := outbound.Must(outbound.NewBucket("total", slow))
		hosts := &outbound.Keyed[string]{New: func(host string) (outbound.Limiter, error) { return outbound.NewBucket(host, slow) }}
		client := &http.Client{Transport: &transport.Transport{Limiter: total, Base: &transport.Transport{
			For: transport.ByHost(hosts.For),
			Base: trips(func(req *http.Request) *http.Response {
				if req.URL.Host == "api.test" {
					return reply(req, http.StatusFound, "Location", "http://other.test/")
				}
				return reply(req, http.StatusTooManyRequests, "Retry-After", "7")
			}),
		}}}
		_ = get(context.Background(), client)
		for host, want := range map[string]time.Duration{"api.test": 0, "other.test": 7 * time.Second} {
			_ = hosts.Use(host, func(l outbound.Limiter) error {
				if s, err := l.(*outbound.Bucket).State(context.Background()); err != nil || s.HeldFor != want {
					t.Errorf("%s is held for %v, want %v; %v", host, s.HeldFor, want, err)
				}
				return nil
			})
		}
		if s, _ := total.State(context.Background()); s.HeldFor != 0 {
			t.Errorf("the total is held for %v", s.HeldFor)
		}
	})
}
