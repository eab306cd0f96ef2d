package jobs

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Do reports whether the job has run, and the wait that the API has asked for.
func TestDo_ReportsRunAndTheAPIsWait(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		job   func(*outbound.Permit) error
		pause time.Duration
	}{
		"well":      {func(*outbound.Permit) error { return nil }, 0},
		"fails":     {func(*outbound.Permit) error { return boom }, 0},
		"refused":   {func(p *outbound.Permit) error { p.Refused(time.Minute); return boom }, time.Minute},
		"no time":   {func(p *outbound.Permit) error { p.Refused(0); return boom }, time.Second},
		"short":     {func(p *outbound.Permit) error { p.Refused(time.Millisecond); return boom }, time.Millisecond},
		"the worst": {func(p *outbound.Permit) error { p.Hold(time.Hour); p.Refused(time.Minute); return boom }, time.Hour},
		"invalid":   {func(p *outbound.Permit) error { p.Hold(-1); return boom }, 0},
	} {
		ran, pause, err := Do(bg, own(t, perSecond...), one, func(ctx context.Context) error { return c.job(outbound.PermitFrom(ctx)) })
		if !ran || pause != c.pause || (err == boom) != (name != "well") {
			t.Errorf("%s: %v, %v, %v", name, ran, pause, err)
		}
	}
	full := own(t, perSecond...)
	admitted(t, full, "", one)
	for _, l := range []outbound.Limiter{full, nil} {
		ran, pause, err := Do(bg, l, one, func(context.Context) error { return nil })
		if ran || pause != 0 || err == nil || errors.Is(err, outbound.ErrInvalid) != (l == nil) {
			t.Errorf("%v, %v, %v", ran, pause, err)
		}
	}
}

// The charge of a job pays for its first request by the same bucket, and for no other.
func TestDo_ChargePaysForTheFirstRequest(t *testing.T) {
	b := own(t, outbound.Limit{Capacity: 5, LeakRate: 1e-6})
	_, _, err := Do(bg, New(b, Config{}), one, func(ctx context.Context) error {
		for range 2 {
			var p outbound.Permit
			if err := p.AcquireIn(ctx, b, one); err != nil {
				return err
			}
			p.Done()
		}
		return nil
	})
	if s, e := b.State(bg); err != nil || e != nil || s.Level < 1.9 || s.Level > 2.1 {
		t.Errorf("charged %v, want 2; %v, %v", s.Level, err, e)
	}
}

// AsLater finds a Later, or makes one of the error of the job's own client.
func TestLater_HasTheTimeOfTheNextRun(t *testing.T) {
	later := &Later{In: time.Second, Ticket: "t"}
	full := &outbound.ThrottledError{Key: "api", RetryAfter: 3 * time.Second}
	inside := &url.Error{Op: "Get", URL: "https://api.example.com", Err: full} // of the job's own client
	for _, c := range []struct {
		err    error
		in     time.Duration
		ticket string
	}{
		{later, time.Second, "t"}, {fmt.Errorf("job 7: %w", later), time.Second, "t"}, {errors.Join(full, later), time.Second, "t"},
		{inside, 3 * time.Second, ""}, {&outbound.ThrottledError{}, 5 * time.Second, ""},
	} {
		got, ok := AsLater(c.err)
		if !ok || got.In != c.in || got.Ticket != c.ticket {
			t.Errorf("%v: %+v, %v", c.err, got, ok)
		}
	}
	if got, _ := AsLater(inside); !errors.Is(got, outbound.ErrThrottled) || !errors.Is(got, full) {
		t.Errorf("%+v is not the client's error", got)
	}
	for _, err := range []error{nil, errors.New("broken"), &outbound.CostError{Err: outbound.ErrTooLarge}} {
		if got, ok := AsLater(err); ok || got != nil {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

// A Later without an Err is ErrThrottled, and else its Err.
func TestLater_HasTheReason(t *testing.T) {
	for _, l := range []*Later{{In: time.Second}, {}} {
		if !errors.Is(l, outbound.ErrThrottled) || errors.As(l, new(*outbound.ThrottledError)) || l.RetryableError() || !strings.HasPrefix(l.Error(), "jobs: ") {
			t.Errorf("%+v: %v", l, l)
		}
	}
	closed := &Later{Err: queue.ErrClosed}
	if errors.Is(closed, outbound.ErrThrottled) || !errors.Is(closed, queue.ErrClosed) || !strings.HasSuffix(closed.Error(), ": queue: closed") {
		t.Error(closed)
	}
}
