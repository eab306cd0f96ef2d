package line

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// A Keyed drops a line of this process when no place is out any more, and one of a store at once:
// its places are in the store.
func TestAKeyedDropsALineAndLosesNoPlace(t *testing.T) {
	for _, inStore := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := leak.NewMemory()
			tenants := &outbound.Keyed[string]{Max: 1, Label: func(string) string { return "a tenant" }, New: func(tenant string) (outbound.Limiter, error) {
				b, err := outbound.NewBucket(tenant, perSecond...)
				if inStore {
					b, err = outbound.NewSharedBucket(store, tenant, perSecond...)
				}
				return New(b, Config{}), err
			}}
			acme, other := tenants.For("acme"), tenants.For("other")
			if err := tenants.Use("acme", func(l outbound.Limiter) error { book(t, l.(*Line), 9); return nil }); err != nil {
				t.Fatal(err)
			}
			_, err := acme.Acquire(bg, one)
			later, _ := After(err) // its place is due in 9 s
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

// With a Label no error tells a tenant's key.
func TestALaterOfAKeyedTellsTheLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := &outbound.Keyed[string]{Label: func(string) string { return "label" }, New: func(tenant string) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(tenant, perSecond...)
			return New(b, Config{Ahead: 10 * time.Second}), err
		}}
		secret := tenants.For("secret")
		for _, places := range []int{5, 15} { // far away, and too far ahead
			if err := tenants.Use("secret", func(l outbound.Limiter) error { book(t, l.(*Line), places); return nil }); err != nil {
				t.Fatal(err)
			}
			_, err := secret.Acquire(bg, one)
			var full *outbound.ThrottledError
			later, ok := After(err)
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

// A handle books for a key's line as the line does, and admits as the Keyed does.
func TestAHandleBooksInTheLineOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := &outbound.Keyed[string]{Max: 2, Label: func(string) string { return "label" }, New: func(tenant string) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(tenant, perSecond...)
			if tenant == "bucket" {
				return b, err
			}
			return New(b, Config{}), err
		}}
		acme := For(tenants, "acme")
		if acme != For(tenants, "acme") || acme == For(tenants, "bolt") {
			t.Error("the handles of one key are not equal, or those of two are")
		}
		places, err := acme.Book(bg, one, one, one)
		if err != nil || len(places) != 3 || !near(time.Until(places[2].At), time.Second) {
			t.Fatal(places, err)
		}
		if later := sentBack(t, acme, "", one); !near(later.In, 2*time.Second) {
			t.Errorf("%+v", later)
		}
		admitted(t, acme, places[0].Ticket, one)
		admitted(t, For(tenants, "bolt"), "", one)
		var cost *outbound.CostError
		if _, err := acme.Book(bg, outbound.Cost{2}); !errors.As(err, &cost) || cost.Key != "label" {
			t.Errorf("%v", err)
		}
		if places, err := For(tenants, "cone").Book(bg, one); places != nil || !errors.Is(err, outbound.ErrFull) {
			t.Errorf("without room: %v, %v", places, err)
		}
		time.Sleep(time.Hour)
		if places, err := For(tenants, "bucket").Book(bg, one); places != nil || !errors.Is(err, outbound.ErrInvalidLimit) {
			t.Errorf("a bucket: %v, %v", places, err)
		}
		if _, err := For[string](nil, "acme").Book(bg, one); !errors.Is(err, outbound.ErrNil) {
			t.Errorf("no Keyed: %v", err)
		}
	})
}
