package watch

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// What counting costs, beside the same decision without a board, with Done:
//
//	go test -run - -bench 'Decision|Transport' -count 7 ./outbound/watch
func BenchmarkDecision(b *testing.B) {
	var board Board
	wide, full := bucket(b, outbound.Limit{Capacity: 1e9, LeakRate: 1e9}), bucket(b, outbound.PerHour(1))
	_, _ = full.Acquire(bg, outbound.Cost{1})
	for _, l := range []struct {
		name string
		outbound.Limiter
	}{{"admitted/bare", wide}, {"admitted/board", board.Add("wide", wide)}, {"refused/bare", full}, {"refused/board", board.Add("full", full)}} {
		b.Run(l.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p, err := l.Acquire(bg, outbound.Cost{1}); err == nil {
					p.Done()
				}
			}
		})
	}
}

// instant answers at once.
type instant struct{ resp *http.Response }

func (i instant) RoundTrip(*http.Request) (*http.Response, error) { return i.resp, nil }

func BenchmarkTransport(b *testing.B) {
	var board Board
	wide := bucket(b, outbound.Limit{Capacity: 1e9, LeakRate: 1e9})
	for _, l := range []struct {
		name string
		outbound.Limiter
	}{{"bare", wide}, {"board", board.Add("wide", wide)}} {
		b.Run(l.name, func(b *testing.B) {
			resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {"Tue, 01 Sep 2026 12:00:00 GMT"}}, Body: io.NopCloser(nil)}
			rt := &transport.Transport{Base: instant{resp}, Limiter: l}
			req, err := http.NewRequestWithContext(bg, http.MethodGet, "https://api.example.com/", nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := rt.RoundTrip(req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A look at fifty rows among many keys, all of them in use, and a scrape of a hundred limiters.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint("keys/", n), func(b *testing.B) {
			var board Board
			of := AddKeyed(&board, "tenants", tenants(b, n, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), nil)
			for i := range n {
				if _, err := of(strconv.Itoa(i)).Acquire(bg, outbound.Cost{1 + float64(i%977)/1000}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				jsonOf(b, board.Snapshot(bg, Query{}))
			}
		})
	}
	var board Board
	var buckets [100]*outbound.Bucket
	for i := range buckets {
		buckets[i] = bucket(b, outbound.PerSecond(1))
		_, _ = board.Add(fmt.Sprint("api ", i), buckets[i]).Acquire(bg, outbound.Cost{1})
	}
	b.Run("scrape", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			board.prometheus(bg, io.Discard)
		}
	})
	// What no scrape does without: each bucket is asked, and a number made of each sample.
	samples := strings.Count(metricsOf(&board), "} ")
	b.Run("floor of a scrape", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, one := range buckets {
				if _, err := one.Explain(bg, outbound.Cost{1}); err != nil {
					b.Fatal(err)
				}
			}
			w := bufio.NewWriter(io.Discard)
			for i := range samples {
				w.WriteString(`dripfeed_calls_total{limiter="api 1",result="admitted",error_type=""} `)
				w.Write(strconv.AppendInt(w.AvailableBuffer(), int64(i), 10))
			}
		}
	})
}

// A search among very many keys: the first look, a look as the page has one each second after it, and, as the floor of
// the first, a walk over the keys that makes no label.
func BenchmarkSearch(b *testing.B) {
	for name, label := range map[string]func(string) string{"hashes": nil, "labels": func(key string) string { return "Tenant " + key }} {
		var board Board
		const n = 200_000
		of := AddKeyed(&board, "tenants", tenants(b, n, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), label)
		for i := range n {
			if _, err := of(strconv.Itoa(i)).Acquire(bg, outbound.Cost{1 + float64(i%977)/1000}); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(name+"/first", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				board.Snapshot(bg, Query{Search: strconv.Itoa(i + 7_000)})
			}
		})
		b.Run(name+"/floor", func(b *testing.B) {
			for b.Loop() {
				set := board.shown[0].keyed.(*keyedSet[string])
				set.last.until = 0
				set.worst(defaultRows, "")
			}
		})
		b.Run(name+"/next", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				board.Snapshot(bg, Query{Search: "77"})
			}
		})
	}
}
