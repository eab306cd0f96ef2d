package outbound

// As finds a limiter of type T, which may be an interface, in l: l itself, or one that it wraps. A
// limiter that wraps another has a method Unwrap() Limiter, as those of [Observe] and of a
// watch.Board do.
//
//	if b, ok := outbound.As[*outbound.Bucket](limiter); ok {
//		err = b.Hold(ctx, time.Minute)
//	}
//
// Do not call Acquire of the result: the limiters around it would miss the call.
//
// As does not find the limiter of a key in the result of [Keyed.For], because a [Keyed] may drop it
// at any time. That result has a method Use(func(Limiter) error) error, which is [Keyed.Use] of the
// key. As does not find the bucket of package outbound/shadow, which paces no call.
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
