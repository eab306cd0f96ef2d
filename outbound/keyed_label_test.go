package outbound

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// wrapping is a foreign limiter, whose errors are its own.
type wrapping struct{ Limiter }

var errTenant = errors.New("of a tenant")

func (w wrapping) Acquire(ctx context.Context, c Cost) (Permit, error) {
	p, err := w.Limiter.Acquire(ctx, c)
	if err != nil {
		err = fmt.Errorf("%w: %w", errTenant, err)
	}
	return p, err
}

// Errors and events show a key's label in place of the key, also in errors that wrap others.
func TestKeyedLabel_StandsInErrorsAndEvents(t *testing.T) {
	const secret, tenant = "sk-live-0123456789", "the first tenant"
	down := StoreFunc(func(context.Context, string, *store.Op) (store.Reply, error) { return store.Reply{}, errCut })
	hour, second := PerHour(1), PerSecond(9).Of(0, "second")
	for name, c := range map[string]struct {
		store  store.Store
		limits []Limit
		cost   float64
		want   error
	}{
		"over the limit":      {nil, []Limit{hour}, 1, ErrThrottled},
		"over one limit":      {nil, []Limit{hour, second}, 1, ErrThrottled},
		"a cost too large":    {nil, []Limit{hour}, 2, ErrTooLarge},
		"a limit of nothing":  {nil, []Limit{{}}, 1, ErrInvalid},
		"no limit":            {nil, nil, 1, ErrInvalid},
		"a store unavailable": {down, []Limit{hour}, 1, store.ErrUnavailable},
	} {
		for _, wraps := range []bool{false, true} {
			for _, label := range []func(string) string{nil, func(string) string { return tenant }} {
				t.Run(fmt.Sprintf("%s, wrapped %v, label %v", name, wraps, label != nil), func(t *testing.T) {
					keyed := &Keyed[string]{Label: label, New: func(key string) (Limiter, error) {
						b, err := NewBucket(key, c.limits...)
						if c.store != nil {
							b, err = NewSharedBucket(c.store, key, c.limits...)
						}
						if wraps && err != nil {
							return nil, fmt.Errorf("%w: %w", errTenant, err)
						} else if wraps {
							return wrapping{b}, nil
						}
						return b, err
					}}
					var event, err error
					observed := Observe(keyed.For(secret), "", func(_ context.Context, e Event) { event = e.Err })
					for range 2 { // the first call takes all units
						_, err = observed.Acquire(ctx, Cost{c.cost})
					}
					if !errors.Is(err, c.want) || !errors.Is(event, c.want) || errors.Is(err, errTenant) != wraps {
						t.Fatalf("%v, in the event %v, not %v", err, event, c.want)
					}
					for _, text := range []string{err.Error(), event.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
						shown := strings.Contains(text, secret)
						if shown != (label == nil) || !strings.HasPrefix(text, "&") && strings.Contains(text, tenant) == shown {
							t.Error(text)
						}
					}
					if full, ok := errors.AsType[*ThrottledError](err); ok && label != nil && full.Key != tenant {
						t.Errorf("its key is %q", full.Key)
					}
				})
			}
		}
	}
}

// An error without a bucket's key stays as New has made it.
func TestKeyedLabel_ErrorWithoutAKeyStays(t *testing.T) {
	keyed := &Keyed[string]{
		Label: func(string) string { return "label" },
		New:   func(string) (Limiter, error) { return nil, errTenant },
	}
	if _, err := keyed.Acquire(ctx, "k", Cost{1}); err != errTenant {
		t.Error(err)
	}
}

// A refusal shows at most 64 bytes of a key.
func TestThrottledError_Shows64BytesOfAKey(t *testing.T) {
	for key, want := range map[string]string{
		strings.Repeat("x", 64):             `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 65):             `"` + strings.Repeat("x", 64) + `"…`,
		"a\nb" + strings.Repeat("\x00", 70): `"a\nb` + strings.Repeat(`\x00`, 61) + `"…`,
	} {
		if text := (&ThrottledError{Key: key}).Error(); text != "outbound: rate limited: "+want {
			t.Error(text)
		}
	}
}

// failing returns a Keyed whose limiters fail with err.
func failing(err error, label func(string) string) *Keyed[string] {
	return &Keyed[string]{Label: label, New: func(string) (Limiter, error) {
		return limiterFunc(func(context.Context, Cost) (Permit, error) { return Permit{}, err }), nil
	}}
}

// embedding is a program's own error, which no program can compare with ==.
type embedding struct {
	*ThrottledError
	hints []string
}

// A program finds its own error in one with a label.
func TestKeyedLabel_ProgramFindsItsOwnError(t *testing.T) {
	refusal := &ThrottledError{Key: "secret"}
	own := embedding{refusal, []string{"later"}}
	for name, err := range map[string]error{
		"wrapped in a store's": fmt.Errorf("x: %w", &StoreError{Key: "secret", Err: refusal}),
		"embedded":             own,
		"embedded, a pointer":  &own,
		"wrapped and embedded": fmt.Errorf("x: %w", own),
	} {
		_, got := failing(err, func(string) string { return "label" }).Acquire(ctx, "secret", Cost{1})
		var throttled *ThrottledError
		if errors.As(err, &throttled) { // else it is the limiter's own error
			if strings.Contains(got.Error(), "secret") || !errors.As(got, &throttled) || throttled.Key != "label" {
				t.Errorf("%s: %v, the refusal's key is %q", name, got, throttled.Key)
			}
		}
		var value embedding
		var pointer *embedding
		if errors.As(err, &value) != errors.As(got, &value) || errors.As(err, &pointer) != errors.As(got, &pointer) {
			t.Errorf("%s: the program does not find its own error in %v", name, got)
		}
	}
}

// A Keyed without a Label passes errors on without an allocation.
func TestKeyedLabel_NoneAllocatesNothing(t *testing.T) {
	keyed := failing(&ThrottledError{Key: "key"}, nil)
	if n := testing.AllocsPerRun(1000, func() { _, _ = keyed.Acquire(ctx, "key", Cost{1}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// An error of what uses the limiter, such as that of a booking, has the label, too.
func TestKeyedLabel_StandsInErrorsOfUse(t *testing.T) {
	k := &Keyed[string]{Label: func(string) string { return "label" }, New: func(key string) (Limiter, error) {
		return NewBucket(key, Limit{Capacity: 1, LeakRate: 1})
	}}
	err := k.Use("secret", func(l Limiter) error {
		return l.(*Bucket).Book(ctx, &BookRequest{Costs: []Cost{{2}}})
	})
	if bad, ok := errors.AsType[*CostError](err); !ok || bad.Key != "label" || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
	must(t, k.Use("secret", func(Limiter) error { return nil }))
}
