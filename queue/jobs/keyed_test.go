package jobs

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	contract "github.com/dripfeed/dripfeed/outbound/store"
)

// A Keyed drops a line of this process when no place is out any more, and one of a store at once:
// its places are in the store.
func TestKeyed_DropsSchedulerKeepsReservations(t *testing.T) {
	for _, inStore := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := contract.NewMemory()
			tenants := &outbound.Keyed[string]{Max: 1, Label: func(string) string { return "a tenant" }, New: func(tenant string) (outbound.Limiter, error) {
				b, err := outbound.NewBucket(tenant, perSecond...)
				if inStore {
					b, err = outbound.NewSharedBucket(store, tenant, perSecond...)
				}
				return New(b, Config{}), err
			}}
			acme, other := tenants.For("acme"), tenants.For("other")
			if err := tenants.Use("acme", func(l outbound.Limiter) error { book(t, l.(*Scheduler), 9); return nil }); err != nil {
				t.Fatal(err)
			}
			_, err := acme.Acquire(bg, one)
			later, _ := AsLater(err) // its place is due in 9 s
			if !near(later.In, 8*time.Second) {
				t.Errorf("%+v", later)
			}
			var full *outbound.ThrottledError
			if !errors.As(err, &full) || full.Key != "a tenant" {
				t.Errorf("%v has %+v", err, full)
			}
			p, err := other.Acquire(bg, one)
			if dropped := err == nil; dropped != inStore {
				t.Fatalf("in a store %v: the line with places is dropped: %v, %v", inStore, dropped, err)
			}
			p.Done()
			p = outbound.Permit{}
			time.Sleep(later.In)
			admitted(t, acme, later.Ticket, one)
			time.Sleep(20 * time.Second)
			admitted(t, other, "", one) // acme's places have passed
			time.Sleep(time.Minute)
		})
	}
}

// Schedulers of many keys around one busy bucket make room for others. The last one keeps the
// bucket, and so its reservations, until both are idle.
func TestKeyed_DropsSchedulersAroundABusyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		var bucket *outbound.Bucket
		tenants := &outbound.Keyed[int]{Max: 5, New: func(key int) (outbound.Limiter, error) {
			if key < 0 {
				return outbound.NewBucket("other", outbound.PerHour(1))
			}
			if bucket == nil { // only the Schedulers have it
				made++
				bucket = own(t, perSecond...)
			}
			return New(bucket, Config{Ahead: 10 * time.Hour}), nil
		}}
		for key := range 8 {
			if err := tenants.Use(key, func(l outbound.Limiter) error { book(t, l.(*Scheduler), 500); return nil }); err != nil {
				t.Fatalf("key %d: %v", key, err)
			}
			time.Sleep(time.Second)
		}
		for other := range 4 {
			admitted(t, tenants.For(-1-other), "", one)
		}
		time.Sleep(time.Minute) // only reservations are left
		if _, err := tenants.For(-5).Acquire(bg, one); !errors.Is(err, outbound.ErrFull) {
			t.Errorf("while nothing is idle: %v", err)
		}
		time.Sleep(time.Hour) // the other buckets are idle, and 4,000 reservations last until 4000 s
		if later := sentBack(t, tenants.For(8), "", one); !near(later.In, 331*time.Second) || made != 1 {
			t.Errorf("%+v", later)
		}
	})
}

// With a Label no error tells a tenant's key.
func TestKeyed_LaterHasTheLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := &outbound.Keyed[string]{Label: func(string) string { return "label" }, New: func(tenant string) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(tenant, perSecond...)
			return New(b, Config{Ahead: 10 * time.Second}), err
		}}
		secret := tenants.For("secret")
		for _, places := range []int{5, 15} { // far away, and too far ahead
			if err := tenants.Use("secret", func(l outbound.Limiter) error { book(t, l.(*Scheduler), places); return nil }); err != nil {
				t.Fatal(err)
			}
			_, err := secret.Acquire(bg, one)
			var full *outbound.ThrottledError
			later, ok := AsLater(err)
			if !errors.As(err, &full) || full.Key != "label" || !ok || later.In <= 0 {
				t.Errorf("%v: %+v, %+v", err, full, later)
			}
			if got := err.Error(); got != full.Error() {
				t.Errorf("%q, want %q", got, full.Error())
			}
		}
		time.Sleep(time.Minute)
	})
}

// watched is a limiter as somebody has it who counts calls.
func watched(l outbound.Limiter) outbound.Limiter {
	hear := func(context.Context, outbound.Event) {}
	return outbound.Observe(outbound.Observe(l, "inner", hear), "outer", hear)
}

// A line books places also where somebody observes it.
func TestOf_FindsSchedulerInWrappers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(own(t, perSecond...), Config{})
		for _, in := range []outbound.Limiter{l, watched(l)} {
			b, ok := Of(in)
			if !ok || b != Booker(l) {
				t.Errorf("in a %T: %v, %v", in, b, ok)
			}
		}
		for _, in := range []outbound.Limiter{nil, l.Queue(), own(t, perSecond...), watched(nil), outbound.Unlimited{}} {
			if b, ok := Of(in); ok || b != nil {
				t.Errorf("in a %T: %v", in, b)
			}
		}
	})
}

// Of finds the line of a key, also where somebody observes the line or the handle. It books as the
// line does.
func TestKeyed_SchedulerOfAKeyBooks(t *testing.T) {
	for name, around := range map[string]func(outbound.Limiter) outbound.Limiter{
		"bare": func(l outbound.Limiter) outbound.Limiter { return l }, "observed": watched,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tenants := &outbound.Keyed[string]{Max: 2, Label: func(string) string { return "label" }, New: func(tenant string) (outbound.Limiter, error) {
					b, err := outbound.NewBucket(tenant, perSecond...)
					if tenant == "bucket" {
						return around(b), err
					}
					return around(New(b, Config{})), err
				}}
				acme, books := around(tenants.For("acme")), booker(t, around(tenants.For("acme")))
				if books != booker(t, tenants.For("acme")) || books == booker(t, tenants.For("bolt")) {
					t.Error("the Bookers of one key are not equal, or those of two are")
				}
				places, err := books.Book(bg, one, one, one)
				if err != nil || len(places) != 3 || !near(time.Until(places[2].At), time.Second) {
					t.Fatal(places, err)
				}
				if later := sentBack(t, acme, "", one); !near(later.In, 2*time.Second) {
					t.Errorf("%+v", later)
				}
				admitted(t, acme, places[0].Ticket, one)
				admitted(t, tenants.For("bolt"), "", one)
				var cost *outbound.CostError
				if _, err := books.Book(bg, outbound.Cost{2}); !errors.As(err, &cost) || cost.Key != "label" {
					t.Errorf("%v", err)
				}
				if places, err := booker(t, tenants.For("cone")).Book(bg, one); places != nil || !errors.Is(err, outbound.ErrFull) {
					t.Errorf("without room: %v, %v", places, err)
				}
				time.Sleep(time.Hour) // whoever is observed is dropped, too
				if places, err := booker(t, tenants.For("bucket")).Book(bg, one); places != nil || !errors.Is(err, outbound.ErrInvalid) {
					t.Errorf("a bucket: %v, %v", places, err)
				}
				if _, err := booker(t, (*outbound.Keyed[string])(nil).For("acme")).Book(bg, one); !errors.Is(err, outbound.ErrInvalid) {
					t.Errorf("no Keyed: %v", err)
				}
			})
		})
	}
}

// A key whose line was dropped has another one, and whoever kept the Booker of the first books in
// that.
func TestKeyed_BookerOutlivesItsScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		tenants := &outbound.Keyed[string]{Max: 1, New: func(tenant string) (outbound.Limiter, error) {
			made++
			b, err := outbound.NewBucket(tenant, perSecond...)
			return watched(New(b, Config{})), err
		}}
		acme := booker(t, tenants.For("acme"))
		for range 2 {
			if places, err := acme.Book(bg, one, one); err != nil || len(places) != 2 {
				t.Fatal(places, err)
			}
			if _, err := tenants.Acquire(bg, "bolt", one); !errors.Is(err, outbound.ErrFull) {
				t.Errorf("a line whose places are out is dropped: %v", err)
			}
			time.Sleep(time.Hour)
			admitted(t, tenants.For("bolt"), "", one)
			time.Sleep(time.Hour)
		}
		if made < 4 {
			t.Errorf("made %d: nothing was dropped", made)
		}
		later := sentBack(t, tenants.For("acme"), bookedBy(t, acme, 5), one)
		if !near(later.In, 3*time.Second) {
			t.Errorf("its place is not in the line that the key has: %+v", later)
		}
		time.Sleep(time.Hour)
	})
}

func bookedBy(t *testing.T, b Booker, n int) (last string) {
	t.Helper()
	for range n {
		places, err := b.Book(bg, one)
		if err != nil {
			t.Fatal(err)
		}
		last = places[0].Ticket
	}
	return last
}

func booker(t *testing.T, l outbound.Limiter) Booker {
	t.Helper()
	b, ok := Of(l)
	if !ok {
		t.Fatalf("a %T books no places", l)
	}
	return b
}

// bookless is a store that is unavailable to those who book in it.
type bookless struct {
	contract.Store
	denies atomic.Bool
}

func (s *bookless) Update(ctx context.Context, key string, op *contract.Op) (contract.Reply, error) {
	if s.denies.Load() && len(op.Costs) > 0 && strings.Contains(key, "reserved") {
		return contract.Reply{}, contract.ErrUnavailable
	}
	return s.Store.Update(ctx, key, op)
}

// A late job that finds no capacity and cannot book again keeps its ticket.
func TestScheduler_LateJobKeepsTicketWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &bookless{Store: contract.NewMemory()}
		s := New(shared(t, store, "api", perSecond...), Config{})
		ticket := book(t, s, 1)[0].Ticket
		time.Sleep(time.Minute)
		if err := s.Bucket().Hold(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		store.denies.Store(true)
		if later := sentBack(t, s, ticket, one); later.Ticket != ticket || !errors.Is(later, contract.ErrUnavailable) {
			t.Errorf("%+v", later)
		}
	})
}
