package temporaljobs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// The workflow books, sleeps, and each attempt of the activity brings the ticket and pays the cost.
func TestAwait_BooksSleepsAndSendsTheTicket(t *testing.T) {
	const away = 300 * time.Millisecond
	inBoth(t, "four attempts", func(t *testing.T, w *world) {
		w.book = func() (jobs.Run, error) { return jobs.Run{At: time.Now().Add(away), Ticket: "a"}, nil }
		w.answer = jobtest.InTurn(jobtest.Later(time.Millisecond, "a"), jobtest.Later(time.Millisecond, "b"), jobtest.Later(time.Millisecond, ""))
		second := newWorld(t, "")
		w.limiter = func(i activity.Info) (outbound.Limiter, outbound.Cost) {
			if i.IsLocalActivity {
				t.Error("the limiter gets the local activity that books, not the activity")
			}
			if i.ActivityType.Name == "Other" {
				return second, outbound.Cost{5}
			}
			return w.limits(i)
		}
		tickets := &jobtest.Tickets{}
		w.tickets = tickets
		cost := outbound.Cost{1, 250.5}
		took, err := w.run(order{Await: true, Other: true, Cost: cost})
		if err != nil || took < away*9/10 || took > 30*time.Minute || w.log.text() != "" {
			t.Errorf("%v after %v; logged:\n%s", err, took, w.log.text())
		}
		if paid := fmt.Sprint(cost); w.arrivals != " 1a"+paid+" 2a"+paid+" 3b"+paid+" 4b"+paid || fmt.Sprint(w.booked) != fmt.Sprint([]outbound.Cost{cost}) {
			t.Errorf("booked %v, attempts%s", w.booked, w.arrivals)
		}
		tickets.Check(t, " get() b:1h0m0.001s get(b) get(b)") // the workflow keeps the first one
		if second.arrivals != " 1[5 0 0 0]" {                 // the ticket is of another activity
			t.Errorf("attempts of the other activity%s", second.arrivals)
		}
	})
}

type onlyAcquires struct{ outbound.Limiter }

// An activity whose workflow has no reservation books for itself.
func TestAwait_ContinuesWithoutAReservation(t *testing.T) {
	for name, change := range map[string]func(*world){
		"the store is unavailable": func(w *world) {
			w.book = func() (jobs.Run, error) { return jobs.Run{}, store.ErrUnavailable }
		},
		"a limiter of calls": func(w *world) {
			w.limiter = func(activity.Info) (outbound.Limiter, outbound.Cost) { return onlyAcquires{w}, outbound.Cost{1} }
		},
		"a key whose limiter is no Scheduler": func(w *world) {
			tenants := &outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return onlyAcquires{w}, nil }}
			w.limiter = func(activity.Info) (outbound.Limiter, outbound.Cost) { return tenants.For("acme"), outbound.Cost{1} }
		},
		"no ticket": func(w *world) {
			w.book = func() (jobs.Run, error) { return jobs.Run{At: time.Now()}, nil }
		},
	} {
		inBoth(t, name, func(t *testing.T, w *world) {
			change(w)
			if _, err := w.run(order{Await: true, Cost: outbound.Cost{2}}); err != nil || w.arrivals != " 1[2 0 0 0]" {
				t.Errorf("%v, attempts%s", err, w.arrivals)
			}
			if bad := w.log.text(); (bad != "") != (name == "the store is unavailable") {
				t.Errorf("logged:\n%s", bad)
			}
		})
	}
}

// Await returns the error of a cost above a limit's capacity, and of a worker without the interceptor.
func TestAwait_Errors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		good   func(error) bool
	}{
		"cost": {func(w *world) {
			w.book = func() (jobs.Run, error) { return jobs.Run{}, &outbound.CostError{Err: outbound.ErrTooLarge} }
		}, func(err error) bool { return typeOf(err) == TypeCost }},
		"no interceptor": {func(w *world) { w.limiter = nil }, func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "NewInterceptor")
		}},
	} {
		inBoth(t, name, func(t *testing.T, w *world) {
			c.change(w)
			if _, err := w.run(order{Await: true}); !c.good(err) || w.runs != 0 || (w.limiter != nil) != (len(w.booked) == 1) {
				t.Errorf("%v; booked %v, %d runs", err, w.booked, w.runs)
			}
		})
	}
}

// A cancelled ctx is an error, both of the booking and of the sleep.
func TestAwait_CancelledContext(t *testing.T) {
	for _, in := range []time.Duration{0, time.Minute} { // until the ctx is cancelled
		inSuite(func(t *testing.T, w *world) {
			w.book = func() (jobs.Run, error) { return jobs.Run{At: time.Now().Add(2 * in), Ticket: "a"}, nil }
			var suite testsuite.WorkflowTestSuite
			suite.SetLogger(&w.log)
			env := suite.NewTestWorkflowEnvironment()
			env.SetWorkerOptions(w.options())
			env.ExecuteWorkflow(func(root workflow.Context) error {
				ctx, cancel := workflow.WithCancel(root)
				if in == 0 {
					cancel()
				}
				workflow.Go(root, func(root workflow.Context) {
					_ = workflow.Sleep(root, in)
					cancel()
				})
				if _, err := Await(ctx, "Call", outbound.Cost{1}); !temporal.IsCanceledError(err) {
					return fmt.Errorf("got %v", err)
				}
				return nil
			})
			if err := env.GetWorkflowError(); err != nil {
				t.Error(err)
			}
		})(t)
	}
}

// An unreadable header books nothing, and the limiter judges any cost in it.
func TestAwait_InvalidHeader(t *testing.T) {
	for text, want := range map[string]string{
		``:                                   " 1",
		`{`:                                  " 1",
		`[]`:                                 " 1",
		`{"Ticket":7,"Cost":[9]}`:            " 1",
		`{"Ticket":"t","Cost":"all"}`:        " 1",
		`{"Ticket":"t","Cost":[1e999]}`:      " 1",
		`{"Ticket":"t","Cost":[-1,2,3,4,5]}`: " 1t[-1 2 3 4]",
		`{"Ticket":"\u0000 t","Cost":[3]}`:   " 1\x00 t[3 0 0 0]",
	} {
		w := newWorld(t, "")
		var suite testsuite.WorkflowTestSuite
		suite.SetLogger(&w.log)
		env := suite.NewTestActivityEnvironment()
		env.SetWorkerOptions(w.options())
		env.RegisterActivityWithOptions(w.activity, activity.RegisterOptions{Name: "Call"})
		env.SetHeader(&commonpb.Header{Fields: map[string]*commonpb.Payload{headerKey: {
			Metadata: map[string][]byte{converter.MetadataEncoding: []byte(converter.MetadataEncodingJSON)}, Data: []byte(text),
		}}})
		if _, err := env.ExecuteActivity("Call"); err != nil || w.arrivals != want {
			t.Errorf("%q: %v, attempts%s", text, err, w.arrivals)
		}
	}
}

// Workflows that have begun with this Await go on with the next version's: testdata/await.json is what a server
// has recorded of one. A change that breaks it breaks the workflows of users, and needs a GetVersion in Await.
func TestAwait_ReplaysARunningWorkflow(t *testing.T) {
	w := newWorld(t, "")
	replayer := jobtest.Must(worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{Interceptors: w.options().Interceptors}))
	replayer.RegisterWorkflowWithOptions(order{Await: true}.workflow, workflow.RegisterOptions{Name: "Order"})
	if err := replayer.ReplayWorkflowHistoryFromJSONFile(&w.log, "testdata/await.json"); err != nil || len(w.booked) != 0 {
		t.Errorf("%v, booked %v", err, w.booked)
	}
}
