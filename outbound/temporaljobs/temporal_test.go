package temporaljobs

// What the adapter relies on in Temporal, without the adapter.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
)

// fails returns an error like that of an activity that is rescheduled.
func fails(delay time.Duration, category temporal.ApplicationErrorCategory) error {
	return temporal.NewApplicationErrorWithOptions("later", TypeLater, temporal.ApplicationErrorOptions{NextRetryDelay: delay, Category: category})
}

// benign is the category of an activity that is rescheduled.
const benign = temporal.ApplicationErrorCategoryBenign

// attempts is an activity that tells the attempts that it has, and fails at all but one.
type attempts struct {
	err  error
	good int32 // the attempt that succeeds

	mu   sync.Mutex
	seen []int32
}

func (a *attempts) call(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := activity.GetInfo(ctx).Attempt
	a.seen = append(a.seen, n)
	if n == a.good {
		return nil
	}
	return a.err
}

func TestTemporal_DelayOf0IsTheRetryPolicys(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		const policys = 1500 * time.Millisecond
		a := &attempts{err: fails(0, benign), good: 2}
		took, err := run(&world{activities: call("Call", a.call)}, order{Activity: "Call", Interval: policys})
		if err != nil || took < policys*9/10 || fmt.Sprint(a.seen) != "[1 2]" {
			t.Errorf("%v, it took %v, attempts %v", err, took, a.seen)
		}
		a = &attempts{err: fails(time.Millisecond, benign), good: 2} // and 1 ms for 1 ms, where the policy's is an hour
		took, err = run(&world{activities: call("Call", a.call)}, order{Activity: "Call"})
		if err != nil || took > 30*time.Minute || fmt.Sprint(a.seen) != "[1 2]" {
			t.Errorf("%v, it took %v, attempts %v", err, took, a.seen)
		}
	})
}

func TestTemporal_CountsEachAttempt(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		a := &attempts{err: fails(time.Millisecond, benign), good: 3}
		_, err := run(&world{activities: call("Call", a.call)}, order{Activity: "Call", Attempts: 2})
		var failure *temporal.ApplicationError
		if !errors.As(err, &failure) || failure.Type() != TypeLater || fmt.Sprint(a.seen) != "[1 2]" {
			t.Errorf("%v, attempts %v", err, a.seen)
		}
	})
}

func TestTemporal_LogsNoBenignError(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		a := &attempts{err: fails(time.Millisecond, benign), good: 2}
		w := &world{activities: call("Call", a.call)}
		if _, err := run(w, order{Activity: "Call"}); err != nil || w.log.text() != "" {
			t.Errorf("%v, logged:\n%s", err, w.log.text())
		}
		a.err = fails(time.Millisecond, temporal.ApplicationErrorCategoryUnspecified)
		if _, err := run(w, order{Activity: "Call"}); err != nil || !strings.Contains(w.log.text(), "ERROR Activity error.") {
			t.Errorf("%v, of another error it logs:\n%s", err, w.log.text())
		}
	})
}

// So Laters are benign, and a wait that sends heartbeats sends the details along.
func TestTemporal_KeepsHeartbeatDetails(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		var mu sync.Mutex
		var seen []string
		w := &world{activities: call("Call", func(ctx context.Context) error {
			var raw, none converter.RawValue
			var page string
			wrong := activity.GetHeartbeatDetails(ctx, &page)
			_ = activity.GetHeartbeatDetails(ctx, &raw, &none) // more than there are
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("%v %q %v %v", activity.HasHeartbeatDetails(ctx), page, raw.Payload() != nil && wrong == nil, none.Payload() != nil))
			switch len(seen) {
			case 1:
				activity.RecordHeartbeat(ctx, "page")
			case 3:
				activity.RecordHeartbeat(ctx, raw)
			case 4:
				activity.RecordHeartbeat(ctx)
			case 5:
				return nil
			}
			return fails(time.Millisecond, benign)
		})}
		_, err := run(w, order{Activity: "Call"})
		want := []string{`false "" false false`, `true "page" true false`, `true "page" true false`, `true "page" true false`, `false "" false false`}
		if err != nil || fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("%v, seen %v, want %v", err, seen, want)
		}
	})
}

// An attempt without a heartbeat in time is given up, and another begins beside it.
func TestTemporal_GivesUpWithoutHeartbeats(t *testing.T) {
	address := serverAddress(t) // the testsuite makes no other attempt
	t.Parallel()
	second := make(chan struct{})
	w := &world{activities: call("Call", func(ctx context.Context) error {
		if activity.GetInfo(ctx).Attempt == 1 {
			<-second
			return errOwn
		}
		close(second)
		return nil
	})}
	if _, err := w.runOn(t, address, order{Activity: "Call", Heartbeat: 300 * time.Millisecond, Interval: time.Millisecond}); err != nil {
		t.Error(err)
	}
}

// Without it no attempt could know that it is the last.
func TestTemporal_HasTheRetryPolicy(t *testing.T) {
	address := serverAddress(t)
	t.Parallel()
	var policy *temporal.RetryPolicy
	w := &world{activities: call("Call", func(ctx context.Context) error {
		policy = activity.GetInfo(ctx).RetryPolicy
		return nil
	})}
	if _, err := w.runOn(t, address, order{Activity: "Call", Attempts: 7}); err != nil || policy == nil || policy.MaximumAttempts != 7 {
		t.Errorf("%v, %+v", err, policy)
	}
}
