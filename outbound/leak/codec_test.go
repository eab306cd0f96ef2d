package leak

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	_ encoding.BinaryAppender    = (*Stored)(nil)
	_ encoding.BinaryMarshaler   = (*Stored)(nil)
	_ encoding.BinaryUnmarshaler = (*Stored)(nil)
)

// eachTrace hands over what random traces leave in a key.
func eachTrace(seeds, steps int, do func(s *Stored)) {
	for seed := range uint64(seeds) {
		tr := newTrace(seed, someWorkers()...)
		var s Stored
		for range steps {
			op := tr.step(&s)
			r := op.Apply(&s, tr.now)
			tr.heard(&op, &r)
			do(&s)
		}
	}
}

// tidy returns s with no slice that is empty.
func (s Stored) tidy() Stored {
	if len(s.Limits) == 0 {
		s.Limits = nil
	}
	if len(s.Others) == 0 {
		s.Others = nil
	}
	return s
}

func TestAStoredKeySurvivesEachCodecWholly(t *testing.T) {
	longest := 0
	eachTrace(4, 1000, func(s *Stored) {
		data, err := s.MarshalBinary()
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		longest = max(longest, len(data))
		old := Stored{Limits: make([]Limit, 2), Others: make([]Other, 9), Lead: 7}
		limits := old.Limits
		if err := old.UnmarshalBinary(data); err != nil || !reflect.DeepEqual(old, s.tidy()) {
			t.Fatalf("%+v was read as\n%+v, %v", s, old, err)
		}
		if !reflect.DeepEqual(limits, make([]Limit, 2)) {
			t.Fatal("limits that somebody else may hold were written to")
		}
		data[0] = 0 // nothing of it is kept
		text, err := json.Marshal(s)
		var other Stored
		if err != nil || json.Unmarshal(text, &other) != nil || !reflect.DeepEqual(other.tidy(), old) {
			t.Fatalf("%+v is of JSON\n%+v, %v", old, other, err)
		}
	})
	if longest > 300 {
		t.Errorf("a key takes %d bytes", longest)
	}
}

func TestABinaryKeyIsAppended(t *testing.T) {
	s := keyInUse(t)
	data, err := s.AppendBinary([]byte("key"))
	if err != nil || !strings.HasPrefix(string(data), "key") {
		t.Fatalf("%q, %v", data, err)
	}
	var again Stored
	if err := again.UnmarshalBinary(data[3:]); err != nil || !reflect.DeepEqual(again, s) {
		t.Errorf("%+v, %v", again, err)
	}
}

// fields calls do for each number and text in v.
func fields(name string, v reflect.Value, do func(name string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fields(name+"."+v.Type().Field(i).Name, v.Field(i), do)
		}
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			fields(name, v.Index(i), do)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			fields(name, v.Elem(), do)
		}
	default:
		do(name, v)
	}
}

// fullKey has something in every field.
func fullKey(t testing.TB) Stored {
	s := keyInUse(t)
	s.Stamp, s.Version, s.Lead = 5, 6, 7
	s.State.Row = Row{Calls: 3, Refused: 2, Top: 0.9, Per: 8, Fast: 0.95, Trust: 4, Until: s.State.At + time.Hour}
	return s
}

// A field that the codec forgets makes no difference in bytes.
func TestEachFieldOfAKeyIsInItsBytes(t *testing.T) {
	s := fullKey(t)
	was, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	fields("Stored", reflect.ValueOf(&s).Elem(), func(name string, v reflect.Value) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Float64:
			v.SetFloat(v.Float()*0.75 + 1e-3)
		case reflect.Int, reflect.Int32, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Uint8:
			v.SetUint(v.Uint() + 1)
		default:
			t.Fatalf("%s is a %s", name, v.Type())
		}
		data, err := s.MarshalBinary()
		if err != nil || slices.Equal(data, was) && !idle(name, &s) {
			t.Errorf("%s is not written: %v", name, err)
		}
		var again Stored
		if err := again.UnmarshalBinary(data); err == nil && !reflect.DeepEqual(again, s) && !idle(name, &s) {
			t.Errorf("%s is not read", name)
		}
		v.Set(old)
		n++
	})
	if n < 50 {
		t.Errorf("%d fields", n)
	}
}

// idle reports whether the field is of a level that has no limit.
func idle(name string, s *Stored) bool {
	if strings.HasSuffix(name, ".Zone") { // of a limit that is no calendar's
		return true
	}
	return strings.HasPrefix(name, "Stored.State.Level.") && slices.ContainsFunc(s.State.Level[len(s.Limits):], func(l Level) bool { return l != Level{} })
}

// hostile are rows that no Apply can have left.
func hostile(t testing.TB) map[string][]byte {
	rows := map[string][]byte{
		"no bytes":                 nil,
		"a NUL":                    {0},
		"the format only":          {format},
		"JSON":                     []byte(`{"State":{"At":1}}`),
		"text":                     []byte("hello"),
		"many limits":              slices.Concat([]byte{format}, make([]byte, 10), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}),
		"a varint of eleven bytes": slices.Concat([]byte{format}, slices.Repeat([]byte{0xff}, 10), []byte{1}),
	}
	s := fullKey(t)
	whole := s.append(nil)
	for i := range whole {
		rows[fmt.Sprint("cut off after ", i)] = whole[:i]
	}
	for _, more := range []byte{0, ' ', '\n', format} {
		rows[fmt.Sprint("one byte more: ", more)] = append(slices.Clip(whole), more)
	}
	for _, first := range []byte{0, format + 1, 255} {
		rows[fmt.Sprint("format ", first)] = append([]byte{first}, whole[1:]...)
	}
	zero := slices.Clone(whole) // a varint of two bytes for a number below 128
	why := s
	why.State.Why ^= 1
	i := 0
	for other := why.append(nil); zero[i] == other[i]; i++ {
	}
	rows["a varint longer than it must be"] = slices.Concat(zero[:i-1], []byte{zero[i-1] | 0x80, 0}, zero[i:])

	spoil := func(name string, spoil func(s *Stored)) {
		s := fullKey(t)
		spoil(&s)
		rows[name] = s.append(nil)
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300, -1e-300} {
		is := fmt.Sprint(" of ", x)
		spoil("level"+is, func(s *Stored) { s.State.Level[0].Level = x })
		spoil("another's level"+is, func(s *Stored) { s.Others[0].Level.Level = x })
		spoil("capacity"+is, func(s *Stored) { s.Limits[0].Capacity = x })
		spoil("rate"+is, func(s *Stored) { s.Limits[0].Rate = x })
		spoil("another's rate"+is, func(s *Stored) { s.Others[0].Limit.Rate = x })
		spoil("speed"+is, func(s *Stored) { s.State.Speed = x })
		spoil("lead"+is, func(s *Stored) { s.Lead = x })
		spoil("row's top"+is, func(s *Stored) { s.State.Row.Top = x })
		if x != -1 && x != -1e-300 {
			spoil("ret"+is, func(s *Stored) { s.State.Level[0].Ret = x })
			spoil("top"+is, func(s *Stored) { s.State.Level[0].Top = x })
		}
	}
	spoil("born long after", func(s *Stored) { s.State.Born = math.MaxInt64 })
	spoil("born long before", func(s *Stored) { s.State.Born = s.State.At - math.MaxInt64 })
	spoil("skip", func(s *Stored) { s.State.Skip = math.MinInt64 })
	spoil("rem", func(s *Stored) { s.State.Rem = -HoldMemory - 1 })
	spoil("a hold of 200 years", func(s *Stored) { s.State.Rem = math.MaxInt64 })
	spoil("last", func(s *Stored) { s.State.Last = -BookingGrace - 1 })
	spoil("a booking in 200 years", func(s *Stored) { s.State.Last = math.MaxInt64 })
	spoil("another's dial", func(s *Stored) { s.Others[0].Dial = math.MinInt64 })
	spoil("fails", func(s *Stored) { s.State.Fails = NoRefusalYet - 1 })
	spoil("trust", func(s *Stored) { s.State.Row.Trust = trusted + 1 })
	spoil("calls", func(s *Stored) { s.State.Row.Calls = -1 })
	spoil("unit", func(s *Stored) { s.Limits[0].Unit = MaxUnit + 1 })
	spoil("window", func(s *Stored) { s.Limits[0].Window = -1 })
	spoil("no limits", func(s *Stored) { s.Limits, s.Stamp = nil, 0 })
	spoil("nine limits", func(s *Stored) { s.Limits = slices.Repeat(s.Limits[:1], Max+1)[:Max+1] })
	spoil("too many others", func(s *Stored) { s.Others = slices.Repeat(s.Others[:1], maxOthers+1) })
	spoil("speed 0", func(s *Stored) { s.State.Speed = 0 })
	spoil("garbage", func(s *Stored) { s.State.Speed = -1 })
	return rows
}

// A store hands Apply what UnmarshalBinary has left, whether it failed or not.
func TestARowOfHostileBytesIsFullToTheBrimAndNotForEver(t *testing.T) {
	for name, data := range hostile(t) {
		s := keyInUse(t)
		if err := s.UnmarshalBinary(data); !errors.Is(err, ErrGarbage) {
			t.Errorf("%s: %v", name, err)
		}
		if r, _ := asWorker(&s, Op{Limits: []Limit{garbageLimit}}, garbageTime); !r.Garbage || !r.Changed {
			t.Errorf("%s: %+v", name, r)
		}
		if n, told := opened(&s, garbageTime, garbageLimit, Units{1}); n != 0 || told {
			t.Errorf("%s: %d calls go at once, told again %v", name, n, told)
		}
		if n, _ := opened(&s, garbageTime+10*time.Second, garbageLimit, Units{1}); n != 10 {
			t.Errorf("%s: %d calls go after 10s", name, n)
		}
	}
}

func TestLimitsThatWereSetOutliveANumberThatMakesNoSense(t *testing.T) {
	s := fullKey(t)
	s.Limits[0].Capacity = 3
	s.State.Level[0].Level = math.NaN()
	data, _ := s.MarshalBinary()
	if err := s.UnmarshalBinary(data); !errors.Is(err, ErrGarbage) {
		t.Error(err)
	}
	r, in := asWorker(&s, Op{Limits: []Limit{garbageLimit}}, garbageTime)
	if !r.Garbage || len(in) != 1 || in[0].Capacity != 3 || r.State.Level[0].Level != 3 || r.Stamp != 5 {
		t.Errorf("by limits %v: %+v", in, r)
	}
}

func TestAKeyThatDoesNotExistIsReadAsSuch(t *testing.T) {
	for _, s := range []Stored{{}, {Version: 7}} {
		data, err := s.MarshalBinary()
		again := keyInUse(t)
		if err != nil || again.UnmarshalBinary(data) != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%+v, %v, want %+v", again, err, s)
		}
	}
}

func TestAKeyIsWrittenAndReadWithFewAllocations(t *testing.T) {
	s := keyInUse(t)
	data, b := s.append(nil), make([]byte, 0, 1000)
	if n := testing.AllocsPerRun(100, func() { b, _ = s.AppendBinary(b[:0]) }); n > 0 && !raced {
		t.Errorf("%v allocations to append", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = s.UnmarshalBinary(data) }); n > 2 && !raced { // Limits and Others
		t.Errorf("%v allocations to read", n)
	}
}

// FuzzStored reads any bytes as a key, and uses it.
func FuzzStored(f *testing.F) {
	n := 0
	eachTrace(3, 300, func(s *Stored) {
		if n++; n%50 == 0 {
			f.Add(s.append(nil), int64(n)<<20)
		}
	})
	for _, data := range hostile(f) {
		f.Add(data, int64(time.Second))
	}
	f.Fuzz(func(t *testing.T, data []byte, later int64) {
		at := garbageTime
		for step := range 3 {
			var s Stored
			err := s.UnmarshalBinary(data)
			if err == nil {
				if again, _ := s.AppendBinary(nil); !slices.Equal(again, data) {
					t.Fatalf("%q was read as %+v and written as %q", data, s, again)
				}
				if step == 0 && !s.missing() {
					at = s.State.At
				}
			} else if !errors.Is(err, ErrGarbage) {
				t.Fatal(err)
			}
			r, in := asWorker(&s, Op{Limits: []Limit{garbageLimit}, Action: Book, Costs: []Units{{1, 1, 1, 1}}}, at)
			if r.Stale || (step == 0 || err != nil) && r.Garbage != (err != nil) || r.Garbage && len(r.Charges) > 0 {
				t.Fatalf("%q, %v: %+v", data, err, r)
			}
			for i := range in {
				if l := r.State.Level[i].Level; !(l >= 0) || math.IsInf(l, 0) {
					t.Fatalf("%q: %+v", data, r)
				}
			}
			data, _ = s.AppendBinary(nil)
			at = add(at, time.Duration(later))
		}
	})
}

// The bytes of a key that has leaky limits only are as they were before there were others.
func TestBytesOfLeakyLimitsAreOfTheFirstFormat(t *testing.T) {
	for format, l := range map[byte]Limit{1: {Capacity: 1, Rate: 1}, 2: moving(1, time.Second)} {
		var s Stored
		(&Op{Limits: []Limit{l}, Action: Book, Costs: []Units{{1}}}).Apply(&s, 0)
		if b, _ := s.MarshalBinary(); b[0] != format || s.UnmarshalBinary(b) != nil {
			t.Errorf("%v: format %d, want %d", l, b[0], format)
		}
	}
}
