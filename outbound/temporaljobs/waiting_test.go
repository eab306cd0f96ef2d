package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// An activity that waits for longer than its HeartbeatTimeout would be lost, and run twice. What an
// earlier attempt has told stays, and nothing of ours comes to it.
func TestHeartbeat_DetailsSurviveWaitAndReschedule(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		const heartbeat = 2 * time.Second
		s := &script{answer: func(ctx context.Context, n int) error {
			switch n {
			case 2:
				return &jobs.Later{In: time.Millisecond, Ticket: "a place"}
			case 3:
				time.Sleep(2 * heartbeat)
			}
			return nil
		}}
		var mu sync.Mutex
		var seen []string
		again := temporal.NewApplicationErrorWithOptions("again", "", temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})
		w := &world{limiter: s.paced, tickets: &kept{}, activities: call("Call", func(ctx context.Context) error {
			var page string
			var n int
			none := activity.GetHeartbeatDetails(ctx, &page, &n) != nil
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("%d: %q %d %v", activity.GetInfo(ctx).Attempt, page, n, none))
			switch len(seen) {
			case 1:
				activity.RecordHeartbeat(ctx, "page", 7)
				return again
			case 2:
				return again // what it has heard itself, it does not tell again
			}
			return nil
		})}
		if _, err := run(w, order{Activity: "Call", Heartbeat: heartbeat}); err != nil {
			t.Error(err)
		}
		want := `[1: "" 0 true 3: "page" 7 false 4: "page" 7 false]`
		if fmt.Sprint(seen) != want {
			t.Errorf("seen %v, want %s", seen, want)
		}
	})
}

// own is a DataConverter that does not know RawValue, or knows it only one way.
type own struct {
	converter.DataConverter
	reads bool
}

var errRaw = errors.New("no RawValue, please")

func (o own) FromPayloads(p *commonpb.Payloads, into ...any) error {
	if len(into) > 0 && !o.reads {
		if _, ok := into[0].(*converter.RawValue); ok {
			return errRaw
		}
	}
	return o.DataConverter.FromPayloads(p, into...)
}

func (o own) ToPayloads(values ...any) (*commonpb.Payloads, error) {
	if len(values) > 0 {
		if _, ok := values[0].(converter.RawValue); ok {
			return nil, errRaw
		}
	}
	return o.DataConverter.ToPayloads(values...)
}

// A wait that cannot send the details along ends: without a heartbeat Temporal gives the attempt up, and with
// one that has none the details are gone.
func TestHeartbeat_UnsendableDetailsStay(t *testing.T) {
	const heartbeat = 2 * time.Second
	for _, reads := range []bool{false, true} {
		inBubble(func(t *testing.T) {
			s := &script{answer: func(ctx context.Context, n int) error {
				if n != 2 {
					return nil
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(2 * heartbeat):
					return nil
				}
			}}
			var seen []string
			w := &world{limiter: s.paced, tickets: &kept{}, converter: own{converter.GetDefaultDataConverter(), reads}, activities: call("Call", func(ctx context.Context) error {
				var page string
				_ = activity.GetHeartbeatDetails(ctx, &page)
				if seen = append(seen, page); len(seen) == 1 {
					activity.RecordHeartbeat(ctx, "page")
					return temporal.NewApplicationErrorWithOptions("again", "", temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})
				}
				return nil
			})}
			if _, err := w.runInSuite(order{Activity: "Call", Heartbeat: heartbeat}); err != nil || fmt.Sprintf("%q", seen) != `["" "page"]` || len(s.arrivals) != 3 {
				t.Errorf("reads %v: %v, seen %q, arrivals %v", reads, err, seen, s.arrivals)
			}
		})(t)
	}
}

// Heartbeats of a wait bring the news that the workflow has been cancelled, to the limiter and to a last
// attempt that waits for its next look there.
func TestWait_CancelEndsIt(t *testing.T) {
	address := serverAddress(t) // the testsuite tells only activities that heartbeat by themselves
	t.Parallel()
	for _, attempts := range []int32{0, 1} {
		w := &world{cancel: make(chan struct{})}
		s := &script{answer: func(ctx context.Context, _ int) error {
			close(w.cancel)
			if attempts == 1 {
				return &jobs.Later{In: 30 * time.Second, Ticket: "a place"}
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		var c counter
		w.limiter, w.activities = s.paced, call("Call", c.call)
		begin := time.Now()
		_, err := w.runOn(t, address, order{Activity: "Call", Heartbeat: 2 * time.Second, Attempts: attempts, WaitForCancel: true})
		if !temporal.IsCanceledError(err) || c.runs != 0 || len(s.arrivals) != 1 || time.Since(begin) > 30*time.Second {
			t.Errorf("%v, %d arrivals, and the activity ran %d times", err, len(s.arrivals), c.runs)
		}
	}
}

// A worker that stops puts back who waits. Neither a Scheduler, which tells that by a Later, nor a queue,
// which tells it by the ctx's own error, makes a failure of it.
func TestWait_StoppingWorkerReschedules(t *testing.T) {
	for _, ended := range []func(error) error{
		func(err error) error { return &jobs.Later{Err: err, Ticket: "a place"} },
		func(err error) error { return err },
	} {
		inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
			w := &world{stop: make(chan struct{}), tickets: &kept{}}
			s := &script{answer: func(ctx context.Context, n int) error {
				if n > 1 {
					return nil
				}
				close(w.stop)
				<-ctx.Done()
				return ended(ctx.Err())
			}}
			var c counter
			w.limiter, w.activities = s.paced, call("Call", c.call)
			if _, err := run(w, order{Activity: "Call"}); err != nil || c.runs != 1 || len(s.arrivals) != 2 || s.arrivals[1].attempt != 2 {
				t.Errorf("%v, arrivals %v, and the activity ran %d times", err, s.arrivals, c.runs)
			}
			if bad := w.log.text(); bad != "" {
				t.Errorf("logged:\n%s", bad)
			}
		})
	}
}

// Nobody would try it again, so it waits for as long as the worker stops.
func TestWait_LastAttemptContinuesWhileTheWorkerStops(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		w := &world{stop: make(chan struct{})}
		s := &script{answer: func(ctx context.Context, _ int) error {
			close(w.stop)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(200 * time.Millisecond):
				return nil
			}
		}}
		var c counter
		w.limiter, w.activities = s.paced, call("Call", c.call)
		if _, err := run(w, order{Activity: "Call", Attempts: 1}); err != nil || c.runs != 1 {
			t.Errorf("%v, and the activity ran %d times", err, c.runs)
		}
	})
}

// The stop of a worker ends a wait, and not what an activity does then.
func TestWait_DoesNotEndARunningActivity(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		w := &world{stop: make(chan struct{})}
		s := &script{answer: func(context.Context, int) error { return nil }}
		w.limiter, w.activities = s.paced, call("Call", func(ctx context.Context) error {
			close(w.stop)
			<-activity.GetWorkerStopChannel(ctx)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
			outbound.PermitFrom(ctx).Settle(outbound.Cost{2})
			return nil
		})
		if _, err := run(w, order{Activity: "Call"}); err != nil || s.done != 1 || s.settled != (outbound.Cost{2}) {
			t.Errorf("%v, %d calls ended, settled %v", err, s.done, s.settled)
		}
	})
}

// Tickets that cannot be kept cost the order, and nothing else.
func TestTickets_FailureCostsOnlyTheReservation(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		s := &script{answer: func(_ context.Context, n int) error {
			if n == 1 {
				return &jobs.Later{In: time.Millisecond, Ticket: "a place"}
			}
			return nil
		}}
		var c counter
		w := &world{limiter: s.paced, tickets: &kept{fails: true}, activities: call("Call", c.call)}
		_, err := run(w, order{Activity: "Call"})
		s.check(t, arrival{"", outbound.Cost{1}, 1}, arrival{"", outbound.Cost{1}, 2})
		if err != nil || w.log.text() == "" {
			t.Errorf("%v, logged %q", err, w.log.text())
		}
	})
}

// Temporal makes no attempt after the activity's ScheduleToCloseTimeout, and says so when it is asked for one.
func TestWait_ReservationAfterAllTimeoutsFails(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		s := &script{answer: func(context.Context, int) error { return &jobs.Later{In: time.Hour, Ticket: "a place"} }}
		w := &world{limiter: s.paced, activities: call("Call", new(counter).call)}
		took, err := run(w, order{Activity: "Call", InAll: 50 * time.Second})
		var failure *temporal.ApplicationError
		if !errors.As(err, &failure) || failure.Type() != TypeLater || len(s.arrivals) != 1 || took > 40*time.Second {
			t.Errorf("%v, after %v; arrivals %v", err, took, s.arrivals)
		}
	})
}

// A local activity comes back by a timer of its workflow, under another name: so nothing keeps its ticket.
func TestInterceptor_PacesLocalActivities(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		s := &script{answer: func(_ context.Context, n int) error {
			switch n {
			case 1:
				return &jobs.Later{In: 5 * time.Millisecond} // rescheduled
			case 2:
				return &jobs.Later{In: 5 * time.Millisecond, Ticket: "a place"}
			}
			return nil
		}}
		var c counter
		tickets := &kept{}
		w := &world{limiter: s.paced, tickets: tickets, activities: call("Call", c.call)}
		if _, err := run(w, order{Activity: "Call", Local: true}); err != nil || c.runs != 1 || len(tickets.ttls)+tickets.gets != 0 {
			t.Errorf("%v, tickets %+v, and the activity ran %d times", err, tickets, c.runs)
		}
		s.check(t, arrival{"", outbound.Cost{1}, 1}, arrival{"", outbound.Cost{1}, 2}, arrival{"a place", outbound.Cost{1}, 2})
	})
}
