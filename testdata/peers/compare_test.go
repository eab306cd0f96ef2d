package main

import (
	"strings"
	"testing"
)

// The spread is that of the wider side, and one wild value does not widen it.
func TestCompare_SpreadIsTheDistanceOfTheQuartiles(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{7, 7, 7, 7, 7, 7}, 0},
		{[]float64{6, 1, 5, 2, 4, 3}, 3},
		{[]float64{7, 6, 1, 5, 2, 4, 3}, 4},
		{[]float64{10, 11, 12, 13, 14, 9000}, 3}, // a wild value
	} {
		c := cell{values: test.values}
		if got := c.spread(); got != test.want {
			t.Errorf("%v have a spread of %v, want %v", test.values, got, test.want)
		}
	}
	p := pair{cell{values: []float64{1, 1, 1, 1, 2, 2}}, cell{values: []float64{1, 3, 5, 5, 5, 5}}}
	if got := p.spread(); got != 2 {
		t.Errorf("the wider of two spreads is %v, want 2", got)
	}
}

// turns makes six values around a median, with quartiles this far apart.
func turns(median, spread float64) cell {
	return cell{values: []float64{median - spread/2, median, median + spread/2, median - spread/2, median, median + spread/2}}
}

// A row is worse if it is slower, larger or allocates more by more than the spread and an allowance.
func TestCompare_RowIsWorseBeyondTheSpread(t *testing.T) {
	none := pair{turns(0, 0), turns(0, 0)}
	for _, test := range []struct {
		name   string
		values pair
		size   bool
		bytes  pair
		want   string
		worse  bool
	}{
		{"the same", pair{turns(100, 0), turns(100, 0)}, false, none, "", false},
		{"5 % slower", pair{turns(105, 0), turns(100, 0)}, false, none, "", false},
		{"6 % slower", pair{turns(106, 0), turns(100, 0)}, false, none, "slower", true},
		{"within this tree's spread and 5 %", pair{turns(124, 20), turns(100, 0)}, false, none, "", false},
		{"within the other's spread and 5 %", pair{turns(124, 0), turns(100, 20)}, false, none, "", false},
		{"beyond both", pair{turns(126, 20), turns(100, 20)}, false, none, "slower", true},
		{"something where there was nothing", pair{turns(1, 0), turns(0, 0)}, false, none, "slower", true},
		{"as quick as within 5 %", pair{turns(100, 0), turns(104, 0)}, false, none, "", false},
		{"quicker", pair{turns(80, 0), turns(100, 0)}, false, none, "quicker", false},
		{"8 bytes larger", pair{turns(108, 0), turns(100, 0)}, true, none, "", false},
		{"9 bytes larger", pair{turns(109, 0), turns(100, 0)}, true, none, "larger", true},
		{"9 bytes of many", pair{turns(3009, 0), turns(3000, 0)}, true, none, "larger", true},
		{"9 bytes larger, within the spread", pair{turns(109, 4), turns(100, 0)}, true, none, "", false},
		{"9 bytes smaller", pair{turns(91, 0), turns(100, 0)}, true, none, "smaller", false},
		{"8 bytes allocated more", pair{turns(100, 0), turns(100, 0)}, false, pair{turns(8, 0), turns(0, 0)}, "", false},
		{"16 bytes allocated more", pair{turns(100, 0), turns(100, 0)}, false, pair{turns(16, 0), turns(0, 0)}, "allocates more", true},
		{"quicker, for 16 bytes", pair{turns(80, 0), turns(100, 0)}, false, pair{turns(16, 0), turns(0, 0)}, "allocates more", true},
	} {
		r := row{metric: metric{size: test.size}, values: test.values, counted: true, objects: none, bytes: test.bytes}
		if text, worse := r.verdict(); text != test.want || worse != test.worse {
			t.Errorf("%s: %q, %t, want %q, %t", test.name, text, worse, test.want, test.worse)
		}
	}
}

// The table has medians, ratio, spread, allocations and verdict of both trees.
func TestCompare_RowsShowBothTrees(t *testing.T) {
	slow := &row{name: "Thing, ns: once", metric: metric{digits: 1}}
	large := &row{name: "Thing, ns: bytes", metric: metric{size: true}}
	zero := &row{name: "Thing, ns: none", metric: metric{digits: 1}, wrong: 0.004}
	for i := range 6 {
		slow.add(true, 120+float64(i%3), &allocated{1, 64})
		slow.add(false, 99+float64(i%3), &allocated{0, 0})
		large.add(true, 110, nil)
		large.add(false, 110, nil)
		zero.add(true, 0, nil)
		zero.add(false, 0, nil)
	}
	var out strings.Builder
	worse := writeRows(&out, []*row{slow, large, zero})
	want := `| dripfeed | this tree | the other | ratio | spread | allocations, this / other | bytes, this / other | verdict |
|---|---:|---:|---:|---:|---:|---:|---:|
| Thing, ns: once | 121.0 | 100.0 | 1.210 | 2.0 % | 1.0 / 0.0 | 64 / 0 | slower |
| Thing, ns: bytes | 110 | 110 | 1.000 | 0.0 % | – | – |  |
| Thing, ns: none \* | 0.0 | 0.0 | – | – | – | – |  |

\* some of these decisions went wrong, at most 0.4 %
`
	if out.String() != want || worse != 1 {
		t.Errorf("%d worse in\n%s\nwant 1 in\n%s", worse, out.String(), want)
	}
}
