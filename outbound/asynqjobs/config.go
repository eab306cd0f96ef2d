package asynqjobs

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
)

// Config returns c for a server whose handler has the Pacer's Middleware. A rescheduled task runs
// again when it is due, and counts as no failure. For other tasks c's IsFailure, RetryDelayFunc and
// ErrorHandler decide, or asynq's own. A task whose call the API has refused runs again after c's
// delay or the API's, whichever is longer.
func (p *Pacer) Config(c asynq.Config) asynq.Config {
	isFailure, delay, handler := c.IsFailure, c.RetryDelayFunc, c.ErrorHandler
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	c.IsFailure = func(err error) bool {
		if _, ok := goesBack(err); ok {
			return false
		}
		return isFailure == nil || isFailure(err)
	}
	c.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if later, ok := goesBack(err); ok {
			return time.Until(whole(time.Now().Add(later.In)))
		}
		d := delay(n, err, t)
		var held *heldError
		if errors.As(err, &held) {
			d = max(d, time.Until(whole(time.Now().Add(held.wait))))
		}
		return d
	}
	if handler != nil {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
			if _, ok := goesBack(err); ok && !lastTry(ctx) {
				return
			}
			handler.HandleError(ctx, t, err)
		})
	}
	return c
}

// whole rounds t up to a second, because asynq cuts times to whole seconds.
func whole(t time.Time) time.Time {
	return t.Add(time.Second - 1).Truncate(time.Second)
}
