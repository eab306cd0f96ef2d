package watch

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// report has the API report a quota, as it does with each reply.
func report(p *outbound.Permit, policy string, limit, remaining float64, reset time.Duration) {
	p.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{Policy: policy, Limit: limit, Remaining: remaining, Reset: reset}})
}

// A board keeps what the API reports of its quotas, and what other clients use of them.
func TestBudget_KeepsWhatTheAPIReports(t *testing.T) {
	question(t, "What the API has reported is kept for each policy until its reset", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 100, LeakRate: 1}))
		p := take(t, l)
		report(&p, "core", 5000, 4999, time.Hour)
		report(&p, "search", 30, 29, time.Minute)
		report(&p, "forever", 10, 9, -1)
		report(&p, "nothing", -1, -1, time.Hour)
		report(&p, "garbage", math.NaN(), math.Inf(1), time.Hour)
		names := func() (all []string) {
			for _, x := range only(t, b).Budgets {
				all = append(all, fmt.Sprint(x.Policy, " ", x.Remaining, " ", x.Reset, " ", x.Age))
			}
			return all
		}
		time.Sleep(10 * time.Second)
		got := fmt.Sprint(names())
		errorIf(t, got != "[core 4999 59m50s 10s search 29 50s 10s forever 9 -1ns 10s]", "%v", got)
		time.Sleep(time.Minute)
		got = fmt.Sprint(names())
		errorIf(t, got != "[core 4999 58m50s 1m10s forever 9 -1ns 1m10s]", "%v", got)
		time.Sleep(time.Hour)
		equal(t, len(names()), 0, "policies after their resets")
		for i := range 100 { // an API may make names up
			report(&p, fmt.Sprint("policy ", i), 5, 4, time.Hour)
		}
		equal(t, len(names()), mostBudgets, "policies are kept")
	})
	question(t, "Of a quota that counts what this program does not, nobody knows who has used it; one that counts another number of the cost is compared with that", func(t *testing.T, b *Board) {
		l := b.Add("api", outbound.Unlimited{})
		for i := range 11 {
			p := take(t, l, 500, 1)
			for policy, number := range map[string]int{"first": 0, "second": 1, "none": -1, "beyond": len(outbound.Cost{})} {
				p.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{
					Policy: policy, Limit: 100, Remaining: 100 - 4*float64(i), Reset: time.Hour, Number: number}})
			}
		}
		for _, x := range only(t, b).Budgets {
			want := map[string]float64{"first": 0, "second": 0.3, "none": -1, "beyond": -1}[x.Policy]
			errorIf(t, x.OtherClients != want, "%s: %v, want %v", x.Policy, x.OtherClients, want)
		}
		// Each key may have a quota of its own.
		of := AddKeyed(b, "api", tenants(5, outbound.PerSecond(9)), nil)
		p := take(t, of("a"))
		report(&p, "second", 100, 0, time.Hour)
		for _, x := range b.Snapshot(bg, Query{}).Limiters[0].Budgets {
			errorIf(t, x.OtherClients != -1, "%+v of all keys", x)
		}
	})
}

// What somebody else uses of the same key is what the API counts and this program does not.
func TestBudget_OthersAreOtherClients(t *testing.T) {
	for _, others := range []float64{0, 0.1, 0.5} { // calls a second, in addition to one of ours
		bubble(t, fmt.Sprint(others), func(t *testing.T) {
			var b Board
			l := b.Add("api", bucket(t, outbound.Limit{Capacity: 100, LeakRate: 100}))
			const limit, window = 3600.0, 40 * time.Minute
			begin, used, foreign := time.Now(), 0.0, 0.0
			for i := range 3000 {
				if at := time.Since(begin); at >= window {
					begin, used = begin.Add(window), 0
				}
				p := take(t, l)
				foreign += others
				used += 1 + math.Floor(foreign)
				foreign -= math.Floor(foreign)
				report(&p, "core", limit, limit-used, time.Until(begin.Add(window)))
				p.Done()
				if ours, ok := map[int]float64{2398: 2398, 2999: 600}[i]; ok { // calls of ours in the window
					want, got := ours*others/limit, only(t, &b).Budgets[0].OtherClients
					errorIf(t, math.Abs(got-want) > 0.002, "after %d calls somebody else has used %.4f, want %.4f", i, got, want)
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// answer is what an API tells of its quota at a time.
type answer struct {
	at               time.Duration
	limit, remaining float64
	reset            time.Duration
}

// Nobody else uses these quotas, or nobody knows: whatever an API tells of them, no board accuses somebody.
func TestBudget_OthersIsZeroAlone(t *testing.T) {
	const s, m, h = time.Second, time.Minute, time.Hour
	for name, c := range map[string]struct {
		answers []answer
		want    []float64
	}{
		"a reset that is rounded down": {
			[]answer{{0, 100, 3, m}, {59500 * time.Millisecond, 100, 2, 0}, {60*s + 300*time.Millisecond, 100, 1, 0}, {61 * s, 100, 99, 59 * s}, {62 * s, 100, 98, 58 * s}},
			[]float64{0, -2, -2, 0, 0}},
		"a reset that is rounded up": {
			[]answer{{0, 100, 3, m}, {59 * s, 100, 99, 60 * s}, {62 * s, 100, 98, 57 * s}},
			[]float64{0, 0, 0}},
		"an answer of the window before comes late": {
			[]answer{{0, 100, 10, m}, {60 * s, 100, 99, m}, {60 * s, 100, 98, m}, {60 * s, 100, 97, m}, {60 * s, 100, 9, 1}, {61 * s, 100, 95, 59 * s}},
			[]float64{0, 0, 0, 0, 0, 0}},
		"a quota that leaks": { // one in ten seconds; the reset is when it is empty
			[]answer{{0, 100, 50, 500 * s}, {s, 100, 49, 510 * s}, {31 * s, 100, 51, 490 * s}, {32 * s, 100, 50, 500 * s}},
			[]float64{0, -1, -1, -1}},
		"a refund": {
			[]answer{{0, 100, 50, m}, {s, 100, 70, 59 * s}, {2 * s, 100, 69, 58 * s}},
			[]float64{0, 0, 0}},
		"a reset that is not told": {
			[]answer{{0, 100, 50, -1}, {h / 2, 100, 20, -1}},
			[]float64{-1, -1}},
		"seconds": {
			[]answer{{0, 10, 5, s}, {3 * s, 10, 9, s}, {6 * s, 10, 2, s}},
			[]float64{0, -1, -1}},
		"half of it is told late": {
			[]answer{{0, 100, -1, m}, {s, 100, 50, 59 * s}, {2 * s, 100, 49, 58 * s}},
			[]float64{-1, 0, 0}},
		"no requests": {
			[]answer{{0, -1, 5, m}, {s, 0, 0, m}},
			[]float64{-1, -1}},
	} {
		bubble(t, name, func(t *testing.T) {
			var b Board
			l, begin, got := b.Add("api", outbound.Unlimited{}), time.Now(), []float64{} // what somebody else has used, after each answer
			for _, a := range c.answers {
				time.Sleep(time.Until(begin.Add(a.at)))
				p := take(t, l)
				report(&p, "core", a.limit, a.remaining, a.reset)
				used := -2.0 // nothing is told
				if x := only(t, &b).Budgets; len(x) > 0 {
					used = x[0].OtherClients
				}
				got = append(got, used)
			}
			errorIf(t, !slices.Equal(got, c.want), "%v, want %v", got, c.want)
		})
	}
}

// Each worker of a fleet takes the others for somebody else. Their numbers together, as the alert of examples/watch adds
// them up, tell of somebody who is none of them.
func TestBudget_ProcessesTogetherFindOtherPrograms(t *testing.T) {
	for _, foreign := range []float64{0, 200} {
		synctest.Test(t, func(t *testing.T) {
			const limit, workers, calls = 1000.0, 4, 100
			used := 0.0
			var boards [workers]Board
			var limiters [workers]outbound.Limiter
			for i := range boards {
				limiters[i] = boards[i].Add("api", outbound.Unlimited{})
			}
			reset := time.Now().Add(time.Hour)
			for call := range calls {
				for _, l := range limiters {
					p := take(t, l)
					used++
					if call == calls/2 {
						used += foreign / workers
					}
					report(&p, "core", limit, limit-used, time.Until(reset))
				}
				time.Sleep(time.Second)
			}
			sum, least := 0.0, 1.0
			for i := range boards {
				x := only(t, &boards[i]).Budgets[0]
				sum, least = sum+x.OtherClients, min(least, x.Remaining/x.Limit)
			}
			alone := only(t, &boards[0]).Budgets[0].OtherClients
			if got := sum - (workers-1)*(1-least); math.Abs(got-foreign/limit) > 0.02 || alone < 0.25 {
				t.Errorf("%v by all, want %v; %v by one", got, foreign/limit, alone)
			}
		})
	}
}
