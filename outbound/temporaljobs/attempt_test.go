package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

const heartbeat = 2 * time.Second

// again is the error of an activity that asks for another attempt.
var again = temporal.NewApplicationErrorWithOptions("again", "", temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond})

// A wait that is longer than the HeartbeatTimeout sends heartbeats, else the activity would run twice. The details of
// an earlier attempt survive waits and reschedules.
func TestHeartbeat_DetailsSurviveWaitAndReschedule(t *testing.T) {
	inBoth(t, "an attempt that waits, and one that is rescheduled", func(t *testing.T, w *world) {
		w.answer = func(_ context.Context, n int) error {
			switch n {
			case 2:
				return jobtest.Later(time.Millisecond, "a")
			case 3:
				time.Sleep(2 * heartbeat)
			}
			return nil
		}
		seen := ""
		w.tickets, w.call = &jobtest.Tickets{}, func(ctx context.Context, run int) error {
			var page string
			var n int
			none := activity.GetHeartbeatDetails(ctx, &page, &n) != nil
			seen += fmt.Sprintf("%d: %q %d %v, ", activity.GetInfo(ctx).Attempt, page, n, none)
			switch run {
			case 1:
				activity.RecordHeartbeat(ctx, "page", 7)
				return again
			case 2:
				return again // without a heartbeat of its own
			}
			return nil
		}
		if _, err := w.run(order{Heartbeat: heartbeat}); err != nil || seen != `1: "" 0 true, 3: "page" 7 false, 4: "page" 7 false, ` {
			t.Errorf("%v, seen %s", err, seen)
		}
	})
}

// oneWay is a DataConverter that cannot write a RawValue, and may be able to read one.
type oneWay struct {
	converter.DataConverter
	reads bool
}

func (o oneWay) FromPayloads(p *commonpb.Payloads, into ...any) error {
	if len(into) > 0 && !o.reads {
		if _, ok := into[0].(*converter.RawValue); ok {
			return errOwn
		}
	}
	return o.DataConverter.FromPayloads(p, into...)
}

func (o oneWay) ToPayloads(values ...any) (*commonpb.Payloads, error) {
	if len(values) > 0 {
		if _, ok := values[0].(converter.RawValue); ok {
			return nil, errOwn
		}
	}
	return o.DataConverter.ToPayloads(values...)
}

// A wait that cannot send the details ends: without a heartbeat Temporal ends the attempt, and a heartbeat
// without the details deletes them.
func TestHeartbeat_UnsendableDetailsStay(t *testing.T) {
	for _, reads := range []bool{false, true} {
		t.Run(fmt.Sprint("reads ", reads), inSuite(func(t *testing.T, w *world) {
			w.answer = func(ctx context.Context, n int) error {
				if n == 2 {
					return wait(ctx, 2*heartbeat)
				}
				return nil
			}
			seen := ""
			w.tickets, w.converter, w.call = &jobtest.Tickets{}, oneWay{converter.GetDefaultDataConverter(), reads}, func(ctx context.Context, n int) error {
				var page string
				_ = activity.GetHeartbeatDetails(ctx, &page)
				seen += fmt.Sprintf("%q ", page)
				if n == 1 {
					activity.RecordHeartbeat(ctx, "page")
					return again
				}
				return nil
			}
			if _, err := w.run(order{Heartbeat: heartbeat}); err != nil || seen != `"" "page" ` || w.acquired != 3 || !strings.Contains(w.log.text(), "cannot send heartbeats") {
				t.Errorf("%v, seen %s, attempts%s, logged %q", err, seen, w.arrivals, w.log.text())
			}
		}))
	}
}

// wait waits for d, or until ctx ends, and returns its error.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// The heartbeats of a wait report that the workflow has been cancelled, to the limiter and to a last attempt that
// waits for its reservation.
func TestWait_CancelEndsIt(t *testing.T) {
	for _, attempts := range []int32{0, 1} {
		t.Run(fmt.Sprint("attempts ", attempts), func(t *testing.T) {
			onServer(t, func(t *testing.T, w *world) { // the testsuite reports it only to activities that send heartbeats themselves
				w.cancel = make(chan struct{})
				w.answer = func(ctx context.Context, _ int) error {
					close(w.cancel)
					if attempts == 1 {
						return jobtest.Later(30*time.Second, "a")
					}
					<-ctx.Done()
					return ctx.Err()
				}
				begin := time.Now()
				_, err := w.run(order{Heartbeat: heartbeat, Attempts: attempts})
				if !temporal.IsCanceledError(err) || w.runs != 0 || w.acquired != 1 || time.Since(begin) > 30*time.Second {
					t.Errorf("%v, attempts%s, %d runs", err, w.arrivals, w.runs)
				}
			})
		})
	}
}

// A worker that stops reschedules an activity that waits, except on its last attempt. That is no failure, neither if the
// limiter returns a Later, as a Scheduler does, nor if it returns the ctx's error, as a queue does.
func TestWait_StoppingWorkerReschedules(t *testing.T) {
	for name, c := range map[string]struct {
		order
		ended func(error) error
		want  string
	}{
		"Scheduler":    {order{}, func(err error) error { return &jobs.Later{Err: err, Ticket: "a"} }, " 1 2a"},
		"queue":        {order{}, func(err error) error { return err }, " 1 2"},
		"last attempt": {order{Attempts: 1}, func(err error) error { return err }, " 1"},
	} {
		inBoth(t, name, func(t *testing.T, w *world) {
			w.stop, w.tickets = make(chan struct{}), &jobtest.Tickets{}
			w.answer = func(ctx context.Context, n int) error {
				if n > 1 {
					return nil
				}
				close(w.stop)
				if c.Attempts == 1 {
					return wait(ctx, 200*time.Millisecond)
				}
				<-ctx.Done()
				return c.ended(ctx.Err())
			}
			if _, err := w.run(c.order); err != nil || w.runs != 1 || w.arrivals != c.want || w.log.text() != "" {
				t.Errorf("%v, attempts%s, %d runs, logged:\n%s", err, w.arrivals, w.runs, w.log.text())
			}
		})
	}
}

// The stop of a worker ends a wait, and not an activity that runs.
func TestWait_DoesNotEndARunningActivity(t *testing.T) {
	inBoth(t, "an activity that runs", func(t *testing.T, w *world) {
		w.stop, w.call = make(chan struct{}), func(ctx context.Context, _ int) error {
			close(w.stop)
			<-activity.GetWorkerStopChannel(ctx)
			if err := wait(ctx, 50*time.Millisecond); err != nil {
				return err
			}
			outbound.PermitFrom(ctx).Settle(outbound.Cost{2})
			return nil
		}
		if _, err := w.run(order{}); err != nil || w.done != 1 || w.settled != (outbound.Cost{2}) {
			t.Errorf("%v, %d calls have ended, settled %v", err, w.done, w.settled)
		}
	})
}

// The next attempt of a refused activity comes after the pause or after the RetryPolicy's delay, whichever is later.
// An earlier attempt would be rescheduled.
func TestPause_DelaysTheNextAttempt(t *testing.T) {
	own := func(delay time.Duration) error {
		return temporal.NewApplicationErrorWithOptions("no", "Own", temporal.ApplicationErrorOptions{NextRetryDelay: delay})
	}
	for name, c := range map[string]struct {
		fails           error
		pause, interval time.Duration
		want            time.Duration
	}{
		"pause":                  {errOwn, 2 * time.Second, time.Millisecond, 2 * time.Second},
		"policy":                 {errOwn, time.Second, 2 * time.Second, 2 * time.Second},
		"of the activity":        {own(3 * time.Second), time.Second, time.Millisecond, 3 * time.Second},
		"of the activity, inner": {fmt.Errorf("order: %w", own(time.Millisecond)), 2 * time.Second, time.Millisecond, 2 * time.Second}, // the SDK ignores its delay
	} {
		inBoth(t, name, func(t *testing.T, w *world) {
			calls := jobs.New(outbound.Must(outbound.NewBucket("api", outbound.PerSecond(100))), jobs.Config{PollInterval: time.Millisecond, HeadStart: time.Millisecond})
			var begun []time.Time
			var attempts []int32
			w.bubble, w.tickets = true, &jobtest.Tickets{}
			w.limiter = func(activity.Info) (outbound.Limiter, outbound.Cost) { return calls, outbound.Cost{1} }
			w.call = func(ctx context.Context, n int) error {
				begun, attempts = append(begun, time.Now()), append(attempts, activity.GetInfo(ctx).Attempt)
				if n == 1 {
					outbound.PermitFrom(ctx).Refused(c.pause)
					return c.fails
				}
				return nil
			}
			took, err := w.run(order{Interval: c.interval})
			if err != nil || len(begun) != 2 || attempts[1] != 2 && c.pause > c.interval {
				t.Fatalf("%v, attempts %v", err, attempts)
			}
			// The delay of a RetryPolicy passes by the testsuite's own clock, so the pause continues after it.
			if took = max(took, begun[1].Sub(begun[0])); took < c.want || took > c.want+5*time.Second {
				t.Errorf("the next attempt comes after %v, want %v", took, c.want)
			}
		})
	}
}

// The pause changes the delay alone: message, type and cause are as the SDK makes them.
func TestPause_KeepsTheError(t *testing.T) {
	for _, err := range []error{errOwn, errors.New("plain"), &url.Error{Op: "Get", URL: "u", Err: errOwn}, fmt.Errorf("of: %w", errOwn), temporal.NewTimeoutError(enums.TIMEOUT_TYPE_HEARTBEAT, nil)} {
		c := temporal.GetDefaultFailureConverter()
		made := c.ErrorToFailure((&attempt{pause: time.Minute}).afterPause(err))
		if info := made.GetApplicationFailureInfo(); info != nil {
			if info.GetNextRetryDelay().AsDuration() != time.Minute {
				t.Errorf("%v", made)
			}
			info.NextRetryDelay = nil
		}
		if want := c.ErrorToFailure(err); made.String() != want.String() {
			t.Errorf("%T: %v, want %v", err, made, want)
		}
	}
	if err := (&attempt{pause: time.Minute}).afterPause(activity.ErrResultPending); err != activity.ErrResultPending {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(temporal.NewCanceledError())
	if err := new(pacer).reschedule(ctx, &attempt{pause: time.Minute}, context.Canceled); err != context.Canceled { // else the SDK reports a failure
		t.Errorf("a cancelled activity: %v", err)
	}
	for n, want := range map[int32]time.Duration{1: time.Second, 3: 4 * time.Second, 8: time.Minute, 4000: time.Minute} {
		p := &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: time.Minute}
		if got := (&attempt{info: activity.Info{Attempt: n, RetryPolicy: p}}).backoff(); got != want {
			t.Errorf("attempt %d: %v, want %v", n, got, want)
		}
	}
}
