package transport

import (
	"net/http"
	"testing"
)

func BenchmarkPoolOfFive(b *testing.B) {
	benchmark(b, func(base http.RoundTripper) http.RoundTripper {
		p := &Pool{}
		for range 5 {
			p.Members = append(p.Members, &Transport{Base: base, Limiter: wide()})
		}
		return p
	})
}
