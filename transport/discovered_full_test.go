package transport

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/dripfeed/dripfeed/outbound"
)

// brimful is a limiter that has no room for the first so many requests.
type brimful struct {
	left int
	outbound.Limiter
}

func (c *brimful) Acquire(ctx context.Context, cost outbound.Cost) (outbound.Permit, error) {
	if c.left--; c.left >= 0 {
		return outbound.Permit{}, &outbound.ThrottledError{Err: outbound.ErrFull}
	}
	return c.Limiter.Acquire(ctx, cost)
}

// Overflow serves requests that find no room among the limiters, in the place of the host's
// limiter. If Overflow has no room itself, the host's limiter serves them, and Overflow is
// asked again for hosts that find no room for theirs.
func TestOverflowServesRequestsThatFindNoLimiter(t *testing.T) {
	for _, c := range []struct {
		full int      // how many requests Overflow has no room for
		want []string // the limiter without room, of each request after the first
	}{
		{0, []string{"", "", "overflow", "overflow"}},
		{1, []string{"", "", "", "overflow"}}, // the first of them goes to the host's limiter
		{3, []string{"", "full", "", ""}},     // the next request's host finds no room, either
	} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := hourly()
			d.Limiters.Max = 1
			overflow := outbound.Must(outbound.NewBucket("overflow", outbound.Limit{Capacity: 2, LeakRate: 2. / 3600}))
			d.Limiters.Overflow = &brimful{c.full, overflow}
			rt := &Transport{For: d.For, OnResponse: d.Learn, Base: answer(http.StatusOK, nil)}
			if err := fetch(t, rt, "https://api.test/a"); err != nil {
				t.Fatal(err)
			}
			for i, host := range []string{"a", "b", "c", "d"} {
				err := fetch(t, rt, "https://"+host+".test/b")
				got := ""
				var full *outbound.ThrottledError
				switch {
				case errors.Is(err, outbound.ErrFull):
					got = "full"
				case errors.As(err, &full):
					got = full.Key
				case err != nil:
					t.Fatal(err)
				}
				if got != c.want[i] {
					t.Errorf("Overflow is full for %d: request %d had no room in %q, want %q", c.full, i, got, c.want[i])
				}
			}
		})
	}
}
