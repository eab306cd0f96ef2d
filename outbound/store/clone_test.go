package store

import (
	"reflect"
	"testing"
	"time"
)

// fill writes another number into every field of v, and gives each slice two elements.
func fill(t *testing.T, v reflect.Value, next *int64) {
	t.Helper()
	*next++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int32, reflect.Int64:
		v.SetInt(*next)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(*next % 256))
	case reflect.Float64:
		v.SetFloat(float64(*next) / 2)
	case reflect.String:
		v.SetString(time.Duration(*next).String())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), next)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), next)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), next)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), next)
	default:
		t.Fatalf("no number fits into a %s", v.Type())
	}
}

// change changes in place all to which v leads, but for limits and periods.
func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			change(v.Field(i))
		}
	case reflect.Array, reflect.Slice:
		if v.Type() == reflect.TypeFor[[]Limit]() || v.Type() == reflect.TypeFor[[]Period]() {
			return
		}
		for i := range v.Len() {
			change(v.Index(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			change(v.Elem())
		}
	default:
		v.SetZero()
	}
}

func filled(t *testing.T) *Op {
	op, next := new(Op), int64(0)
	fill(t, reflect.ValueOf(op).Elem(), &next)
	return op
}

// A clone shares only what never changes.
func TestClone_SharesNothingThatChanges(t *testing.T) {
	op, want := filled(t), filled(t)
	want.Into = nil
	clone := op.Clone()
	if !reflect.DeepEqual(clone, want) {
		t.Fatalf("the clone is %+v, want %+v", clone, want)
	}
	if &clone.Limits[0] != &op.Limits[0] || &clone.Replacement[0] != &op.Replacement[0] {
		t.Error("the clone does not share the limits")
	}
	change(reflect.ValueOf(op).Elem())
	if !reflect.DeepEqual(clone, want) {
		t.Errorf("after a change of the original the clone is %+v, want %+v", clone, want)
	}
	_ = append(clone.Unused, Charge{})
	if !reflect.DeepEqual(clone, want) {
		t.Errorf("after an append to its Back the clone is %+v, want %+v", clone, want)
	}
}

// What an Op does not have its clone does not have, and a call of no charge stays one.
func TestClone_OfLittleIsLittle(t *testing.T) {
	for _, op := range []*Op{{}, {Limits: []Limit{{}}}, {Reports: []Report{{Kind: Succeeded}}}, {Move: new(Charge)}, {Unused: make([]Charge, 1)}} {
		if clone := op.Clone(); !reflect.DeepEqual(clone, op) {
			t.Errorf("the clone of %+v is %+v", op, clone)
		}
	}
}

// Clone allocates once for each kind of content.
func TestClone_TakesFiveAllocationsAtMost(t *testing.T) {
	var clone *Op
	for _, c := range []struct {
		op   *Op
		most float64
	}{
		{filled(t), 5},
		{&Op{Limits: []Limit{{}}, Action: Book, Costs: []Units{{1}}}, 2},
		{&Op{Limits: []Limit{{}}}, 1},
	} {
		if n := testing.AllocsPerRun(100, func() { clone = c.op.Clone() }); n > c.most && !raced {
			t.Errorf("%v allocations for %+v, want at most %v", n, clone, c.most)
		}
	}
}
