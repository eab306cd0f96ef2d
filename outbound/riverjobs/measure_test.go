package riverjobs_test

import (
	"context"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// free is a job that calls nobody, and has no limit.
type free struct{}

func (free) Kind() string { return "free" }

// measured is what one run comes to.
type measured struct {
	runs     float64 // of each paced job
	took     float64 // until all were done, as a multiple of the time that the rate alone takes
	others   float64 // seconds that 95 % of the free jobs waited for a worker at most
	waiting  float64 // workers that were taken, on average, of 150
	refused  float64 // by the API
	failures float64 // jobs with an error
}

// measure has 3 clients, as River comes and of 50 workers each, work 500 jobs at 20 per second.
func measure(t *testing.T, limiter func(*database) outbound.Limiter, atInsert bool) (m measured) {
	const n, rate, processes, frees = 500, 20, 3, 40
	d := newDatabase(t)
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(rate, time.Second)}, Latency: 20 * time.Millisecond}
	calls := &http.Client{Transport: api}
	var c *client
	for range processes {
		own, err := openDatabase(t.Context(), d.url, d.schema)
		require.NoError(t, err)
		t.Cleanup(own.close)
		l := limiter(own)
		plugin := &riverjobs.Plugin{AtInsert: atInsert, Limiter: func(kind, _ string, _ []byte) (outbound.Limiter, outbound.Cost) {
			if kind != "call" {
				return nil, outbound.Cost{}
			}
			return l, outbound.Cost{1}
		}}
		c = own.start(t, plugin, func(ctx context.Context, _ *river.Job[call]) error {
			res, err := calls.Get("http://api.example.com/")
			if err != nil {
				return err
			}
			if res.StatusCode == http.StatusTooManyRequests {
				outbound.PermitFrom(ctx).Refused(0)
				return river.JobSnooze(time.Second)
			}
			return res.Body.Close()
		}, func(c *river.Config) {
			c.FetchCooldown, c.FetchPollInterval = 0, 0
			river.AddWorker(c.Workers, river.WorkFunc(func(context.Context, *river.Job[free]) error { return nil }))
		})
	}
	_, err := c.Insert(t.Context(), free{}, &river.InsertOpts{ScheduledAt: time.Now().Add(100 * time.Millisecond)}) // a leader is there once this is done
	require.NoError(t, err)
	d.awaitAll(t, 1)

	begun := time.Now()
	c.addMany(t, n)
	samples, deadline := 0, time.Now().Add(5*time.Minute)
	for sent := 0; d.count(t, "finalized_at IS NOT NULL") < n+frees+1 && time.Now().Before(deadline); samples++ {
		if sent < frees {
			sent++
			_, err := c.Insert(t.Context(), free{}, nil)
			require.NoError(t, err)
		}
		m.waiting += float64(d.count(t, "state = 'running'"))
		if m.took == 0 && d.count(t, "kind = 'call' AND finalized_at IS NOT NULL") == n {
			m.took = time.Since(begun).Seconds() / ((n - 1) / float64(rate))
		}
		time.Sleep(500 * time.Millisecond)
	}
	m.waiting /= float64(samples)
	m.refused = float64(api.Report().Refused)
	m.failures = float64(d.count(t, "cardinality(errors) > 0"))
	require.NoError(t, d.pool.QueryRow(t.Context(), `
		SELECT avg(attempt + coalesce((metadata->>'snoozes')::int, 0)) FILTER (WHERE kind = 'call'),
			percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM attempted_at - scheduled_at)) FILTER (WHERE kind = 'free')
		FROM `+d.schema+".river_job").Scan(&m.runs, &m.others))
	if m.took == 0 {
		m.took = time.Since(begun).Seconds() / ((n - 1) / float64(rate))
	}
	return m
}

// TestMeasure makes the README's table.
func TestMeasure(t *testing.T) {
	if os.Getenv("DRIPFEED_LONG") != "1" {
		t.Skip("it takes a quarter of an hour; DRIPFEED_LONG=1 runs it")
	}
	rate := outbound.PerSecond(20)
	bucket := func(d *database) *outbound.Bucket {
		return outbound.Must(outbound.NewSharedBucket(d.store(), "k", rate))
	}
	scheduled := func(d *database) outbound.Limiter { return jobs.New(bucket(d), jobs.Config{}) }
	ways := []struct {
		name     string
		atInsert bool
		limiter  func(*database) outbound.Limiter
	}{
		{"each waits in its worker", false, func(d *database) outbound.Limiter { return queue.New(bucket(d), queue.Config{}) }},
		{"JobSnooze(RetryAfter)", false, func(d *database) outbound.Limiter { return bucket(d) }},
		{"a Scheduler", false, scheduled},
		{"a Scheduler, booked at insertion", true, scheduled},
	}
	const rounds = 5
	all := make([][]measured, len(ways))
	var ended atomic.Int64
	for range rounds {
		for i, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				m := measure(t, way.limiter, way.atInsert)
				all[i] = append(all[i], m)
				t.Logf("%d: %+v", ended.Add(1), m)
			})
		}
	}
	median := func(of []measured, f func(measured) float64) float64 {
		values := make([]float64, 0, len(of))
		for _, m := range of {
			values = append(values, f(m))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	t.Log("| | runs a job | time / ideal | others' wait, p95 | workers taken, of 150 | refused by the API | jobs with errors |")
	for i, way := range ways {
		if len(all[i]) == 0 {
			continue
		}
		t.Logf("| %s | %.2f | %.2f | %.2f s | %.0f | %.0f | %.0f |", way.name,
			median(all[i], func(m measured) float64 { return m.runs }), median(all[i], func(m measured) float64 { return m.took }),
			median(all[i], func(m measured) float64 { return m.others }), median(all[i], func(m measured) float64 { return m.waiting }),
			median(all[i], func(m measured) float64 { return m.refused }), median(all[i], func(m measured) float64 { return m.failures }))
	}
}
