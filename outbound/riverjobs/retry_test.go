package riverjobs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// soon is a policy that tries again at once, or nearly.
type soon time.Duration

func (s soon) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(time.Duration(s)) }

// The policy reads what Work has noted in the row that River hands to both, and that nobody writes.
func TestRetryPolicy_WaitsForThePause(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c := d.start(t, &riverjobs.Plugin{Limiter: one(d.scheduler(outbound.PerSecond(100)))}, func(ctx context.Context, _ *river.Job[call]) error {
		outbound.PermitFrom(ctx).Refused(time.Hour)
		return errors.New("429")
	}, func(c *river.Config) { c.RetryPolicy = riverjobs.RetryPolicy(soon(time.Second)) })
	begun := time.Now()
	row := c.awaitState(t, c.add(t, 1, nil), rivertype.JobStateRetryable)
	require.GreaterOrEqual(t, row.ScheduledAt.Sub(begun), time.Hour)
	require.Len(t, row.Errors, 1)
	require.Equal(t, 1, row.Attempt)
	require.EqualValues(t, 1, c.failures.calls.Load())
	require.NotContains(t, metadata(t, row), "dripfeed_pause")
}

func TestRetryPolicy_IsNextWithoutAPause(t *testing.T) {
	for name, pause := range map[string]time.Duration{"none": 0, "short": time.Minute, "long": time.Hour} {
		l := outbound.Must(outbound.NewBucket("b", outbound.PerSecond(100)))
		p := &riverjobs.Plugin{Limiter: one(jobs.New(l, jobs.Config{}))}
		job, boom := &rivertype.JobRow{Metadata: []byte(`{"yours":1}`)}, errors.New("boom")
		err := p.Work(t.Context(), job, func(ctx context.Context) error {
			if pause > 0 {
				outbound.PermitFrom(ctx).Refused(pause)
			}
			return boom
		})
		require.Equal(t, boom, err)
		require.Equal(t, 1.0, metadata(t, job)["yours"])
		in := time.Until(riverjobs.RetryPolicy(soon(10 * time.Minute)).NextRetry(job))
		require.InDelta(t, max(pause, 10*time.Minute).Minutes(), in.Minutes(), 1, name)
		if in = time.Until(riverjobs.RetryPolicy(nil).NextRetry(job)); name == "none" { // River's own is a second
			require.Less(t, in, time.Minute)
		} else {
			require.Greater(t, in, pause-time.Minute/2)
		}
	}
}
