package outbound

import (
	"encoding/json"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/spec"
)

// someLimits are of each kind, at the edges of what is valid.
var someLimits = []Limit{
	{Capacity: 40, LeakRate: 2}, {Capacity: 1e12, LeakRate: 1e12, Unit: 3, Name: "input tokens"}, {Capacity: 1e-300, LeakRate: 1e-305},
	{Capacity: math.Nextafter(1, 2), LeakRate: 1. / 3, Name: "\u2028\"\\\x00é\U0010ffff"}, PerSecond(10), PerMinute(30_000).Burst(3_000).Of(1, "tokens"),
	Per(1e-9, time.Second), Per(3, 1), Per(1e9, time.Second), InFlight(1), InFlight(1e9).Of(2, "at once"),
	Window(100, 10*time.Second), Window(5_000, time.Hour).Of(1, "tokens"), Window(1./3, time.Millisecond), Window(1e12, spec.MaxWindow), FixedWindow(30, 7*time.Second),
	InFlight(50).Lease(90*time.Second).Of(0, "calls"), InFlight(64).Adaptive().Of(1, "calls"),
	{Capacity: 1, LeakRate: 1, Version: 1}, {Capacity: 4, LeakRate: 4, Name: "x, version 3", Version: math.MaxInt32},
	Hourly(1e12), Daily(10_000, time.UTC), Daily(10_000, pacific).Of(2, "units"), Monthly(1e-9, pacific),
	Weekly(7, time.UTC), Weekly(7, pacific).From(7), Monthly(9, pacific).From(31).Of(1, "tokens"),
}

var pacific = zone("America/Los_Angeles")

func zone(name string) *time.Location {
	z, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return z
}

// String and JSON have all of a limit.
func TestLimit_TextAndJSONKeepAllOfIt(t *testing.T) {
	for _, l := range someLimits {
		for _, name := range []string{l.Name, "", "a: b", "a (unit 1)", `"`, " x", "x:", "(unit 2)", "per second", "10 per 1s", "\n", ",", "`a`", "`a", "'a'", "`a` b", "'"} {
			l := l.Of(l.Unit, name)
			if again, err := ParseLimit(l.String()); err != nil || again != l {
				t.Errorf("%s is read as %+v, %v; want %+v", l, again, err, l)
			}
			data, err := json.Marshal(l)
			var again Limit
			errorIf(t, err != nil || json.Unmarshal(data, &again) != nil || again != l,
				"%s is %s in JSON (%v), and then %+v", l, data, err, again)
		}
	}
	random := rand.New(rand.NewPCG(31, 16))
	for range 10_000 {
		name := make([]byte, random.IntN(6))
		for i := range name {
			name[i] = "`'\"\\ab :()1\n"[random.IntN(12)]
		}
		named := PerSecond(10).Of(0, string(name))
		if again, err := ParseLimit(named.String()); err != nil || again != named {
			t.Fatalf("%s is read as %+v, %v; want %+v", named, again, err, named)
		}
		n, d := math.Exp(random.NormFloat64()*5), time.Duration(random.Int64N(1<<random.IntN(60))+1)
		for _, l := range []Limit{Per(n, d), Per(n, d).Burst(1 + (n-1)*random.Float64()), Window(n, d), FixedWindow(n, d), {Capacity: n, LeakRate: n / d.Seconds()},
			Hourly(n), Daily(n, time.UTC), InFlight(int(n) + 1)} {
			again, err := ParseLimit(l.String())
			_, invalid := NewBucket("key", l)
			fatalIf(t, invalid == nil && (err != nil || again != l), "%s is read as %+v, %v; want %+v", l, again, err, l)
		}
	}
}

// ParseLimit and JSON read what people write, and String writes it in one form.
func TestParseLimit_ReadsWhatPeopleWrite(t *testing.T) {
	berlin := zone("Europe/Berlin")
	for _, c := range []struct {
		text string
		want Limit
		says string // what String prints; "": text
	}{
		{"10 per 1s", PerSecond(10), ""},
		{"10 per second", PerSecond(10), "10 per 1s"},
		{" 0.5  per minute ", PerMinute(0.5), "0.5 per 1m"},
		{"5000 per hour", PerHour(5000), "5000 per 1h"},
		{"1e6 per 1h30m0s", Per(1e6, 90*time.Minute), "1000000 per 1h30m"},
		{"60 per 1m, 5 burst", PerMinute(60).Burst(5), ""},
		{"5 burst , 60 per 1m", PerMinute(60).Burst(5), "60 per 1m, 5 burst"},
		{"60 per 1m , 5 burst ", PerMinute(60).Burst(5), "60 per 1m, 5 burst"},
		{"5 burst, 60 per 1m", PerMinute(60).Burst(5), "60 per 1m, 5 burst"},
		{"60 per 1m, 1 burst", PerMinute(60), "60 per 1m"},
		{"40 burst, 2 per 1s", Limit{Capacity: 40, LeakRate: 2}, "40 burst, 2/s"},
		{"2 per 1s, 40 burst", Limit{Capacity: 40, LeakRate: 2}, "40 burst, 2/s"},
		{"40 burst, 2/s", Limit{Capacity: 40, LeakRate: 2}, ""},
		{"10 burst, 10/s", Limit{Capacity: 10, LeakRate: 10}, ""},
		{"50/h,50 burst", Limit{Capacity: 50, LeakRate: 50. / 3600}, "50 burst, 50/h"},
		{"1 burst, 90/m", Limit{Capacity: 1, LeakRate: 1.5}, "1 burst, 1.5/s"},
		{"100 in any 1m", Window(100, time.Minute), ""},
		{"100 in any minute", Window(100, time.Minute), "100 in any 1m"},
		{"30 in 7s from the first", FixedWindow(30, 7*time.Second), ""},
		{"10000 per day Europe/Berlin", Daily(10_000, berlin), ""},
		{"7 per month UTC", Monthly(7, time.UTC), ""},
		{"900 per month UTC from day 15", Monthly(900, time.UTC).From(15), ""},
		{"900 per month UTC from day 1", Monthly(900, time.UTC), "900 per month UTC"},
		{"20 per week UTC", Weekly(20, time.UTC).From(3).From(1), ""},
		{"20 per week Europe/Berlin  from day 7", Weekly(20, berlin).From(7), "20 per week Europe/Berlin from day 7"},
		{"5 per hour UTC", Hourly(5), ""},
		{"5 in flight", InFlight(5), ""},
		{"5 in flight, 30s lease", InFlight(5), "5 in flight"},
		{"calls: 50 in flight, 1m30s lease", InFlight(50).Lease(90*time.Second).Of(0, "calls"), ""},
		{"calls: 64 in flight, adaptive", InFlight(64).Adaptive().Of(0, "calls"), ""},
		{"0.5 in 1m30s from the first", FixedWindow(0.5, 90*time.Second), ""},
		{"tokens (unit 1): 30000 per 1m, 3000 burst", PerMinute(30_000).Burst(3_000).Of(1, "tokens"), ""},
		{"(unit 3): 5 in flight", InFlight(5).Of(3, ""), ""},
		{"per key: 5 in flight", InFlight(5).Of(0, "per key"), ""},
		{`"a (unit 1)" (unit 2): 5 in flight`, InFlight(5).Of(2, "a (unit 1)"), ""},
		{`"plain":5 in flight`, InFlight(5).Of(0, "plain"), "plain: 5 in flight"},
	} {
		l, err := ParseLimit(c.text)
		errorIf(t, err != nil || l != c.want, "%q: %+v, %v; want %+v", c.text, l, err, c.want)
		if c.says == "" {
			c.says = c.text
		}
		errorIf(t, l.String() != c.says, "%q is printed as %q, want %q", c.text, l, c.says)
	}
	for text, want := range map[string]Limit{
		`{"n":10,"per":"1s"}`:                              PerSecond(10),
		`{"n":60,"per":"minute","burst":5}`:                PerMinute(60).Burst(5),
		`{"n":2,"per":"1s","burst":40}`:                    {Capacity: 40, LeakRate: 2},
		`{"capacity":40,"leak_rate":2,"name":"shop"}`:      {Capacity: 40, LeakRate: 2, Name: "shop"},
		`{"n":100,"window":"1m","unit":1}`:                 Window(100, time.Minute).Of(1, ""),
		`{"n":30,"fixed_window":"7s"}`:                     FixedWindow(30, 7*time.Second),
		`{"n":10000,"per":"day","zone":"UTC"}`:             Daily(10_000, time.UTC),
		`{"n":1,"per":"month","zone":"Europe/Berlin"}`:     Monthly(1, berlin),
		`{"in_flight":5}`:                                  InFlight(5),
		`{"n":9,"per":"month","zone":"UTC","from_day":31}`: Monthly(9, time.UTC).From(31),
		`{"n":9,"per":"week","zone":"UTC"}`:                Weekly(9, time.UTC),
		`{"in_flight": 7, "lease": "1m"}`:                  InFlight(7).Lease(time.Minute),
		`{"in_flight":64,"adaptive":true,"name":"x"}`:      InFlight(64).Adaptive().Of(0, "x"),
		` "in\u0070ut (unit 1): 5 in flight" `:             InFlight(5).Of(1, "input"),
		`{"n":5,"per":"hour","zone":"UTC","name":"\""}`:    Hourly(5).Of(0, `"`),
	} {
		var l Limit
		err := json.Unmarshal([]byte(text), &l)
		errorIf(t, err != nil || l != want, "%s: %+v, %v; want %+v", text, l, err, want)
	}
	var l Limit
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.TextVar(&l, "limit", PerSecond(10), "how fast")
	err := flags.Parse([]string{"-limit", "5 in flight"})
	errorIf(t, err != nil || l != InFlight(5) || flags.Lookup("limit").DefValue != "10 per 1s", "as a flag: %v, %v", l, err)
}

// A bucket reports the limit that it was given, also if that is its only one.
func TestState_LimitIsTheOneGiven(t *testing.T) {
	for _, l := range someLimits {
		given := [][]Limit{{l}}
		if !l.form.InFlight {
			given = append(given, []Limit{l, {Capacity: 1, LeakRate: 1, Name: "other"}})
		}
		for _, limits := range given {
			b := Must(NewBucket("k", limits...))
			s := states(t, b)[0]
			errorIf(t, s.Limit != l, "of %d limits: %v, want %v", len(limits), s.Limit, l)
			if err := b.SetLimits(ctx, limits...); err != nil || !inWord(b) && len(limits) == 1 && b.core.Word.Used() {
				t.Errorf("%v, set again: %v, and it is slower", l, err)
			}
		}
	}
	l := states(t, Must(NewBucket("k", PerMinute(100))))[0].Limit.Burst(5)
	errorIf(t, l != PerMinute(100).Burst(5), "with a burst: %v", l)
}

// What no bucket takes is an error that says in a few words what is wrong, and the limit that was read into stays.
func TestParseLimit_SaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"": "not like", "fast": "not a number", "10": "not like", "10 a second": "not like", "10 per": "not like", "per 1s": "not a number",
		"NaN per 1s": "NaN", "Inf per 1s": "Inf", "-1 per 1s": "above 0", "0 per 1s": "above 0", "1e400 per 1s": "not a number", "1e13 per 1s": "leak rate", "1e-9 per 100000h": "100 years",
		"10 per 0s": "not a duration", "10 per -1s": "not a duration", "10 per 99999999999h": "not a duration", "10 per 1": "not a duration", "10 per fortnight": "not a duration",
		"1 per 2562047h47m16s": "100 years", "10/s": "10 per 1s", "1 burst, 10/d": "not like", "1 burst, 5 burst": "not like", "NaN burst, 1/s": "NaN", "-1 burst, 1/s": "above 0", "0 burst, 1 per 1s": "above 0",
		"1e13 burst, 1/s": "1e12", "1 burst, NaN/s": "leak rate", "10 per 1s, 5": "not like", "10 per 1s, x burst": "not a number", "10 per 1s, 0.5 burst": "Burst", "1, 2, 3": "not like",
		"10 in any 1s, 5 burst": "Burst", "5 in flight, 2 burst": "Burst", "10 in any 1us": "1 ms", "NaN in any 1s": "Window needs", "1e13 in any 1s": "1e12", "10 in 1s": "not like",
		"0.5 in flight": "whole", "2.5 in flight": "whole", "0x1p3 per 1s": "not a number", "0X10 in flight": "not a number", "0 in flight": "capacity", "1e19 in flight": "capacity", "NaN in flight": "NaN",
		"10 per day": `"10000 per day Europe/Berlin"`, "10 per month": "per month Europe/Berlin", "10 per day Mars/Olympus": "cannot be loaded", "10 per day Local": "time.Local", "10 per hour Europe/Berlin": "not like",
		"10 per day ../../etc/passwd": "cannot be loaded", "10 per day Europe//Berlin": "no name of a time zone", "0 per day UTC": "capacity", "10 per week": "per week Europe/Berlin", "10 per month UTC from day 32": "1 to 31", "10 per week UTC from day x": "1 to 7", "10 per day UTC from day 2": "Weekly and Monthly",
		"10 per month UTC from 3": "not like", "10 per month UTC from day 3 4": "not like", "10 per month UTC from day -3": "1 to 31", "10 per day UTC, 2 burst": "Burst",
		"x (unit 4): 5 in flight": "unit 4", "x (unit -1): 5 in flight": "unit -1", "x (unit one): 5 in flight": "(unit 1)", "\xff: 5 in flight": "UTF-8", `"x" y: 5 in flight`: "follows", `"x" 5 in flight`: "colon",
		strings.Repeat("9", 1e5) + " per 1s": "number", "10 per day " + strings.Repeat("x", 1e5): "time zone", strings.Repeat("x", 1e5): "number", "1 per " + strings.Repeat("1d", 1e5): "duration",
	} {
		l, err := ParseLimit(text)
		if !errors.Is(err, ErrInvalid) || l != (Limit{}) || !strings.Contains(err.Error(), want) || len(err.Error()) > 400 || strings.Contains(err.Error(), `for ""`) {
			t.Errorf("%.99q: %v, %v, want %q", text, l, err, want)
		}
	}
	for _, data := range []string{`{}`, `[]`, `1`, `true`, `"`, `"x"`, `{"n":10}`, `{"per":"1s"}`, `{"n":0,"per":"1s"}`, `{"n":1e400,"per":"1s"}`, `{"n":10,"per":1}`, `{"n":10,"per":"1s","window":"1s"}`,
		`{"n":10,"per":"1s","brust":5}`, `{"n":10,"per":"1s","zone":"UTC"}`, `{"n":10,"per":"day"}`, `{"n":10,"zone":"UTC"}`, `{"n":10,"from_day":3}`, `{"n":10,"per":"month","zone":"UTC","from_day":-1}`, `{"n":10,"per":"1s","from_day":3}`, `{"n":10,"per":"day","zone":"Mars/Olympus"}`, `{"n":10,"per":"1s","burst":-1}`,
		`{"n":1,"in_flight":5}`, `{"in_flight":0.5}`, `{"in_flight":-1}`, `{"in_flight":5,"burst":2}`, `{"capacity":1}`, `{"leak_rate":1}`, `{"capacity":-1,"leak_rate":1}`, `{"capacity":1e13,"leak_rate":1}`,
		`{"capacity":1,"leak_rate":1,"n":1}`, `{"capacity":1,"leak_rate":1,"burst":1}`, `{"capacity":1,"leak_rate":1,"in_flight":1}`, `{"capacity":1,"leak_rate":1,"unit":4}`, `{"capacity":1,"leak_rate":1,"unit":0.5}`,
		`{"n":10,"window":"1s 2s"}`, `{"n":10,"window":"1us"}`, `{"n":10,"fixed_window":"x"}`, `{"n":10,"window":"1s","burst":2}`, `{"n":1,"per":"1s","name":5}`} {
		l := someLimits[0]
		err := l.UnmarshalJSON([]byte(data))
		errorIf(t, !errors.Is(err, ErrInvalid) || l != someLimits[0] || strings.Contains(err.Error(), `for ""`),
			"%s: %v, %v", data, l, err)
	}
	changed := PerSecond(10)
	changed.LeakRate++
	for _, l := range []Limit{PerSecond(0), {Capacity: -1}, {LeakRate: 1}, {Capacity: 1e13, LeakRate: 1}, PerSecond(1).Of(4, ""), InFlight(0), Limit{Capacity: 1, LeakRate: 1}.Burst(2), changed} {
		data, err := json.Marshal(l)
		errorIf(t, !errors.Is(err, ErrInvalid), "an invalid limit is written as %s, %v", data, err)
	}
	var zero, read Limit
	text, err := zero.MarshalText()
	errorIf(t, err != nil || len(text) > 0, "the zero Limit is written as %q, %v", text, err)
	for data, want := range map[string]Limit{`""`: {}, `null`: PerSecond(10)} {
		read = PerSecond(10)
		if err := json.Unmarshal([]byte(data), &read); err != nil || read != want || read.UnmarshalJSON([]byte(data)) != nil || read != want {
			t.Errorf("%s: %v, %v", data, read, err)
		}
	}
	if data, err := json.Marshal(Explanation{States: make([]State, 1)}); err != nil { // that nobody has made
		t.Errorf("with a zero Limit: %s, %v", data, err)
	}
}

// FuzzParseLimit checks that what is read is a limit that a bucket takes, and that it is printed as it was read.
func FuzzParseLimit(f *testing.F) {
	for _, l := range someLimits {
		f.Add(l.String())
	}
	for _, s := range []string{`{"n":10,"per":"1s","burst":40}`, `{"n":1e300,"per":"day","zone":"UTC","name":"\ud800"}`, `"\u00355 in flight"`, "5 burst, 60 per 1m", `"a" (unit 1): 10 burst, 1e-300/h`} {
		f.Add(s)
	}
	f.Add("null")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLimit(text)
		if err != nil && (l.UnmarshalJSON([]byte(text)) != nil || l == Limit{}) { // null and "" are the zero Limit
			_ = l.String()
			return
		}
		_, err = NewBucket("key", l)
		fatalIf(t, err != nil, "%q: %v", text, err)
		if again, err := ParseLimit(l.String()); err != nil || again != l {
			t.Fatalf("%q is %q and then %+v, %v; want %+v", text, l, again, err, l)
		}
	})
}
