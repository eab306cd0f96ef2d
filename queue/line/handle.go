package line

import (
	"context"
	"fmt"

	"github.com/dripfeed/dripfeed/outbound"
)

// Handle is the line of one key of an [outbound.Keyed], such as a tenant's. [For] makes it. It
// looks its line up at each call, so it may be kept for as long as you like. Handles of one key
// are equal.
type Handle[K comparable] struct {
	lines *outbound.Keyed[K]
	key   K
}

// For returns the line of a key as [outbound.Keyed.For] does, for those who also book places. The
// Keyed's New has to make a [*Line].
func For[K comparable](lines *outbound.Keyed[K], key K) Handle[K] { return Handle[K]{lines, key} }

// Acquire is [outbound.Keyed.Acquire].
func (h Handle[K]) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return h.lines.Acquire(ctx, h.key, c)
}

// Book is [Line.Book] of the key's line, which it makes if there is none. Where there is no room for
// the key, also with an Overflow, the error is [outbound.ErrFull]: then jobs can be enqueued without a place.
func (h Handle[K]) Book(ctx context.Context, costs ...outbound.Cost) (places []Place, err error) {
	err = h.lines.Use(h.key, func(l outbound.Limiter) error {
		own, ok := l.(*Line)
		if !ok {
			return fmt.Errorf("line: a %T books no places: %w", l, outbound.ErrInvalidLimit)
		}
		places, err = own.Book(ctx, costs...)
		return err
	})
	return places, err
}
