package leak

import (
	"encoding/json"
	"testing"
	"time"
)

func BenchmarkApply(b *testing.B) {
	limits := []Limit{{Capacity: 1e12, Rate: 1e3}}
	full := []Limit{{Capacity: 1, Rate: 1e-6}}
	call := Charge{N: Units{1}}
	for _, c := range []struct {
		name string
		op   Op
	}{
		{"book", Op{Limits: limits, Action: Book, Costs: []Units{{1}}, Into: make([]Charge, 0, 1)}},
		{"refused", Op{Limits: full, Action: Book, Costs: []Units{{1}}, Into: make([]Charge, 0, 1)}},
		{"look", Op{Limits: limits}},
		{"settle", Op{Limits: limits, Reports: []Report{{Kind: Settled, Charge: &call, Used: Units{2}}}}},
		{"settle to nothing", Op{Limits: limits, Reports: []Report{{Kind: Settled, Charge: &call}}}},
		{"hold that is known", Op{Limits: limits, Reports: []Report{{Kind: Held, Wait: 1}}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var s Stored
			first := Op{Limits: c.op.Limits, Action: Book, Costs: []Units{{1}}, Reports: []Report{{Kind: Held, Wait: time.Hour}}}
			if c.name != "hold that is known" {
				first.Reports = nil
			}
			first.Apply(&s, 0)
			now := time.Duration(0)
			b.ReportAllocs()
			for b.Loop() {
				now += 10
				c.op.Apply(&s, now)
			}
		})
	}
}

func BenchmarkStored(b *testing.B) {
	one, two := keyInUse(b), fullKey(b)
	one.Others = nil
	one.State.Row = Row{}
	var s Stored
	var data []byte
	for _, c := range []struct {
		name string
		key  *Stored
	}{{"a limit", &one}, {"a limit, another's and a row", &two}} {
		b.Run("append/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				data, _ = c.key.AppendBinary(data[:0])
			}
			b.ReportMetric(float64(len(data)), "bytes")
		})
		b.Run("read/"+c.name, func(b *testing.B) {
			data, _ = c.key.AppendBinary(nil)
			b.ReportAllocs()
			for b.Loop() {
				_ = s.UnmarshalBinary(data)
			}
		})
		b.Run("JSON/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				data, _ = json.Marshal(c.key)
				_ = json.Unmarshal(data, &s)
			}
			b.ReportMetric(float64(len(data)), "bytes")
		})
	}
}
