package outbound

import (
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Reservations returns the bucket in which a scheduler reserves times for calls that come later, as
// package jobs does. It has the limits of b without an [InFlight], and its own levels and holds.
// Its state is where b's is, in this process or in the same store. Errors name it by b's key.
//
// Reservations returns the same bucket until this process learns of other limits from a reply for
// b. Then it returns one with those limits, and earlier reservations are void. If b has their
// limits again, reservations in a store are valid again. A hold or a Resume of b does not reach it.
// It is nil if b has only ever had an InFlight.
func (b *Bucket) Reservations() *Bucket {
	if b.isZero() {
		return nil
	}
	p := b.slowPath()
	for {
		f, old := p.Force(), p.reserved.Load()
		switch {
		case f.Open && old == nil:
			return nil
		case f.Open, old != nil && (old.limits == f || store.Equal(old.limits.Law, f.Law)):
			return old.bucket.(*Bucket)
		}
		next := new(Bucket)
		next.init(b.key, spec.All(f.Counts(), nil), p.store, p.NameOfReservations(f.Law))
		if p.reserved.CompareAndSwap(old, &reserved{f, next}) {
			return next
		}
	}
}
