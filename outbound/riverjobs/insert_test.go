package riverjobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// booker is a limiter that books reservations at its times, and a surplus.
type booker struct {
	outbound.Unlimited
	surplus  []jobs.Run
	times    []time.Time
	booked   []outbound.Cost
	requests int
	err      error
}

func (b *booker) Book(_ context.Context, costs ...outbound.Cost) (runs []jobs.Run, err error) {
	b.requests++
	if b.err != nil {
		return nil, b.err
	}
	for _, c := range costs {
		n := len(b.booked)
		runs = append(runs, jobs.Run{At: b.times[n], Ticket: fmt.Sprint(c, n)})
		b.booked = append(b.booked, c)
	}
	return append(runs, b.surplus...), nil
}

func insertParams(kind string) *rivertype.JobInsertParams {
	return &rivertype.JobInsertParams{Kind: kind, Queue: "default", EncodedArgs: []byte("{}"), Metadata: []byte("{}"), State: rivertype.JobStateAvailable}
}

// insert has a plugin change jobs that are inserted, and passes on what the insertion returns.
func insert(t *testing.T, p *riverjobs.Plugin, jobs ...*rivertype.JobInsertParams) {
	t.Helper()
	want := []*rivertype.JobInsertResult{{}}
	got, err := p.InsertMany(t.Context(), jobs, func(context.Context) ([]*rivertype.JobInsertResult, error) { return want, errors.New("full disk") })
	require.Equal(t, want, got)
	require.EqualError(t, err, "full disk")
}

// Each Scheduler books once, for its jobs in their order. Only a job whose reservation is further
// away than River's scheduler looks ahead needs that scheduler.
func TestInsertMany_SchedulesJobsAtTheirReservations(t *testing.T) {
	now := time.Now()
	times := []time.Time{now.Add(-time.Second), now.Add(4 * time.Second), now.Add(time.Minute), now.Add(time.Hour)}
	bookers := map[string]*booker{"a": {times: times}, "b": {times: times, surplus: make([]jobs.Run, 1)}}
	p := &riverjobs.Plugin{AtInsert: true, Limiter: func(kind, _ string, _ []byte) (outbound.Limiter, outbound.Cost) {
		if b := bookers[kind]; b != nil {
			return outbound.Observe(b, kind, func(context.Context, outbound.Event) {}), outbound.Cost{float64(kind[0])}
		}
		return outbound.Unlimited{}, outbound.Cost{1}
	}}
	const yours = `{"yours":{"n":12345678901234567890},"dripfeed_ticket":%q}`
	var inserted []*rivertype.JobInsertParams
	for i := range 3 * len(times) {
		inserted = append(inserted, insertParams("abc"[i%3:i%3+1]))
		inserted[i].Metadata = fmt.Appendf(nil, yours, "another")
	}
	insert(t, p, inserted...)
	for i, job := range inserted {
		n, ticket := i/3, "another"
		if b := bookers[job.Kind]; b != nil {
			ticket = fmt.Sprint(b.booked[n], n)
		}
		require.JSONEq(t, fmt.Sprintf(yours, ticket), string(job.Metadata))
		require.Equal(t, job.Kind != "c" && n > 1, job.State == rivertype.JobStateScheduled)
		switch {
		case job.Kind == "c" || n == 0:
			require.Nil(t, job.ScheduledAt)
		case job.ScheduledAt == nil: // a slow test
			require.Negative(t, time.Until(times[n]))
		default:
			require.Equal(t, times[n], *job.ScheduledAt)
		}
	}
	for kind, b := range bookers {
		require.Equal(t, 1, b.requests)
		c := outbound.Cost{float64(kind[0])}
		require.Equal(t, []outbound.Cost{c, c, c, c}, b.booked)
	}
}

// A job stays as it is if it needs no reservation, or if there is none to book.
func TestInsertMany_LeavesSomeJobsUnbooked(t *testing.T) {
	type insertion struct {
		*riverjobs.Plugin
		*booker
		job *rivertype.JobInsertParams
	}
	at := time.Now().Add(time.Hour)
	for name, change := range map[string]func(*insertion){
		"without AtInsert":               func(i *insertion) { i.AtInsert = false },
		"a plugin without a Limiter":     func(i *insertion) { i.Limiter = nil },
		"a job that is scheduled":        func(i *insertion) { i.job.State, i.job.ScheduledAt = rivertype.JobStateScheduled, &at },
		"a job that is pending":          func(i *insertion) { i.job.State = rivertype.JobStatePending },
		"a job that is unique":           func(i *insertion) { i.job.UniqueKey = []byte("u") },
		"a job that is not paced":        func(i *insertion) { i.Limiter = one(nil) },
		"a limiter without reservations": func(i *insertion) { i.Limiter = one(outbound.Unlimited{}) },
		"an unavailable store":           func(i *insertion) { i.err = store.ErrUnavailable },
		"a nil Scheduler":                func(i *insertion) { i.Limiter = one((*jobs.Scheduler)(nil)) },
		"an invalid Scheduler":           func(i *insertion) { i.Limiter = one(jobs.New(nil, jobs.Config{})) },
		"a limiter that is no key of a map": func(i *insertion) {
			i.Limiter = one(struct {
				*booker
				tags []string
			}{i.booker, nil})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &booker{times: []time.Time{at}}
			i := &insertion{&riverjobs.Plugin{AtInsert: true, Limiter: one(b)}, b, insertParams("a")}
			change(i)
			want := *i.job
			insert(t, i.Plugin, i.job)
			require.Equal(t, want, *i.job)
			require.Empty(t, b.booked)
		})
	}
}

// A reservation beyond Config.Ahead has no ticket. Metadata that is no object is River's to refuse.
func TestInsertMany_KeepsMetadata(t *testing.T) {
	b := outbound.Must(outbound.NewBucket("b", outbound.PerMinute(1)))
	p := &riverjobs.Plugin{AtInsert: true, Limiter: one(jobs.New(b, jobs.Config{Ahead: time.Minute}))}
	far := insertParams("a")
	insert(t, p, insertParams("a"), insertParams("a"), insertParams("a"), far)
	require.Equal(t, "{}", string(far.Metadata))
	require.NotNil(t, far.ScheduledAt)

	for _, text := range []string{"", "null", "[]", "5", "{"} {
		job := insertParams("a")
		job.Metadata = []byte(text)
		insert(t, &riverjobs.Plugin{AtInsert: true, Limiter: one(&booker{times: make([]time.Time, 1)})}, job)
		require.Equal(t, text, string(job.Metadata))
	}
}

// Each way to insert jobs books their reservations. River calls the plugin with the state and the
// key that it stores.
func TestInsertMany_BooksInRiver(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c := jobtest.Must(d.newClient(&riverjobs.Plugin{AtInsert: true, Limiter: one(d.scheduler(slow))}, nothing))
	inserted := jobtest.Must(c.Insert(t.Context(), call{}, once))
	require.Equal(t, rivertype.JobStateAvailable, inserted.Job.State)
	inserted = jobtest.Must(c.Insert(t.Context(), call{}, once))
	require.Equal(t, rivertype.JobStateScheduled, inserted.Job.State)
	require.Greater(t, time.Until(inserted.Job.ScheduledAt), 50*time.Minute)
	require.Equal(t, 1.0, metadata(t, inserted.Job)["yours"])
	many := []river.InsertManyParams{{Args: call{}}}
	jobtest.Must(c.InsertMany(t.Context(), many))
	jobtest.Must(c.InsertManyFast(t.Context(), many))
	tx := jobtest.Must(d.Pool.Begin(t.Context()))
	jobtest.Must(c.InsertTx(t.Context(), tx, call{}, nil))
	jobtest.Must(c.InsertManyTx(t.Context(), tx, many))
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 6, d.count(t, "metadata ? 'dripfeed_ticket'"))

	c.add(t, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
	c.add(t, &river.InsertOpts{Pending: true})
	c.add(t, &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
	require.Equal(t, 6, d.count(t, "metadata ? 'dripfeed_ticket'"))
}
