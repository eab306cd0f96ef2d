package outbound

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Whatever a store does, no error of a bucket has or wraps a type of an internal package, which no caller could name.
func TestBucket_ErrorsHaveExportedTypes(t *testing.T) {
	ofSlots := func(key string) bool { return strings.Contains(key, "in flight") }
	stores := map[string]func(*FakeStore) store.Store{
		"works":               func(s *FakeStore) store.Store { return s },
		"fails":               func(s *FakeStore) store.Store { return failsFor(s, func(string) bool { return true }) },
		"fails for the slots": func(s *FakeStore) store.Store { return failsFor(s, ofSlots) },
		"fails for the limit": func(s *FakeStore) store.Store { return failsFor(s, func(key string) bool { return !ofSlots(key) }) },
		"replies too late": func(s *FakeStore) store.Store {
			return StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
				r, err := s.Update(ctx, key, op)
				return r, errors.Join(err, sleep(ctx, 3*time.Second))
			})
		},
		"replies nothing": func(*FakeStore) store.Store {
			return StoreFunc(func(context.Context, string, *store.Op) (store.Reply, error) { return store.Reply{}, nil })
		},
		"has impossible limits": func(s *FakeStore) store.Store {
			return StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
				r, err := s.Update(ctx, key, op)
				r.Limits, r.Number = []store.Limit{{Capacity: -1}}, 77
				return r, err
			})
		},
	}
	buckets := map[string][]Limit{"leaky": {{Capacity: 2, LeakRate: 0.1}}, "window": {Window(2, time.Minute)}, "slots": {InFlight(1)}, "both": {{Capacity: 2, LeakRate: 0.1}, InFlight(1)}}
	methods := map[string]func(context.Context, *Bucket) error{
		"Fillup":           func(ctx context.Context, b *Bucket) error { return errOf(b.Fillup(ctx, Cost{1})) },
		"Hold":             func(ctx context.Context, b *Bucket) error { return b.Hold(ctx, time.Second) },
		"Resume":           func(ctx context.Context, b *Bucket) error { return b.Resume(ctx) },
		"State":            func(ctx context.Context, b *Bucket) error { return errOf(b.State(ctx)) },
		"States":           func(ctx context.Context, b *Bucket) error { return errOf(b.States(ctx)) },
		"SetLimits":        func(ctx context.Context, b *Bucket) error { return b.SetLimits(ctx, PerSecond(3)) },
		"SetLimits, slots": func(ctx context.Context, b *Bucket) error { return b.SetLimits(ctx, InFlight(3)) },
		"SetLimits, own":   func(ctx context.Context, b *Bucket) error { return b.SetLimits(ctx) },
		"Book nothing":     func(ctx context.Context, b *Bucket) error { return b.Book(ctx, new(BookRequest)) },
	}
	for name, c := range map[string]Cost{"one": {1}, "free": {Free}, "too large": {9}, "nothing": {}, "NaN": {math.NaN()}} {
		methods["Acquire "+name] = func(ctx context.Context, b *Bucket) error {
			p, err := b.Acquire(ctx, c)
			p.Done()
			return err
		}
		methods["Explain "+name] = func(ctx context.Context, b *Bucket) error {
			e, err := b.Explain(ctx, c)
			return errors.Join(err, e.Err)
		}
		methods["Reserve "+name] = func(ctx context.Context, b *Bucket) error {
			r, err := b.Reserve(ctx, c, time.Minute)
			if err != nil {
				return err
			}
			p, err := r.Permit(ctx)
			p.Done()
			r.Cancel()
			return err
		}
		methods["Book and Earliest "+name] = func(ctx context.Context, b *Bucket) error {
			k := BookRequest{Costs: []Cost{c}, Headroom: 0.6}
			err := b.Book(ctx, &k)
			for _, ticket := range k.Tickets {
				p := ticket.Permit()
				p.Done()
			}
			if k.Clock.Known() {
				_, _, never := k.Clock.Earliest(&c, &Cost{})
				return errors.Join(err, never)
			}
			return err
		}
	}
	for does, in := range stores {
		for kind, limits := range buckets {
			for name, method := range methods {
				for _, full := range []bool{false, true} {
					synctest.Test(t, func(t *testing.T) {
						s := new(FakeStore)
						b := Must(NewSharedBucket(s, "key", limits...))
						for range 2 {
							if p, err := b.Acquire(t.Context(), Cost{1}); err == nil && full {
								defer time.Sleep(time.Minute) // until all slots are returned
								defer p.Done()
							} else {
								p.Settle(Cost{})
								p.Done()
							}
						}
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						err := method(ctx, Must(NewSharedBucket(in(s), "key", limits...)))
						defer time.Sleep(time.Minute)
						errorIf(t, internal(err) != nil, "%s of %s, full %v, store %s: %v has a %T", name, kind, full, does, err, internal(err))
					})
				}
			}
		}
	}
}

// failsFor is a store that fails for some keys.
func failsFor(in store.Store, fails func(key string) bool) store.Store {
	return StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		if fails(key) {
			return store.Reply{}, errNotWritten
		}
		return in.Update(ctx, key, op)
	})
}

// internal returns the first error of an internal package that err is or wraps, or nil.
func internal(err error) error {
	if err == nil {
		return nil
	}
	of := reflect.TypeOf(err)
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if strings.Contains(of.PkgPath(), "/internal/") {
		return err
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range all.Unwrap() {
			if found := internal(one); found != nil {
				return found
			}
		}
		return nil
	}
	return internal(errors.Unwrap(err))
}
