package watch

import (
	"fmt"
	"io"
	"strconv"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
)

// What counting costs, next to the same decision without a board, with Done:
//
//	go test -run - -bench Decision -count 7 ./outbound/watch
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

// fill adds a Keyed of n keys to a board, all of them in use.
func fill(b *testing.B, board *Board, n int, label func(string) string) {
	of := AddKeyed(board, "tenants", tenants(n, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), label)
	for i := range n {
		take(b, of(strconv.Itoa(i)), 1+float64(i%977)/1000)
	}
}

// A look at fifty of many keys, and a scrape of a hundred limiters.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint("keys/", n), func(b *testing.B) {
			var board Board
			fill(b, &board, n, nil)
			b.ReportAllocs()
			for b.Loop() {
				jsonOf(b, board.Snapshot(bg, Query{}))
			}
		})
	}
	b.Run("scrape", func(b *testing.B) {
		var board Board
		for i := range 100 {
			take(b, board.Add(fmt.Sprint("api ", i), bucket(b, outbound.PerSecond(1))))
		}
		b.ReportAllocs()
		for b.Loop() {
			board.prometheus(bg, io.Discard)
		}
	})
}

// A search among very many keys: the first look, and a look as the page has one each second after it.
func BenchmarkSearch(b *testing.B) {
	for name, label := range map[string]func(string) string{"hashes": nil, "labels": func(key string) string { return "Tenant " + key }} {
		var board Board
		fill(b, &board, 200_000, label)
		for look, text := range map[string]func(i int) string{"first": func(i int) string { return strconv.Itoa(i + 7_000) }, "next": func(int) string { return "77" }} {
			b.Run(name+"/"+look, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					board.Snapshot(bg, Query{Search: text(i)})
				}
			})
		}
	}
}
