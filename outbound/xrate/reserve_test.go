package xrate_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/outbound"
)

// Reserve gives the times that Reserve of x/time gives, run side by side: with cancels of the latest
// reservation, with longest waits, and with costs.
func TestReserve_GivesTheTimesOfXTime(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			ctx := context.Background()
			theirs := rate.NewLimiter(2, 3)
			ours := outbound.Must(outbound.NewBucket("k", outbound.Limit{Capacity: 3, LeakRate: 2}))
			var latest *outbound.Reservation
			var latestTheirs *rate.Reservation
			for range 100 {
				if latest != nil && r.IntN(4) == 0 {
					latest.Cancel()
					latestTheirs.Cancel()
					latest = nil
					continue
				}
				n, most := 1+r.IntN(3), time.Duration(r.IntN(5000))*time.Millisecond
				want := theirs.ReserveN(time.Now(), n)
				is, err := ours.Reserve(ctx, outbound.Cost{float64(n)}, most)
				if late := want.Delay() > most; late {
					want.Cancel()
					if full, ok := errors.AsType[*outbound.ThrottledError](err); !ok || (full.RetryAfter-want.Delay()).Abs() > time.Second*2 {
						t.Fatalf("seed %d: %v, want a refusal", seed, err)
					}
					continue
				} else if err != nil {
					t.Fatalf("seed %d: %v; x/time waits %v of %v", seed, err, want.Delay(), most)
				}
				if in := time.Until(is.At()); (in - want.Delay()).Abs() > time.Microsecond {
					t.Fatalf("seed %d: in %v, and x/time in %v", seed, in, want.Delay())
				}
				if latest, latestTheirs = is, want; r.IntN(3) > 0 {
					time.Sleep(time.Until(is.At()))
					p, err := is.Permit(ctx)
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					p.Done()
					latest = nil
				}
			}
		})
	}
}
