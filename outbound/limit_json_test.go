package outbound

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// someLimits are of each kind, at the edges of what is valid.
var someLimits = []Limit{
	{Capacity: 40, LeakRate: 2}, {Capacity: 1e12, LeakRate: 1e12, Unit: 3, Name: "input tokens"}, {Capacity: 1e-300, LeakRate: 1e-305},
	{Capacity: math.Nextafter(1, 2), LeakRate: 1. / 3, Name: "\u2028\"\\\x00é\U0010ffff"}, PerSecond(10), PerMinute(30_000).Burst(3_000).Of(1, "tokens"),
	Per(1e-9, time.Second), Per(3, 1), Per(1e9, time.Second), InFlight(1), InFlight(1e9).Of(2, "at once"),
	Window(100, 10*time.Second), Window(5_000, time.Hour).Of(1, "tokens"), Window(1./3, time.Millisecond), Window(1e12, maxWindow), FixedWindow(30, 7*time.Second),
	Hourly(1e12), Daily(10_000, time.UTC), Daily(10_000, pacific).Of(2, "units"), Monthly(1e-9, pacific),
}

var pacific = zone("America/Los_Angeles")

func zone(name string) *time.Location {
	z, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return z
}

func TestALimitSurvivesJSONWholly(t *testing.T) {
	for _, l := range someLimits {
		data, err := json.Marshal(l)
		if err != nil {
			t.Errorf("%v: %v", l, err)
			continue
		}
		var again Limit
		if err := json.Unmarshal(data, &again); err != nil || again != l {
			t.Errorf("%v is %s and then %v, %v", l, data, again, err)
		}
	}
	data, err := json.Marshal(PerSecond(10).Of(1, "x"))
	for l, want := range map[Limit]string{
		Window(100, 10*time.Second):              `{"kind":"window","capacity":100,"per":10000000000}`,
		Daily(1e4, pacific).Of(1, "units"):       `{"kind":"daily","capacity":10000,"unit":1,"name":"units","zone":"America/Los_Angeles"}`,
		Hourly(5).Of(0, "5 per hour"):            `{"kind":"hourly","capacity":5,"name":"5 per hour"}`,
		FixedWindow(0.25, 1500*time.Microsecond): `{"kind":"fixed_window","capacity":0.25,"per":1500000}`,
	} {
		if data, err := json.Marshal(l); err != nil || string(data) != want {
			t.Errorf("%s, %v; want %s", data, err, want)
		}
	}
	if want := `{"capacity":1,"leak_rate":9.900990099009901,"unit":1,"name":"x","n":10,"per":1000000000}`; err != nil || string(data) != want {
		t.Errorf("%s, %v; want %s", data, err, want)
	}
}

// A bucket tells of the limit that it was given, also where it is the only one.
func TestTheLimitOfAStateIsTheOneThatWasGiven(t *testing.T) {
	for _, l := range someLimits {
		given := [][]Limit{{l}}
		if !l.inFlight {
			given = append(given, []Limit{l, {Capacity: 1, LeakRate: 1, Name: "other"}})
		}
		for _, limits := range given {
			b := Must(NewBucket("k", limits...))
			all := states(t, b)
			data, err := json.Marshal(all[0].Limit)
			var again Limit
			if all[0].Limit != l || err != nil || json.Unmarshal(data, &again) != nil || again != l {
				t.Errorf("of %d limits: %v, in JSON %s (%v), want %v", len(limits), all[0].Limit, data, err, l)
			}
			if err := b.SetLimits(ctx, limits...); err != nil || b.word.Load() == busy && len(limits) == 1 && b.unit > 0 {
				t.Errorf("%v, set again: %v, and it is slower", l, err)
			}
		}
	}
	if l := states(t, Must(NewBucket("k", PerMinute(100))))[0].Limit.Burst(5); l != PerMinute(100).Burst(5) {
		t.Errorf("with a burst: %v", l)
	}
}

func TestALimitThatNoBucketTakesIsNotDecoded(t *testing.T) {
	for _, data := range []string{`null`, `{}`, `{"capacity":0,"leak_rate":1}`, `{"capacity":-1,"leak_rate":1}`, `{"capacity":1}`, `{"capacity":1,"leak_rate":1e13}`,
		`{"capacity":1e13,"leak_rate":1}`, `{"capacity":1e12,"leak_rate":1e-3}`, `{"capacity":1,"leak_rate":1,"unit":4}`, `{"capacity":1,"leak_rate":1,"unit":-1}`,
		`{"capacity":1,"leak_rate":1,"n":-1,"per":1}`, `{"capacity":1,"leak_rate":1,"n":1}`, `{"capacity":1,"leak_rate":1,"per":1}`,
		`{"capacity":1,"leak_rate":1,"n":1,"per":-1}`, `{"capacity":1,"leak_rate":1,"n":1,"per":9223372036854775807}`,
		`{"kind":"weekly","capacity":1}`, `{"kind":"window","capacity":1}`, `{"kind":"window","capacity":1,"per":-5}`, `{"kind":"window","capacity":1,"per":999999}`,
		`{"kind":"window","capacity":1e13,"per":1000000000}`, `{"kind":"window","per":1000000000}`, `{"kind":"window","capacity":1,"per":9223372036854775807}`,
		`{"kind":"fixed_window","capacity":1,"per":1000000000,"leak_rate":1}`, `{"kind":"window","capacity":1,"per":1000000000,"n":1}`,
		`{"kind":"window","capacity":1,"per":1000000000,"zone":"UTC"}`, `{"kind":"window","capacity":1,"per":1000000000,"in_flight":true}`,
		`{"kind":"window","capacity":1,"per":1000000000,"unit":4}`, `{"kind":"hourly","capacity":1,"zone":"UTC"}`, `{"kind":"hourly","capacity":-1}`,
		`{"kind":"daily","capacity":1}`, `{"kind":"daily","capacity":1,"zone":"Local"}`, `{"kind":"daily","capacity":1,"zone":"../../etc/passwd"}`,
		`{"kind":"daily","capacity":1,"zone":"UTC","per":1}`, `{"kind":"monthly","capacity":1,"zone":"Europe/Nowhere"}`, `{"kind":"monthly","capacity":0,"zone":"UTC"}`,
		`{"kind":"monthly","capacity":1,"zone":"Europe//Berlin"}`, `{"capacity":1,"leak_rate":1,"zone":"UTC"}`, `{"capacity":1,"in_flight":true,"zone":"UTC"}`,
		`{"capacity":0.5,"in_flight":true}`, `{"capacity":1,"leak_rate":1,"in_flight":true}`, `{"capacity":1,"n":1,"per":1,"in_flight":true}`} {
		l := someLimits[0]
		if err := json.Unmarshal([]byte(data), &l); !errors.Is(err, ErrInvalidLimit) || l != someLimits[0] {
			t.Errorf("%s: %v, %v", data, l, err)
		}
	}
	for _, data := range []string{`{"capacity":"1"}`, `[]`, `1`, `{"capacity":1e400}`, `{"capacity":1,"leak_rate":1,"unit":0.5}`, `{"capacity":1,"leak_rate":1,"per":"1s"}`} {
		var l Limit
		if err := json.Unmarshal([]byte(data), &l); err == nil || !strings.HasPrefix(err.Error(), "outbound: ") || l != (Limit{}) {
			t.Errorf("%s: %v, %v", data, l, err)
		}
	}
	if data, err := json.Marshal(Limit{Capacity: 1, LeakRate: 1}.Burst(2)); !errors.Is(err, ErrInvalidLimit) {
		t.Errorf("an invalid limit is written as %s, %v", data, err)
	}
}

// FuzzLimitJSON checks that what is decoded is a limit that a bucket takes and
// that it is written as it was read.
func FuzzLimitJSON(f *testing.F) {
	for _, l := range someLimits {
		data, err := json.Marshal(l)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"capacity":1,"leak_rate":1,"name":"\ud800","n":1e300,"per":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var l, again Limit
		if l.UnmarshalJSON(data) != nil {
			return
		}
		if _, err := NewBucket("key", l); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if !(l.Capacity > 0) || !l.inFlight && !l.kind.Calendar() && (!(l.LeakRate > 0) || l.Capacity/l.LeakRate > 1.001*maxDrain) {
			t.Fatalf("%s: %+v", data, l)
		}
		out, err := l.MarshalJSON()
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if err := again.UnmarshalJSON(out); err != nil || again != l {
			t.Fatalf("%s is %s and then %+v, %v; want %+v", data, out, again, err, l)
		}
		_ = l.Burst(2).String()
	})
}
