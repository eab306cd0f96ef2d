package outbound

// As finds a limiter of type T, which may be an interface, in l: l itself, or one that it is
// around. A limiter that is around another tells so by a method Unwrap() Limiter, as those of
// [Observe] and of a watch.Board do.
//
//	if b, ok := outbound.As[*outbound.Bucket](limiter); ok {
//		err = b.Hold(ctx, time.Minute)
//	}
//
// Do not call Acquire of what it finds: those around it would not hear of the call.
//
// The limiter of a key, which a [Keyed] may drop at any time, is not found in what [Keyed.For]
// returns. That has a method Use(func(Limiter) error) error, which is [Keyed.Use] of the key. The
// bucket of a limiter of package outbound/shadow is not found either, because it paces no call.
func As[T any](l Limiter) (found T, ok bool) {
	for l != nil {
		if found, ok = l.(T); ok {
			return found, true
		}
		around, wraps := l.(interface{ Unwrap() Limiter })
		if !wraps {
			break
		}
		l = around.Unwrap()
	}
	return found, false
}
