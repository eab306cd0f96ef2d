package riverjobs_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
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

// free is a job without a limit.
type free struct{}

func (free) Kind() string { return "free" }

// measure has 3 clients of 50 workers each, with River's defaults, work 500 jobs at 20 per second. It
// returns the columns of the table.
func measure(t *testing.T, limiter func(*database) outbound.Limiter, atInsert bool) (m [6]float64) {
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
			return get(ctx, &http.Client{Transport: api}, "http://api.example.com/")
		}, func(c *river.Config) {
			c.FetchCooldown, c.FetchPollInterval = 0, 0
			river.AddWorker(c.Workers, river.WorkFunc(func(context.Context, *river.Job[free]) error { return nil }))
		})
	}
	insert := func(o *river.InsertOpts) {
		_, err := c.Insert(t.Context(), free{}, o)
		require.NoError(t, err)
	}
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
	var ended time.Time
	d.query(t, runsInSQL("avg")+`, max(finalized_at) FILTER (WHERE kind = 'call'),
		percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM attempted_at - scheduled_at)) FILTER (WHERE kind = 'free'),
		count(*) FILTER (WHERE cardinality(errors) > 0)`, &m[0], &ended, &m[2], &m[5])
	m[1] = ended.Sub(begun).Seconds() / ((n - 1) / float64(rate))
	m[3], m[4] = float64(workers)/float64(samples), float64(api.Report().Refused)
	return m
}

// TestMeasure makes the README's table, of medians.
func TestMeasure(t *testing.T) {
	if os.Getenv("DRIPFEED_LONG") != "1" {
		t.Skip("it takes a quarter of an hour; DRIPFEED_LONG=1 runs it")
	}
	bucket := func(d *database) *outbound.Bucket { return d.bucket(outbound.PerSecond(20)) }
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
	all := make([][6][]float64, len(ways))
	for range 5 {
		for i, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				m := measure(t, way.limiter, way.atInsert)
				t.Log(m)
				for column, value := range m {
					all[i][column] = append(all[i][column], value)
				}
			})
		}
	}
	t.Log("| | runs a job | time / ideal | others' wait, p95 | workers taken, of 150 | refused by the API | jobs with errors |")
	for i, way := range ways {
		row := "| " + way.name
		for _, values := range all[i] {
			slices.Sort(values)
			if n := len(values); n > 0 { // -run may leave it out
				row += fmt.Sprintf(" | %.2f", values[n/2])
			}
		}
		t.Log(row, "|")
	}
}
