package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// The workflow books, sleeps, and each attempt of the activity brings the ticket and pays the cost.
func TestAwait_BooksSleepsAndSendsTheTicket(t *testing.T) {
	const away = 300 * time.Millisecond
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		s := &script{
			place: func(outbound.Cost) (jobs.Run, error) {
				return jobs.Run{At: time.Now().Add(away), Ticket: "a place"}, nil
			},
			answer: func(_ context.Context, n int) error {
				switch n {
				case 1, 2:
					return &jobs.Later{In: time.Millisecond, Ticket: "a place"}
				case 3:
					return &jobs.Later{In: time.Millisecond, Ticket: "another"}
				}
				return nil
			},
		}
		other := &script{answer: func(context.Context, int) error { return nil }}
		tickets := &kept{}
		w := &world{tickets: tickets, activities: map[string]any{"Call": new(counter).call, "Other": new(counter).call}}
		w.limiter = func(info activity.Info) (outbound.Limiter, outbound.Cost) {
			if info.ActivityType.Name == "Other" {
				return other, outbound.Cost{5}
			}
			return s.paced(info)
		}
		cost := outbound.Cost{1, 250.5}
		took, err := run(w, order{Activity: "Call", Await: true, Other: true, Cost: cost})
		if err != nil || took < away*9/10 || took > 30*time.Minute {
			t.Errorf("%v, it took %v", err, took)
		}
		s.check(t, arrival{"a place", cost, 1}, arrival{"a place", cost, 2}, arrival{"a place", cost, 3}, arrival{"another", cost, 4})
		if fmt.Sprint(s.booked) != fmt.Sprint([]outbound.Cost{cost}) {
			t.Errorf("booked %v", s.booked)
		}
		if len(tickets.ttls) != 1 { // the workflow keeps the other one
			t.Errorf("%d tickets were kept", len(tickets.ttls))
		}
		other.check(t, arrival{"", outbound.Cost{5}, 1}) // the place was not booked for that
		if bad := w.log.text(); bad != "" {
			t.Errorf("logged:\n%s", bad)
		}
	})
}

// An activity whose workflow has no reservation books for itself.
func TestAwait_ContinuesWithoutAReservation(t *testing.T) {
	for name, change := range map[string]func(*world, *script){
		"the store is away": func(_ *world, s *script) {
			s.place = func(outbound.Cost) (jobs.Run, error) { return jobs.Run{}, store.ErrUnavailable }
		},
		"a limiter of calls": func(w *world, s *script) {
			w.limiter = func(i activity.Info) (outbound.Limiter, outbound.Cost) { return onlyAcquires{s}, outbound.Cost{1} }
		},
		"a key whose limiter is no Scheduler": func(w *world, s *script) {
			tenants := &outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return onlyAcquires{s}, nil }}
			w.limiter = func(i activity.Info) (outbound.Limiter, outbound.Cost) { return tenants.For("acme"), outbound.Cost{1} }
		},
		"too far away": func(_ *world, s *script) {
			s.place = func(outbound.Cost) (jobs.Run, error) { return jobs.Run{At: time.Now()}, nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
				s := &script{answer: func(context.Context, int) error { return nil }}
				w := &world{limiter: s.paced, activities: call("Call", new(counter).call)}
				change(w, s)
				if _, err := run(w, order{Activity: "Call", Await: true, Cost: outbound.Cost{2}}); err != nil {
					t.Error(err)
				}
				s.check(t, arrival{"", outbound.Cost{2}, 1})
				if bad := w.log.text(); (bad != "") != (name == "the store is away") {
					t.Errorf("logged:\n%s", bad)
				}
			})
		})
	}
}

type onlyAcquires struct{ outbound.Limiter }

func TestAwait_FailsForACostAboveCapacity(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		s := &script{place: func(outbound.Cost) (jobs.Run, error) {
			return jobs.Run{}, &outbound.CostError{Err: outbound.ErrTooLarge}
		}}
		w := &world{limiter: s.paced, activities: call("Call", new(counter).call)}
		_, err := run(w, order{Activity: "Call", Await: true, Cost: outbound.Cost{1e9}})
		var failure *temporal.ApplicationError
		if !errors.As(err, &failure) || failure.Type() != TypeCost || len(s.booked) != 1 || len(s.arrivals) != 0 {
			t.Errorf("%v; booked %v, arrivals %v", err, s.booked, s.arrivals)
		}

		w = &world{activities: call("Call", new(counter).call)} // no interceptor
		_, err = run(w, order{Activity: "Call", Await: true})
		if err == nil || !strings.Contains(err.Error(), "NewInterceptor") {
			t.Errorf("without an interceptor: %v", err)
		}
	})
}

func TestAwait_CancelledWorkflow(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		w := &world{cancel: make(chan struct{}), activities: call("Call", new(counter).call)}
		s := &script{place: func(outbound.Cost) (jobs.Run, error) {
			close(w.cancel)
			return jobs.Run{At: time.Now().Add(time.Hour), Ticket: "a place"}, nil
		}}
		w.limiter = s.paced
		_, err := run(w, order{Activity: "Call", Await: true})
		if !temporal.IsCanceledError(err) || len(s.arrivals) != 0 {
			t.Errorf("%v, arrivals %v", err, s.arrivals)
		}
	})
}

// The reservation may be near, so that there is nothing to sleep for.
func TestAwait_CancelledContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{place: func(outbound.Cost) (jobs.Run, error) { return jobs.Run{At: time.Now()}, nil }}
		var suite testsuite.WorkflowTestSuite
		suite.SetLogger(new(logs))
		env := suite.NewTestWorkflowEnvironment()
		env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{NewInterceptor(s.paced, nil)}})
		env.ExecuteWorkflow(func(ctx workflow.Context) error {
			ctx, cancel := workflow.WithCancel(ctx)
			cancel()
			if _, err := Await(ctx, "Call", outbound.Cost{1}); !temporal.IsCanceledError(err) {
				return fmt.Errorf("got %v", err)
			}
			return nil
		})
		if err := env.GetWorkflowError(); err != nil {
			t.Error(err)
		}
	})
}

// Whatever is in the header, the limiter decides.
func TestAwait_InvalidHeader(t *testing.T) {
	one := outbound.Cost{1}
	for text, want := range map[string]arrival{
		``:                                   {"", one, 1},
		`{`:                                  {"", one, 1},
		`[]`:                                 {"", one, 1},
		`{"Ticket":7,"Cost":[9]}`:            {"", one, 1},
		`{"Ticket":"t","Cost":"all"}`:        {"", one, 1},
		`{"Ticket":"t","Cost":[1e999]}`:      {"", one, 1},
		`{"Ticket":"t","Cost":[-1,2,3,4,5]}`: {"t", outbound.Cost{-1, 2, 3, 4}, 1},
		`{"Ticket":"\u0000 t","Cost":[3]}`:   {"\x00 t", outbound.Cost{3}, 1},
	} {
		s := &script{answer: func(context.Context, int) error { return nil }}
		var suite testsuite.WorkflowTestSuite
		suite.SetLogger(new(logs))
		env := suite.NewTestActivityEnvironment()
		env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{NewInterceptor(s.paced, nil)}})
		env.RegisterActivityWithOptions(new(counter).call, activity.RegisterOptions{Name: "Call"})
		env.SetHeader(&commonpb.Header{Fields: map[string]*commonpb.Payload{headerKey: {
			Metadata: map[string][]byte{converter.MetadataEncoding: []byte(converter.MetadataEncodingJSON)}, Data: []byte(text),
		}}})
		if _, err := env.ExecuteActivity("Call"); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		s.check(t, want)
	}
}
