package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound"
)

// The program shows the rest after each purchase, the day when a refused one fits, and an alert. An interrupt is an error.
func TestProgram_RefusesAndWarnsBefore(t *testing.T) {
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
	if got, _ := exampletest.Output(t, run); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
	exampletest.Interrupt(t, 0, run)
}

// An alert comes once, and again in the next month, which has the whole budget.
func TestAlert_ComesOnceAMonth(t *testing.T) {
	exampletest.InVirtualTime(t, func(t *testing.T) {
		var out bytes.Buffer
		b := &budget{bucket: outbound.Must(outbound.NewBucket("b", outbound.Monthly(eurosPerMonth, time.UTC))), zone: time.UTC, out: &out}
		for _, step := range []struct {
			days          time.Duration
			euros, alerts int
		}{{0, 790, 0}, {0, 20, 1}, {0, 20, 1}, {0, 20, 1}, {10, 1, 1}, {0, 900, 2}} {
			time.Sleep(step.days * 24 * time.Hour)
			exampletest.NoError(t, b.record(t.Context(), "x", float64(step.euros)))
			if n := bytes.Count(out.Bytes(), []byte("ALERT")); n != step.alerts {
				t.Errorf("%d alerts after %d EUR, want %d", n, step.euros, step.alerts)
			}
		}
	})
}
