package jobsystem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A job that fails ends the system, which returns its error.
func TestSystem_EndsWhenAJobFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		system := &System{Workers: 2, Jobs: []*Job{{Tenant: "acme"}, {Tenant: "bolt"}, {}}, Do: func(_ context.Context, j *Job) error {
			if j.Tenant == "" {
				return broken
			}
			return &outbound.ThrottledError{RetryAfter: time.Hour}
		}}
		if err := system.Run(t.Context()); !errors.Is(err, broken) {
			t.Errorf("the error is %v", err)
		}
	})
}
