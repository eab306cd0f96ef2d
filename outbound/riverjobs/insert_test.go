package riverjobs_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/riverjobs"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// desk is a limiter that books a reservation every 2 s, the first of them 1 s ago.
type desk struct {
	outbound.Unlimited
	booked []outbound.Cost
	trips  int
	err    error
}

var deskOpens = time.Now().Add(-time.Second)

func (d *desk) Book(_ context.Context, costs ...outbound.Cost) (places []jobs.Run, err error) {
	d.trips++
	if d.err != nil {
		return nil, d.err
	}
	for _, c := range costs {
		n := len(d.booked)
		places = append(places, jobs.Run{At: deskOpens.Add(time.Duration(n) * 2 * time.Second), Ticket: fmt.Sprintf("%p-%d", d, n)})
		d.booked = append(d.booked, c)
	}
	return places, nil
}

func insertParams(kind string) *rivertype.JobInsertParams {
	return &rivertype.JobInsertParams{Kind: kind, Queue: "default", EncodedArgs: []byte("{}"), Metadata: []byte("{}"), State: rivertype.JobStateAvailable}
}

// insert inserts jobs, and returns how they are inserted.
func insert(t *testing.T, p *riverjobs.Plugin, jobs ...*rivertype.JobInsertParams) {
	t.Helper()
	want := []*rivertype.JobInsertResult{{}}
	got, err := p.InsertMany(t.Context(), jobs, func(context.Context) ([]*rivertype.JobInsertResult, error) { return want, errors.New("full disk") })
	require.Equal(t, want, got)
	require.EqualError(t, err, "full disk")
}

func TestInsertMany_SchedulesJobsAtTheirReservations(t *testing.T) {
	desks := map[string]*desk{"a": {}, "b": {}}
	p := &riverjobs.Plugin{AtInsert: true, Limiter: func(kind, _ string, _ []byte) (outbound.Limiter, outbound.Cost) {
		if d := desks[kind]; d != nil {
			return outbound.Observe(d, kind, func(context.Context, outbound.Event) {}), outbound.Cost{float64(kind[0])}
		}
		return outbound.Unlimited{}, outbound.Cost{1}
	}}
	var jobs []*rivertype.JobInsertParams
	for i := range 12 {
		jobs = append(jobs, insertParams("abc"[i%3:i%3+1]))
		jobs[i].Metadata = []byte(`{"yours":{"n":12345678901234567890},"dripfeed_ticket":"old"}`)
	}
	insert(t, p, jobs...)
	for i, job := range jobs {
		if job.Kind == "c" {
			require.Equal(t, `{"yours":{"n":12345678901234567890},"dripfeed_ticket":"old"}`, string(job.Metadata))
			require.Nil(t, job.ScheduledAt)
			continue
		}
		n := i / 3
		require.JSONEq(t, `{"yours":{"n":12345678901234567890},"dripfeed_ticket":"`+fmt.Sprintf("%p-%d", desks[job.Kind], n)+`"}`, string(job.Metadata))
		switch at := deskOpens.Add(time.Duration(n) * 2 * time.Second); {
		case time.Until(at) < 0: // its time has come
			require.Nil(t, job.ScheduledAt)
			require.Equal(t, rivertype.JobStateAvailable, job.State)
		default:
			require.Equal(t, at, *job.ScheduledAt)
		}
	}
	for kind, d := range desks {
		require.Equal(t, 1, d.trips)
		require.Equal(t, []outbound.Cost{{float64(kind[0])}, {float64(kind[0])}, {float64(kind[0])}, {float64(kind[0])}}, d.booked)
	}
}

// Only a job that is away for longer than the scheduler looks ahead needs a scheduler.
func TestInsertMany_SchedulesOnlyFarJobs(t *testing.T) {
	p := &riverjobs.Plugin{AtInsert: true, Limiter: one(&desk{})}
	jobs := make([]*rivertype.JobInsertParams, 100)
	for i := range jobs {
		jobs[i] = insertParams("a")
	}
	insert(t, p, jobs...)
	require.Equal(t, rivertype.JobStateAvailable, jobs[1].State) // in 1 s
	for _, job := range jobs[len(jobs)/2:] {
		require.Equal(t, rivertype.JobStateScheduled, job.State)
	}
}

func TestInsertMany_LeavesSomeJobsUnbooked(t *testing.T) {
	at := time.Now().Add(time.Hour)
	for name, change := range map[string]func(*riverjobs.Plugin, *desk, *rivertype.JobInsertParams){
		"without AtInsert": func(p *riverjobs.Plugin, _ *desk, _ *rivertype.JobInsertParams) { p.AtInsert = false },
		"a job that is scheduled": func(_ *riverjobs.Plugin, _ *desk, j *rivertype.JobInsertParams) {
			j.State, j.ScheduledAt = rivertype.JobStateScheduled, &at
		},
		"a job that is pending":   func(_ *riverjobs.Plugin, _ *desk, j *rivertype.JobInsertParams) { j.State = rivertype.JobStatePending },
		"a job that is unique":    func(_ *riverjobs.Plugin, _ *desk, j *rivertype.JobInsertParams) { j.UniqueKey = []byte("u") },
		"a job that is not paced": func(p *riverjobs.Plugin, _ *desk, _ *rivertype.JobInsertParams) { p.Limiter = one(nil) },
		"a limiter without places": func(p *riverjobs.Plugin, _ *desk, _ *rivertype.JobInsertParams) {
			p.Limiter = one(outbound.Unlimited{})
		},
		"a store that is away":     func(_ *riverjobs.Plugin, d *desk, _ *rivertype.JobInsertParams) { d.err = store.ErrUnavailable },
		"a cost that is too large": func(_ *riverjobs.Plugin, d *desk, _ *rivertype.JobInsertParams) { d.err = outbound.ErrTooLarge },
		"a Scheduler that is none": func(p *riverjobs.Plugin, _ *desk, _ *rivertype.JobInsertParams) {
			p.Limiter = one((*jobs.Scheduler)(nil))
		},
		"a limiter that is no key of a map": func(p *riverjobs.Plugin, d *desk, _ *rivertype.JobInsertParams) {
			p.Limiter = one(struct {
				*desk
				tags []string
			}{d, nil})
		},
		"a plugin without a Limiter": func(p *riverjobs.Plugin, _ *desk, _ *rivertype.JobInsertParams) { p.Limiter = nil },
		"a Scheduler that is badly set up": func(p *riverjobs.Plugin, _ *desk, _ *rivertype.JobInsertParams) {
			p.Limiter = one(jobs.New(nil, jobs.Config{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(desk)
			p, job := &riverjobs.Plugin{AtInsert: true, Limiter: one(d)}, insertParams("a")
			change(p, d, job)
			want := *job
			insert(t, p, job)
			require.Equal(t, want, *job)
			require.Empty(t, d.booked)
		})
	}
}

// A reservation without a ticket is one beyond Config.Ahead. Metadata that is no object is River's to refuse.
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
		insert(t, &riverjobs.Plugin{AtInsert: true, Limiter: one(new(desk))}, job)
		require.Equal(t, text, string(job.Metadata), strconv.Quote(text))
	}
}

// generous books a reservation too many.
type generous struct{ *desk }

func (g generous) Book(ctx context.Context, costs ...outbound.Cost) ([]jobs.Run, error) {
	return g.desk.Book(ctx, append(costs, outbound.Cost{1})...)
}

func TestInsertMany_IgnoresSurplusReservations(t *testing.T) {
	job := insertParams("a")
	insert(t, &riverjobs.Plugin{AtInsert: true, Limiter: one(generous{new(desk)})}, job)
	require.Contains(t, string(job.Metadata), "dripfeed_ticket")
}
