package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// berlin is the zone of the budget, where the clock of a test's bubble is set to 24 March.
func berlin(t *testing.T) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(time.Date(2026, time.March, 24, 9, 30, 0, 0, zone)))
	return zone
}

func newBudget(t *testing.T, out io.Writer) *budget {
	t.Helper()
	zone := berlin(t)
	return &budget{bucket: outbound.Must(outbound.NewBucket("b", outbound.Monthly(eurosPerMonth, zone))), zone: zone, out: out}
}

func TestBudget_RefusesAndWarnsBefore(t *testing.T) {
	const want = `A bucket keeps a budget of 1000 EUR a month.
Today is 24 March in Berlin.

   30.00 EUR  domain names  bought for 30.00, 970.00 left
  990.00 EUR  trade fair    refused until 1 April
  200.00 EUR  ads, by click bought for 140.00, 830.00 left
  680.00 EUR  servers       has been spent, 150.00 left
   ALERT: 85 % of the budget is spent
  200.00 EUR  hotel         would not fit now
  240.00 EUR  emails        has been spent, 0.00 left
   FULL: 1000 EUR come back on 1 April
    5.00 EUR  stickers      refused until 1 April
20000.00 EUR  a car         refused: no month has that much
`
	synctest.Test(t, func(t *testing.T) {
		berlin(t)
		var out bytes.Buffer
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != want {
			t.Errorf("printed\n%s\nwant\n%s", got, want)
		}
	})
}

// The clocks of Berlin go forward on 29 March: the month is an hour shorter.
func TestBudget_RefusedPurchaseFitsAtItsRetryTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, io.Discard)
		for _, c := range []struct {
			price float64
			fits  bool
		}{{30, true}, {990, false}, {970, true}} {
			_, err := b.bucket.Acquire(t.Context(), outbound.Cost{c.price})
			if (err == nil) != c.fits {
				t.Errorf("%v EUR: %v", c.price, err)
			}
		}
		_, err := b.bucket.Acquire(t.Context(), outbound.Cost{100})
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if !ok {
			t.Fatalf("100 EUR: %v", err)
		}
		april := time.Date(2026, time.April, 1, 0, 0, 0, 0, b.zone)
		fits := time.Now().Add(full.RetryAfter)
		if fits.Before(april) || fits.After(april.Add(2*time.Second)) {
			t.Errorf("100 EUR fit at %v", fits.In(b.zone))
		}
		time.Sleep(time.Until(april) - time.Second)
		if _, err := b.bucket.Acquire(t.Context(), outbound.Cost{1}); err == nil {
			t.Error("1 EUR more in March")
		}
		time.Sleep(time.Until(fits))
		if _, err := b.bucket.Acquire(t.Context(), outbound.Cost{eurosPerMonth}); err != nil {
			t.Errorf("all of April's budget after %v: %v", full.RetryAfter, err)
		}
	})
}

func TestBudget_NoMonthSpendsMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, io.Discard)
		months := map[time.Month]float64{}
		for range 6 * 31 * 4 { // a purchase every six hours for six months
			if _, err := b.bucket.Acquire(t.Context(), outbound.Cost{35}); err == nil {
				months[time.Now().In(b.zone).Month()] += 35
			}
			time.Sleep(6 * time.Hour)
		}
		if len(months) != 7 {
			t.Errorf("%d months with purchases, want 7", len(months))
		}
		for month, spent := range months {
			if spent > eurosPerMonth || spent < eurosPerMonth-35 {
				t.Errorf("%v: %v EUR", month, spent)
			}
		}
	})
}

func TestAlert_ComesOnceUntilTheBudgetIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := newBudget(t, &out)
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
		time.Sleep(10 * 24 * time.Hour) // until April
		spend(1)
		spend(900)
		if n := bytes.Count(out.Bytes(), []byte("ALERT")); n != 2 {
			t.Errorf("%d alerts, want a second one", n)
		}
	})
}

func TestBudget_EndedContextIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}
