package jobs

import (
	"context"
	"fmt"

	"github.com/dripfeed/dripfeed/outbound"
)

// Booker books places: a [*Scheduler], or the line of a tenant.
type Booker interface {
	// Book is [Scheduler.Book].
	Book(ctx context.Context, costs ...outbound.Cost) ([]Place, error)
}

// Of finds who books places in a limiter: l itself, or one that it is around, as [outbound.As] does.
//
// Of what [outbound.Keyed.For] returns it is the line that the key has when Book is called. Book makes it if there is
// none. Where there is no room for the key, also with an Overflow, the error is [outbound.ErrFull], and where the key has
// no line it is [outbound.ErrInvalidLimit]: then jobs can be enqueued without a place. The Bookers of one key are equal.
func Of(l outbound.Limiter) (b Booker, ok bool) {
	if b, ok = outbound.As[Booker](l); ok {
		return b, true
	}
	if key, isKey := outbound.As[user](l); isKey {
		return ofKey{key}, true
	}
	return nil, false
}

// user is a handle of a Keyed, which may drop the key's line and make another while the handle lives.
type user interface {
	Use(f func(outbound.Limiter) error) error
}

// ofKey is the line of a key, whichever that is.
type ofKey struct{ user }

func (k ofKey) Book(ctx context.Context, costs ...outbound.Cost) (places []Place, err error) {
	err = k.Use(func(l outbound.Limiter) error {
		own, ok := Of(l)
		if !ok {
			return fmt.Errorf("jobs: a %T books no places: %w", l, outbound.ErrInvalidLimit)
		}
		places, err = own.Book(ctx, costs...)
		return err
	})
	return places, err
}
