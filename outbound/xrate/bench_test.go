package xrate_test

import (
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/outbound/xrate"
)

func BenchmarkBareAdmitted(b *testing.B) {
	l := rate.NewLimiter(1e9, 1e9)
	b.ReportAllocs()
	for b.Loop() {
		if !l.AllowN(time.Now(), 1) {
			b.Fatal("refused")
		}
	}
}

func BenchmarkAdmitted(b *testing.B) {
	l := &xrate.Limiter{Rate: rate.NewLimiter(1e9, 1e9)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Acquire(ctx, one); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBareRefused(b *testing.B) {
	l := rate.NewLimiter(rate.Every(time.Hour), 1)
	l.Allow()
	b.ReportAllocs()
	for b.Loop() {
		if l.AllowN(time.Now(), 1) {
			b.Fatal("admitted")
		}
	}
}

func BenchmarkRefused(b *testing.B) {
	l := &xrate.Limiter{Rate: rate.NewLimiter(rate.Every(time.Hour), 1)}
	l.Rate.Allow()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Acquire(ctx, one); err == nil {
			b.Fatal("admitted")
		}
	}
}
