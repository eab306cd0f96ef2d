package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestBudgetRefusesWhatItHasNotAndWarnsBefore(t *testing.T) {
	const want = `A bucket keeps a budget of 1000 EUR per 30 days.
33.33 EUR of it come back each day.

   30.00 EUR  domain names  bought for 30.00, 970.00 left
  990.00 EUR  trade fair    refused: room in 14h24m0s
  200.00 EUR  ads, by click bought for 140.00, 830.00 left
  680.00 EUR  servers       has been spent, 150.00 left
   ALERT: 85 % of the budget is spent
  200.00 EUR  hotel         would not fit now
  240.00 EUR  emails        has been spent, 0.00 left
   FULL: all is back in 30 days if nothing more is spent
    5.00 EUR  stickers      refused: room in 3h36m0s
20000.00 EUR  a car         refused: above the whole budget
`
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != want {
			t.Errorf("printed\n%s\nwant\n%s", got, want)
		}
	})
}

func TestRefusedPurchaseFitsAtTheTimeItWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := outbound.Must(outbound.NewBucket("b", outbound.Limit{Capacity: 1000, LeakRate: 1000 / month.Seconds()}))
		for _, c := range []struct {
			price float64
			fits  bool
		}{{30, true}, {990, false}, {970, true}} {
			_, err := bucket.Acquire(t.Context(), outbound.Cost{c.price})
			if (err == nil) != c.fits {
				t.Errorf("%v EUR: %v", c.price, err)
			}
		}
		_, err := bucket.Acquire(t.Context(), outbound.Cost{100})
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if !ok {
			t.Fatalf("100 EUR: %v", err)
		}
		time.Sleep(full.RetryAfter)
		if _, err := bucket.Acquire(t.Context(), outbound.Cost{100}); err != nil {
			t.Errorf("100 EUR after %v: %v", full.RetryAfter, err)
		}
	})
}

func TestAlertComesOnceUntilThereIsRoomAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		bucket := outbound.Must(outbound.NewBucket("b", outbound.Limit{Capacity: 1000, LeakRate: 1000 / month.Seconds()}))
		b := &budget{bucket: bucket, out: &out}
		spend := func(euros float64) {
			if err := b.record(t.Context(), "x", euros); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct {
			euros  float64
			alerts int
		}{{790, 0}, {20, 1}, {20, 1}} {
			spend(step.euros)
			if n := bytes.Count(out.Bytes(), []byte("ALERT")); n != step.alerts {
				t.Errorf("%d alerts after %v EUR, want %d", n, step.euros, step.alerts)
			}
		}
		time.Sleep(10 * 24 * time.Hour) // a third comes back
		spend(1)
		spend(500)
		if n := bytes.Count(out.Bytes(), []byte("ALERT")); n != 2 {
			t.Errorf("%d alerts, want a second one", n)
		}
	})
}

func TestEndedContextIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}
