package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var background = context.Background()

var errCut = fmt.Errorf("%w: connection refused", store.ErrUnavailable)

// cutOff is a store that cannot be reached.
type cutOff struct{}

func (cutOff) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{}, errCut
}

func TestKeyedLabel_StandsInErrorsAndEvents(t *testing.T) {
	const secret, tenant = "sk-live-0123456789", "the first tenant"
	away := cutOff{}
	hour, second := outbound.PerHour(1), outbound.PerSecond(9).Of(0, "second")
	for name, c := range map[string]struct {
		store  store.Store
		limits []outbound.Limit
		cost   float64
		want   error
	}{
		"no room":            {nil, []outbound.Limit{hour}, 1, outbound.ErrThrottled},
		"no room in one":     {nil, []outbound.Limit{hour, second}, 1, outbound.ErrThrottled},
		"a cost too large":   {nil, []outbound.Limit{hour}, 2, outbound.ErrTooLarge},
		"a limit of nothing": {nil, []outbound.Limit{{}}, 1, outbound.ErrInvalid},
		"a store away":       {away, []outbound.Limit{hour}, 1, store.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			for _, label := range []func(string) string{nil, func(string) string { return tenant }} {
				keyed := &outbound.Keyed[string]{Label: label, New: func(key string) (outbound.Limiter, error) {
					if c.store != nil {
						return outbound.NewSharedBucket(c.store, key, c.limits...)
					}
					return outbound.NewBucket(key, c.limits...)
				}}
				var told error
				observed := outbound.Observe(keyed.For(secret), "", func(_ context.Context, e outbound.Event) { told = e.Err })
				var err error
				for range 2 { // for the second there is no room
					_, err = observed.Acquire(background, outbound.Cost{c.cost})
				}
				if !errors.Is(err, c.want) || !errors.Is(told, c.want) {
					t.Fatalf("%v, and told %v, not %v", err, told, c.want)
				}
				for _, text := range []string{err.Error(), told.Error(), fmt.Sprintf("%#v", err)} {
					shown := strings.Contains(text, secret)
					if shown != (label == nil) || strings.Contains(text, tenant) == shown {
						t.Errorf("with a label: %v, %s", label != nil, text)
					}
				}
			}
		})
	}
}

// wrapping is a foreign limiter.
type wrapping struct{ outbound.Limiter }

var errTenant = errors.New("of a tenant")

func (w wrapping) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := w.Limiter.Acquire(ctx, c)
	if err != nil {
		err = fmt.Errorf("%w: %w", errTenant, err)
	}
	return p, err
}

func TestKeyedLabel_HidesTheKeyInWrappedErrors(t *testing.T) {
	const secret, tenant = "sk-live-0123456789", "the first tenant"
	hour := outbound.PerHour(1)
	away := cutOff{}
	made := func(l outbound.Limiter, err error) (outbound.Limiter, error) {
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errTenant, err)
		}
		return wrapping{l}, nil
	}
	for want, c := range map[error]struct {
		new  func(key string) (outbound.Limiter, error)
		cost float64
	}{
		outbound.ErrThrottled: {func(key string) (outbound.Limiter, error) { return made(outbound.NewBucket(key, hour)) }, 1},
		outbound.ErrTooLarge:  {func(key string) (outbound.Limiter, error) { return made(outbound.NewBucket(key, hour)) }, 2},
		outbound.ErrInvalid:   {func(key string) (outbound.Limiter, error) { return made(outbound.NewBucket(key)) }, 1},
		store.ErrUnavailable:  {func(key string) (outbound.Limiter, error) { return made(outbound.NewSharedBucket(away, key, hour)) }, 1},
	} {
		keyed := &outbound.Keyed[string]{Label: func(string) string { return tenant }, New: c.new}
		var err error
		for range 2 { // for the second there is no room
			_, err = keyed.Acquire(background, secret, outbound.Cost{c.cost})
		}
		if !errors.Is(err, want) || !errors.Is(err, errTenant) {
			t.Errorf("%v, not %v of a tenant", err, want)
			continue
		}
		for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
			if strings.Contains(text, secret) {
				t.Errorf("%v shows the key: %s", want, text)
			}
		}
		if !strings.Contains(err.Error(), tenant) {
			t.Errorf("%q does not name the tenant", err)
		}
		var throttled *outbound.ThrottledError
		if errors.As(err, &throttled) && throttled.Key != tenant {
			t.Errorf("its key is %q", throttled.Key)
		}
	}
}

// An error without a bucket's key stays as New has made it.
func TestKeyedLabel_ErrorWithoutAKeyStays(t *testing.T) {
	keyed := &outbound.Keyed[string]{
		Label: func(string) string { return "label" },
		New:   func(string) (outbound.Limiter, error) { return nil, errTenant },
	}
	if _, err := keyed.Acquire(background, "k", outbound.Cost{1}); err != errTenant {
		t.Error(err)
	}
}

func TestThrottledError_Shows64BytesOfAKey(t *testing.T) {
	for key, want := range map[string]string{
		strings.Repeat("x", 64):             `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 65):             `"` + strings.Repeat("x", 64) + `"…`,
		"a\nb" + strings.Repeat("\x00", 70): `"a\nb` + strings.Repeat(`\x00`, 61) + `"…`,
	} {
		if text := (&outbound.ThrottledError{Key: key}).Error(); text != "outbound: rate limited: "+want {
			t.Error(text)
		}
	}
}

// failing is a limiter whose answer is an error.
type failing struct{ err error }

func (f failing) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, f.err
}

// embedding is a program's own error, which no program can compare with ==.
type embedding struct {
	*outbound.ThrottledError
	hints []string
}

func TestKeyedLabel_ProgramFindsItsOwnError(t *testing.T) {
	refusal := &outbound.ThrottledError{Key: "secret"}
	own := embedding{refusal, []string{"later"}}
	for name, err := range map[string]error{
		"wrapped in a store's": fmt.Errorf("x: %w", &outbound.StoreError{Key: "secret", Err: refusal}),
		"embedded":             own,
		"embedded, a pointer":  &own,
		"wrapped and embedded": fmt.Errorf("x: %w", own),
	} {
		keyed := &outbound.Keyed[string]{
			Label: func(string) string { return "label" },
			New:   func(string) (outbound.Limiter, error) { return failing{err}, nil },
		}
		_, got := keyed.Acquire(background, "secret", outbound.Cost{1})
		var throttled *outbound.ThrottledError
		if errors.As(err, &throttled) { // else it is the limiter's own error
			if strings.Contains(got.Error(), "secret") {
				t.Errorf("%s: %v shows the key", name, got)
			}
			if !errors.As(got, &throttled) || throttled.Key != "label" {
				t.Errorf("%s: the refusal's key is %q", name, throttled.Key)
			}
		}
		var value embedding
		var pointer *embedding
		if errors.As(err, &value) != errors.As(got, &value) || errors.As(err, &pointer) != errors.As(got, &pointer) {
			t.Errorf("%s: the program does not find its own error in %v", name, got)
		}
	}
}

func TestKeyedLabel_NoneAllocatesNothing(t *testing.T) {
	err := error(&outbound.ThrottledError{Key: "key"})
	keyed := &outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return failing{err}, nil }}
	if n := testing.AllocsPerRun(1000, func() { _, _ = keyed.Acquire(background, "key", outbound.Cost{1}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// An error of what uses the limiter, such as that of a booking, is one of the limiter's.
func TestKeyedLabel_StandsInErrorsOfUse(t *testing.T) {
	k := &outbound.Keyed[string]{Label: func(string) string { return "label" }, New: func(key string) (outbound.Limiter, error) {
		return outbound.NewBucket(key, outbound.Limit{Capacity: 1, LeakRate: 1})
	}}
	err := k.Use("secret", func(l outbound.Limiter) error {
		return l.(*outbound.Bucket).Book(background, &outbound.BookRequest{Costs: []outbound.Cost{{2}}})
	})
	var bad *outbound.CostError
	if !errors.As(err, &bad) || bad.Key != "label" || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
	if err := k.Use("secret", func(outbound.Limiter) error { return nil }); err != nil {
		t.Error(err)
	}
}
