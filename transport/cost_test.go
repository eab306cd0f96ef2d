package transport_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// The permit of WithCost settles a call that has returned, once.
func TestWithCost_SettlesReturnedCall(t *testing.T) {
	ten := outbound.Limit{Capacity: 10, LeakRate: 1e-6}
	for name, b := range map[string]*outbound.Bucket{
		"one limit":  bucket(ten),
		"two limits": bucket(ten, outbound.Limit{Capacity: 20, LeakRate: 1e-6, Name: "other"}),
		"in flight":  bucket(ten, outbound.InFlight(1)),
	} {
		rt := &transport.Transport{Base: answer(200, newBody("text")), Limiter: b, Cost: func(*http.Request) outbound.Cost { return outbound.Cost{99} }}
		ctx, permit := transport.WithCost(t.Context(), outbound.Cost{10})
		finish(open(t, ctx, rt))
		errorIf(t, !full(t, b), "%s: the cost was not charged", name)
		permit.Settle(outbound.Cost{4})
		permit.Settle(outbound.Cost{}) // the first settle counts
		wantCharged(t, b, 4)
	}
}

// The permit of WithCost is that of the last admitted attempt, also of an unpaced one. Before there
// is one it has no effect. Done never has.
func TestWithCost_IsTheLastAttempts(t *testing.T) {
	first, second := new(recorder), new(recorder)
	outer, _ := transport.WithCost(t.Context(), outbound.Cost{9})
	ctx, permit := transport.WithCost(outer, outbound.Cost{3})
	use := func() {
		permit.Settle(outbound.Cost{1})
		permit.Refused(33 * time.Hour)
		permit.Hold(33 * time.Hour)
		permit.Done()
	}
	use()
	refused := &transport.Transport{Base: answer(200, newBody("x")), Limiter: refusing(io.EOF)}
	_, err := refused.RoundTrip(newRequest(t, nil).WithContext(ctx))
	errorIf(t, err != io.EOF, "refused: %v", err)
	use()
	for _, l := range []outbound.Limiter{first, second} {
		finish(open(t, ctx, &transport.Transport{Base: answer(429, newBody("x")), Limiter: l}))
	}
	use()
	equal(t, first.take(), "acquire 3, refused 0s, done", "the first attempt recorded")
	equal(t, second.take(), "acquire 3, refused 0s, done, settle 1, refused 24h0m0s, hold 24h0m0s",
		"the second attempt recorded")
	finish(open(t, ctx, &transport.Transport{Base: answer(200, newBody("x"))}))
	use()
	equal(t, second.take(), "", "an attempt before the last recorded")
}

// Done of the permit of WithCost leaves the call in flight until its body ends.
func TestWithCost_DoneLeavesCallInFlight(t *testing.T) {
	b := slots(1)
	ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
	resp := open(t, ctx, &transport.Transport{Base: answer(200, newBody("x")), Limiter: b})
	permit.Done()
	errorIf(t, !full(t, b), "the call has ended while its body is open")
	err := resp.Body.Close()
	errorIf(t, err != nil || full(t, b), "Close: %v, full %v", err, full(t, b))
}

// Requests that share a context, as hedged ones do, and a program that settles too early do not race.
func TestWithCost_ConcurrentRequestsMayShareIt(t *testing.T) {
	r := new(recorder)
	ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { _ = get(ctx, &transport.Transport{Limiter: r, Base: answer(200, newBody("text"))}) })
	}
	permit.Settle(outbound.Cost{2})
	all.Wait()
	r.take()
	permit.Hold(time.Second)
	equal(t, r.take(), "hold 1s", "recorded")
}

// The permit of WithCost passes on the reason of a hold and what remains.
func TestWithCost_PassesOnReasonAndRemainder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(outbound.PerSecond(10))
		ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
		finish(open(t, ctx, &transport.Transport{Base: answer(200, nil), Limiter: b}))
		for _, c := range []struct {
			answer outbound.Answer
			reason string
		}{
			{outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: outbound.Cost{0, -1, -1, -1}, Wait: time.Minute}, "exhausted"},
			{outbound.Answer{Kind: outbound.AnswerHold, Wait: 2 * time.Minute, Reason: "quota"}, "quota"},
		} {
			permit.Answered(c.answer)
			if s := stateOf(t, b); s.HeldFor != c.answer.Wait || s.Reason != c.reason {
				t.Errorf("held for %v by %q, want %q", s.HeldFor, s.Reason, c.reason)
			}
		}
	})
}

// A 304 with a token costs nothing of an hourly quota, and is paced by a limit on bursts
// (docs.github.com, "Best practices for using the REST API"; github.com/kedacore/keda/issues/6503).
func TestFree_ReturnsItsCostToQuotas(t *testing.T) {
	hour, minute := outbound.Window(5000, time.Hour), outbound.Window(900, time.Minute)
	core := outbound.Window(5000, time.Hour).Of(1, "core")
	for name, c := range map[string]struct {
		limits []outbound.Limit
		status int
		limit  string
		units  map[string]int
		want   []float64
	}{
		"the quota":                {[]outbound.Limit{hour}, 304, "5000", nil, []float64{0}},
		"a 200":                    {[]outbound.Limit{hour}, 200, "5000", nil, []float64{1}},
		"without a token":          {[]outbound.Limit{hour}, 304, "60", nil, []float64{1}},
		"bursts":                   {[]outbound.Limit{minute}, 304, "5000", nil, []float64{1}},
		"the quota next to bursts": {[]outbound.Limit{hour, minute}, 304, "5000", nil, []float64{1, 1}},
		"Units separate both":      {[]outbound.Limit{minute, core}, 304, "5000", map[string]int{"core": 1}, []float64{1, 0}},
	} {
		bubble(t, name, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("github", c.limits...))
			trip(t, &transport.Transport{Limiter: b, Profile: profile.GitHub, Units: c.units,
				Cost: func(*http.Request) outbound.Cost { return outbound.Cost{1, float64(len(c.units))} },
				Base: answer(c.status, http.NoBody, "X-Ratelimit-Limit", c.limit, "X-Ratelimit-Remaining", "50", "X-Ratelimit-Resource", "core")})
			wantCharged(t, b, c.want...)
		})
	}
}

// A call above what the API ever admits holds no other call, and returns its tokens
// (github.com/Aider-AI/aider/issues/1880).
func TestTooLarge_HoldsNoOtherCall(t *testing.T) {
	for name, c := range map[string]struct{ body, after string }{
		"OpenAI": {`{"error":{"message":"Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 36278.","type":"tokens","code":"rate_limit_exceeded"}}`, "0"},
		"Azure":  {`{"error":{"code":"429","message":"Requests to the ChatCompletions_Create Operation have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 86400 seconds."}}`, "86400"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("model", outbound.Window(10, time.Minute), outbound.Window(1e6, time.Minute).Of(1, "tokens")))
			trip(t, &transport.Transport{Limiter: b, Profile: profile.OpenAI,
				Cost: func(*http.Request) outbound.Cost { return outbound.Cost{1, 36278} },
				Base: roundTripper(func(req *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 429, Body: io.NopCloser(strings.NewReader(c.body)), ContentLength: -1, Request: req,
						Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {c.after}}}, nil
				})})
			states, err := b.States(t.Context())
			errorIf(t, err != nil || len(states) != 2 || states[0].Level != 1 || states[1].Level != 0 || states[0].HeldFor != 0 || states[0].Speed != 1,
				"%s: %+v, %v, want a request charged and no hold", name, states, err)
		})
	}
}
