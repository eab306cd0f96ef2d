package outbound

// Reservations returns the bucket in which a scheduler reserves times for calls that come later, as
// package jobs does. It has the limits of b without an [InFlight], and its own levels and holds. It
// lives where b does, in this process or in the same store, and names itself by b's key in errors.
//
// Reservations returns the same bucket until this process learns of other limits from a reply for
// b. Then it returns an empty one with those limits, and earlier reservations are void. A hold or a
// Resume of b does not reach it. It is nil if b has never had a limit but an InFlight.
func (b *Bucket) Reservations() *Bucket {
	if b.unmade() {
		return nil
	}
	p := b.slowPath()
	for {
		f, old := p.force.Load(), p.reserved.Load()
		number := max(firstNumber, f.number)
		switch {
		case len(f.law) == 0 && old == nil:
			return nil
		case len(f.law) == 0, old != nil && old.number == number:
			return old.bucket
		}
		next := new(Bucket)
		if p.shared == nil {
			next.init(b.key, f.list(), nil)
		} else {
			next.init(b.key, f.list(), p.shared.store)
			next.slowPath().shared.key = p.shared.keyOfReservations(number)
		}
		if p.reserved.CompareAndSwap(old, &reserved{number, next}) {
			return next
		}
	}
}
