package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
)

// A task whose call was refused comes back after asynq's delay or the API's, whichever is longer. Its
// error is the handler's. A task that succeeds although the API asks for a pause has none.
func TestConfig_RetryDelayIsAtLeastTheHold(t *testing.T) {
	for _, c := range []struct {
		delay time.Duration // of the config
		reply func(*outbound.Permit)
		want  time.Duration
	}{
		{time.Minute, func(*outbound.Permit) {}, time.Minute},
		{time.Minute, func(p *outbound.Permit) { p.Refused(time.Second) }, time.Minute},
		{time.Minute, func(p *outbound.Permit) { p.Refused(time.Hour) }, time.Hour},
		{time.Minute, func(p *outbound.Permit) { p.Hold(2 * time.Hour); p.Refused(time.Second) }, 2 * time.Hour},
		{time.Minute, func(p *outbound.Permit) { p.Hold(-time.Hour) }, time.Minute},
		{0, func(p *outbound.Permit) { p.Refused(0) }, time.Second}, // by default
		{time.Minute, func(p *outbound.Permit) { p.Refused(math.MaxInt64) }, 100 * 365 * 24 * time.Hour},
	} {
		p := new(Pacer)
		run := func(result error) error {
			p.Limiter = only(outbound.Must(outbound.NewBucket("b", outbound.PerSecond(100))))
			return p.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				c.reply(outbound.PermitFrom(ctx))
				return result
			})).ProcessTask(t.Context(), asynq.NewTask("mail", nil))
		}
		if err := run(nil); err != nil {
			t.Errorf("a task that has succeeded: %v", err)
		}
		err := run(errBad)
		if !errors.Is(err, errBad) || err.Error() != "bad" {
			t.Errorf("%v", err)
		}
		config := p.Config(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return c.delay }})
		if d := config.RetryDelayFunc(0, err, nil); d < c.want || c.want <= 2*time.Hour && d > c.want+time.Second {
			t.Errorf("back in %v, want %v", d, c.want)
		}
	}
}

// The config's functions and fields stay in force for tasks that do not go back.
func TestConfig_KeepsGivenFields(t *testing.T) {
	p := new(Pacer)
	c := p.Config(asynq.Config{Concurrency: 7, DelayedTaskCheckInterval: time.Minute})
	if c.Concurrency != 7 || c.DelayedTaskCheckInterval != time.Minute || c.ErrorHandler != nil {
		t.Errorf("%+v", c)
	}
	if !c.IsFailure(errBad) || c.IsFailure(jobtest.Later(1, "")) {
		t.Error("IsFailure of asynq")
	}
	if d := c.RetryDelayFunc(3, errBad, nil); d < 90*time.Second { // asynq's own, of 3 tries
		t.Errorf("asynq's own delay, %v", d)
	}
	reported := 0
	c = p.Config(asynq.Config{
		IsFailure:    func(err error) bool { return err != errBad },
		ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { reported++ }),
	})
	if c.IsFailure(errBad) || !c.IsFailure(context.Canceled) || c.IsFailure(jobtest.Later(1, "")) {
		t.Error("IsFailure of the config")
	}
	for _, err := range []error{errBad, jobtest.Later(1, ""), fmt.Errorf("%w, %w", jobtest.Later(1, ""), asynq.SkipRetry), fmt.Errorf("%w, %w", jobtest.Later(1, ""), asynq.RevokeTask)} {
		c.ErrorHandler.HandleError(t.Context(), nil, err)
	}
	if reported != 3 {
		t.Errorf("%d reported, want all but the Later that goes back", reported)
	}
}

// A delay, which asynq cuts to whole seconds, ends when the task is due or later.
func TestConfig_DelayIsWholeSeconds(t *testing.T) {
	delay := new(Pacer).Config(asynq.Config{}).RetryDelayFunc
	for _, in := range []time.Duration{0, 1, 300 * time.Millisecond, time.Second, time.Hour} {
		due := time.Now().Add(in).Round(0)
		d := delay(0, jobtest.Later(in, ""), nil)
		if comes := time.Now().Add(d).Truncate(time.Second); comes.Before(due) || d > in+time.Second {
			t.Errorf("%v became %v", in, d)
		}
	}
	if d := delay(0, jobtest.Later(math.MaxInt64, ""), nil); d < 1<<62 {
		t.Errorf("the longest delay became %v", d)
	}
	if d := delay(0, jobtest.Later(math.MinInt64, ""), nil); d > 0 {
		t.Errorf("the most negative delay became %v", d)
	}
}
