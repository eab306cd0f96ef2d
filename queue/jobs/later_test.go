package jobs

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

func TestAfter_FindsTheTimeOfTheNextRun(t *testing.T) {
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
		t.Errorf("%+v is not what the client met", got)
	}
	for _, err := range []error{nil, errors.New("broken"), &outbound.CostError{Err: outbound.ErrTooLarge}} {
		if got, ok := AsLater(err); ok || got != nil {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

func TestLater_HasTheReason(t *testing.T) {
	var none *outbound.ThrottledError
	for _, l := range []*Later{{In: time.Second}, {In: time.Second, Err: nil}, {}} {
		if !errors.Is(l, outbound.ErrThrottled) || errors.As(l, &none) || l.RetryableError() || !strings.HasPrefix(l.Error(), "jobs: ") {
			t.Errorf("%+v: %v", l, l)
		}
	}
	closed := &Later{Err: queue.ErrClosed}
	if errors.Is(closed, outbound.ErrThrottled) || !errors.Is(closed, queue.ErrClosed) || !strings.HasSuffix(closed.Error(), ": queue: closed") {
		t.Error(closed)
	}
}
