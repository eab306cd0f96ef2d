package outbound

import (
	"context"
	"github.com/dripfeed/dripfeed/outbound/store"
	"testing"
)

// As finds the outermost limiter of a type, as errors.As does, but not the limiters of a Keyed.
func TestAs_FindsALimiterInOthers(t *testing.T) {
	hear := func(context.Context, Event) {}
	b := Must(NewBucket("b", PerSecond(1)))
	inner := Observe(b, "inner", hear)
	outer := Observe(inner, "outer", hear)
	for _, l := range []Limiter{b, inner, outer} {
		got, ok := As[*Bucket](l)
		errorIf(t, !ok || got != b, "%T: %v, %v", l, got, ok)
	}
	got, ok := As[*observer](outer)
	errorIf(t, !ok || got != outer, "it is not the outermost of its type")
	if _, ok := As[interface{ Explain() }](outer); ok {
		t.Error("found a type that is not there")
	}
	tenants := &Keyed[string]{New: func(string) (Limiter, error) { return b, nil }}
	for _, l := range []Limiter{nil, limiterFunc(nil), Observe(nil, "", hear), tenants.For("acme")} {
		got, ok := As[*Bucket](l)
		errorIf(t, ok || got != nil, "in a %T: %v", l, got)
	}
}

// The handle of a key gives access to its limiter only during a call of Use, because the limiter may be dropped.
func TestKeyed_HandleUsesItsKeysLimiter(t *testing.T) {
	made := 0
	tenants := &Keyed[string]{New: func(key string) (Limiter, error) {
		made++
		return NewBucket(key, PerSecond(1))
	}}
	errorIf(t, tenants.For("acme") != tenants.For("acme") || tenants.For("acme") == tenants.For("bolt"),
		"the handles of one key are not equal, or those of two are")
	u, ok := As[interface {
		Use(func(Limiter) error) error
	}](Observe(tenants.For("acme"), "", func(context.Context, Event) {}))
	fatalIf(t, !ok || made != 0, "found %v, made %d", ok, made)
	if err := u.Use(func(l Limiter) error {
		errorIf(t, l.(*Bucket).Key() != "acme", "another key's limiter")
		return store.ErrUnavailable
	}); err != store.ErrUnavailable {
		t.Error(err)
	}
}
