package transport

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// listening is a limiter whose calls are listened to.
type listening struct {
	outbound.Limiter
	heard []outbound.Answer
}

func (l *listening) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := l.Limiter.Acquire(ctx, c)
	p.Listen(l)
	return p, err
}

func (l *listening) Answered(a outbound.Answer) { l.heard = append(l.heard, a) }

// Whoever listens to a call hears of each quota that the response tells, whether it holds the bucket or not.
func TestListen_GetsEachQuota(t *testing.T) {
	header := http.Header{"Ratelimit": {`"minute";r=30;t=1, "day";r=900;t=3600`}, "Ratelimit-Policy": {`"minute";q=60;w=60, "day";q=1000;w=86400`}}
	day := outbound.Budget{Policy: "day", Limit: 1000, Remaining: 900, Reset: time.Hour, Window: 24 * time.Hour}
	minute := outbound.Budget{Policy: "minute", Limit: 60, Remaining: 30, Reset: time.Second, Window: time.Minute}
	for name, tt := range map[string]struct {
		status     int
		onResponse func(*http.Response, *outbound.Permit)
		refusals   int
		units      map[string]int
	}{
		"success": {status: 200},
		"refusal": {status: 429, refusals: 1},
		"units":   {status: 200, units: map[string]int{"day": 2}},
		"with an attempt": {status: 200, onResponse: func(_ *http.Response, p *outbound.Permit) {
			p.Answered(outbound.Answer{Kind: outbound.AnswerQuota}) // does not keep the transport from judging
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &listening{Limiter: wide()}
				day, minute := day, minute
				if tt.units != nil {
					day.Number, minute.Number = tt.units["day"], -1
				}
				rt := &Transport{Limiter: l, Units: tt.units, OnResponse: tt.onResponse,
					Base: instant{&http.Response{StatusCode: tt.status, Header: header, Body: http.NoBody}}}
				req, _ := http.NewRequest(http.MethodGet, "https://api.example.com/", nil)
				if _, err := rt.RoundTrip(req); err != nil {
					t.Fatal(err)
				}
				var budgets []outbound.Budget
				refusals := 0
				for _, a := range l.heard {
					switch {
					case a.Kind == outbound.AnswerQuota && a.Budget != outbound.Budget{}:
						budgets = append(budgets, a.Budget)
					case a.Kind == outbound.AnswerRefused:
						refusals++
					}
				}
				if len(budgets) != 2 || budgets[0] != minute || budgets[1] != day || refusals != tt.refusals {
					t.Errorf("heard of %+v, and of %d refusals", budgets, refusals)
				}
			})
		})
	}
}
