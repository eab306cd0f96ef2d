package outboundtest_test

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

const million = 1_000_000

func BenchmarkHistoryAdd(b *testing.B) {
	var h History
	b.ReportAllocs()
	for i := range b.N {
		h.Add(noon.Add(time.Duration(i)), 1)
	}
}

func BenchmarkHistoryCheckOfAMillion(b *testing.B) {
	var h History
	for i := range million {
		h.Add(noon.Add(time.Duration(i)*time.Millisecond), 1)
	}
	for b.Loop() {
		if err := h.Check(1, 1000, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHistorySortOfAMillion(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	order := random.Perm(million)
	for b.Loop() {
		b.StopTimer()
		var h History
		for _, i := range order {
			h.Add(noon.Add(time.Duration(i)*time.Millisecond), 1)
		}
		b.StartTimer()
		if h.Total().Units != million {
			b.Fatal("units lost")
		}
	}
}

func BenchmarkAPIRoundTrip(b *testing.B) {
	api := &API{Rules: []Rule{LeakyBucket(1e9, 1e9), FixedWindow(1e9, time.Second), InFlight(1000)}}
	req, err := http.NewRequest("GET", "http://api.example.com/items", nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		res, err := api.RoundTrip(req)
		if err != nil || res.StatusCode != http.StatusOK {
			b.Fatal(res, err)
		}
	}
}

func BenchmarkAPIRoundTripOfAVendor(b *testing.B) {
	api := GitHub(FirstCallWindow(1e12, time.Hour).Of("core", nil), InFlight(100))
	req, err := http.NewRequest("GET", "http://api.example.com/items", nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		res, err := api.RoundTrip(req)
		if err != nil || res.StatusCode != http.StatusOK {
			b.Fatal(res, err)
		}
	}
}
