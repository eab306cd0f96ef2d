package temporaljobs

import (
	"testing"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/dripfeed/dripfeed/outbound"
)

// Workflows that have begun with this Await go on with the next version's: testdata/await.json is what a server
// has recorded of one. A change that breaks it breaks the workflows of users, and needs a GetVersion in Await.
func TestAwait_ReplaysARunningWorkflow(t *testing.T) {
	s := new(script) // nobody asks it: the reservation is in the history
	replayer, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{
		Interceptors: []interceptor.WorkerInterceptor{NewInterceptor(s.paced, nil)},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := order{Activity: "Call", Await: true, Cost: outbound.Cost{1}}
	replayer.RegisterWorkflowWithOptions(o.workflow, workflow.RegisterOptions{Name: "Order"})
	if err := replayer.ReplayWorkflowHistoryFromJSONFile(new(logs), "testdata/await.json"); err != nil {
		t.Error(err)
	}
	if len(s.booked) != 0 {
		t.Errorf("booked %v", s.booked)
	}
}
