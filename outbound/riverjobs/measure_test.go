package riverjobs_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// free is a job without a limit.
type free struct{}

func (free) Kind() string { return "free" }

// measure has 3 clients of 50 workers each, with River's defaults, work 500 jobs at 20 per second. It
// returns the columns of the README's table.
func measure(t *testing.T, limiter func(*database) outbound.Limiter, atInsert bool) []float64 {
	const n, rate, processes, frees = 500, 20, 3, 40
	d := newDatabase(t)
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(rate, time.Second)}, Latency: 20 * time.Millisecond}
	var c *client
	for range processes {
		own := openDatabase(t, d.URL, d.Schema)
		l := limiter(own)
		plugin := &riverjobs.Plugin{AtInsert: atInsert, Limiter: func(kind, _ string, _ []byte) (outbound.Limiter, outbound.Cost) {
			if kind != "call" {
				return nil, outbound.Cost{}
			}
			return l, outbound.Cost{1}
		}}
		c = own.start(t, plugin, func(ctx context.Context, _ *river.Job[call]) error {
			if err := jobtest.Get(ctx, &http.Client{Transport: api}, "http://api.example.com/"); err != nil {
				outbound.PermitFrom(ctx).Refused(0)
				return river.JobSnooze(time.Second)
			}
			return nil
		}, func(c *river.Config) {
			c.FetchCooldown, c.FetchPollInterval = 0, 0
			river.AddWorker(c.Workers, river.WorkFunc(func(context.Context, *river.Job[free]) error { return nil }))
		})
	}
	insert := func(o *river.InsertOpts) { jobtest.Must(c.Insert(t.Context(), free{}, o)) }
	insert(&river.InsertOpts{ScheduledAt: time.Now().Add(100 * time.Millisecond)}) // a leader exists once this is done
	d.awaitAll(t, 1)

	begun, samples, workers := time.Now(), 0, 0
	c.addMany(t, n)
	for ; d.count(t, "finalized_at IS NOT NULL") < n+frees+1; samples++ {
		require.Less(t, time.Since(begun), 5*time.Minute)
		if samples < frees {
			insert(nil)
		}
		workers += d.count(t, "state = 'running'")
		time.Sleep(500 * time.Millisecond)
	}
	var (
		runs, others float64
		ended        time.Time
	)
	d.query(t, runsInSQL("avg")+`, max(finalized_at) FILTER (WHERE kind = 'call'),
		percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM attempted_at - scheduled_at)) FILTER (WHERE kind = 'free')`,
		&runs, &ended, &others)
	return []float64{
		runs, ended.Sub(begun).Seconds() / ((n - 1) / float64(rate)), others, float64(workers) / float64(samples),
		float64(api.Report().Refused), float64(d.count(t, "cardinality(errors) > 0")),
	}
}

// TestMeasure makes the README's table.
func TestMeasure(t *testing.T) {
	bucket := func(d *database) *outbound.Bucket { return d.bucket(outbound.PerSecond(20)) }
	waiting := func(d *database) outbound.Limiter { return queue.New(bucket(d), queue.Config{}) }
	refusing := func(d *database) outbound.Limiter { return bucket(d) }
	scheduled := func(d *database) outbound.Limiter { return jobs.New(bucket(d), jobs.Config{}) }
	columns := "runs a job | time / ideal | others' wait, p95 | workers taken, of 150 | refused by the API | jobs with errors"
	jobtest.Measure(t, 5, columns, []jobtest.Way{
		{Name: "each waits in its worker", Measure: func(t *testing.T) []float64 { return measure(t, waiting, false) }},
		{Name: "JobSnooze(RetryAfter)", Measure: func(t *testing.T) []float64 { return measure(t, refusing, false) }},
		{Name: "a Scheduler", Measure: func(t *testing.T) []float64 { return measure(t, scheduled, false) }},
		{Name: "a Scheduler, booked at insertion", Measure: func(t *testing.T) []float64 { return measure(t, scheduled, true) }},
	})
}
