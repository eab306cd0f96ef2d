package key

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// walker is a key with ten units that leak one a second, and what it is to find next to the word.
type walker struct {
	*testing.T
	word   Word
	key    Key
	fill   Fill
	beside any
}

func (w *walker) Now() any          { return w.beside }
func (w *walker) Replace(limit any) { w.beside = limit }

func (w *walker) do(s Step) (r Reply) {
	w.Helper()
	s.InFlight = w
	if err := w.key.Do(context.Background(), &s, &r); err != nil {
		w.Error(err)
	}
	return r
}

func (w *walker) told(r store.Report) {
	w.do(Step{Told: []reports.Report{{Report: r, By: w.key.Force().Law, Cost: reports.Numbers{4}}}})
}

// here reports whether the state is in the word.
func (w *walker) here() bool {
	_, ok := w.word.Load()
	return ok
}

// A state leaves the word for each step, and is back in it as soon as it is no more than a level. It
// begins another life only if it is as good as a new one, and no call waits.
func TestKey_EachTransition(t *testing.T) {
	ten := []store.Limit{{Capacity: 10, Rate: 1}}
	held := func(w *walker) { w.told(store.Report{Kind: store.Held, Wait: time.Second}) }
	renewed := func(w *walker) {
		time.Sleep(3 * time.Hour)
		w.do(Step{})
	}
	for _, c := range []struct {
		name    string
		do      func(w *walker)
		here    bool
		renewed bool
	}{
		{"a call that fits", func(w *walker) { w.word.Take(&reports.Numbers{4}, int64(Now()), &w.fill) }, true, false},
		{"a call that does not fit", func(w *walker) { w.word.Take(&reports.Numbers{11}, int64(Now()), &w.fill) }, true, false},
		{"a look", func(w *walker) { w.do(Step{}) }, true, false},
		{"a booking that is due", func(w *walker) { w.do(Step{Op: store.Op{Action: store.Book}, Calls: []reports.Numbers{{4}}}) }, true, false},
		{"a booking ahead", func(w *walker) {
			w.do(Step{Op: store.Op{Action: store.Book, Wait: time.Hour}, Calls: []reports.Numbers{{9}}})
		}, false, false},
		{"its return", func(w *walker) {
			r := w.do(Step{Op: store.Op{Action: store.Book, Wait: time.Hour}, Calls: []reports.Numbers{{9}}})
			w.do(Step{Op: store.Op{Action: store.Book}, Back: []Booking{{Charge: &r.Charges[0], By: ten, Cost: reports.Numbers{9}}}})
		}, true, false},
		{"units that are returned", func(w *walker) {
			c := w.key.Charge(&w.fill)
			w.word.Take(&reports.Numbers{1}, int64(Now()), new(Fill))
			w.told(store.Report{Kind: store.Settled, Charge: &c})
		}, false, false},
		{"a hold", held, false, false},
		{"the end of a hold", func(w *walker) { held(w); renewed(w) }, true, true},
		{"the end of a hold, with calls that wait", func(w *walker) {
			w.key.Reports.Listen(func() {})
			held(w)
			renewed(w)
		}, false, false},
		{"a Resume", func(w *walker) { w.do(Step{Op: store.Op{Action: store.Resume}}) }, false, false},
		{"long after a Resume", func(w *walker) { w.do(Step{Op: store.Op{Action: store.Resume}}); renewed(w) }, true, true},
		{"other limits", func(w *walker) {
			w.do(Step{Op: store.Op{Action: store.Replace}, Set: []store.Limit{{Capacity: 5, Rate: 1}}})
			renewed(w)
		}, false, false},
		{"a limit beside", func(w *walker) { w.do(Step{Op: store.Op{Action: store.Replace}, Set: ten, With: 1}) }, false, false},
		{"no more limit beside", func(w *walker) {
			w.do(Step{Op: store.Op{Action: store.Replace}, Set: ten, With: 1})
			w.do(Step{Op: store.Op{Action: store.Replace}, Set: ten})
		}, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &walker{T: t}
			w.word.Init(0, 10)
			born := Now()
			if !w.word.Begin(1, born) {
				t.Fatal("the word cannot count the limit")
			}
			w.key.Init(&w.word, born, NewLimits(ten))
			if _, ok, _ := w.word.Take(&reports.Numbers{4}, int64(Now()), &w.fill); !ok {
				t.Fatal("refused")
			}
			c.do(w)
			if w.here() != c.here {
				t.Errorf("%s: in the word %v, want %v", c.name, w.here(), c.here)
			}
			if is := w.key.born != born; is != c.renewed {
				t.Errorf("%s: another life %v, want %v", c.name, is, c.renewed)
			}
			if w.key.Direct() || w.key.Remote() {
				t.Errorf("%s: the key has a word, and is not in a store", c.name)
			}
			// Whatever has happened, the key books no more than its capacity.
			full := w.do(Step{Op: store.Op{Action: store.Book}, Calls: []reports.Numbers{{5}, {5}, {5}}})
			if len(full.Charges) > 2 || !full.Refused {
				t.Errorf("%s: %d calls of five units", c.name, len(full.Charges))
			}
		})
	}
}

// The state of several limits stays in the struct, and that of a key in a store in the store.
func TestKey_OthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Word
		w.Init(0, 10)
		two := NewLimits([]store.Limit{{Capacity: 10, Rate: 1}, {Capacity: 3, Rate: 1, Name: "small"}})
		var here, there Key
		here.Init(&w, Now(), two)
		if err := here.Do(t.Context(), &Step{}, new(Reply)); err != nil { // Take knows no new key
			t.Fatal(err)
		}
		n, c := here.Force().Units(&reports.Numbers{2}), new(store.Charge)
		for i, want := range []bool{true, false} {
			if !here.Direct() {
				t.Error("not direct")
			}
			var got store.Taken
			here.Take(here.Force(), &n, &got, func(time.Duration) *store.Charge { return c }, func(s *store.State) {
				if s.Level[1] != 2 {
					t.Errorf("level %v", s.Level[1])
				}
			})
			if !got.Done || got.Booked != want || !want && (got.Limit != 1 || got.Wait != time.Second) {
				t.Errorf("call %d: %+v", i, got)
			}
		}
		memory := store.NewMemory()
		there.InitIn(memory, Name("k"), two)
		var r Reply
		for i, want := range []int{1, 0} {
			if err := there.Do(t.Context(), &Step{Op: store.Op{Action: store.Book}, Calls: []reports.Numbers{{2}}}, &r); err != nil || len(r.Charges) != want {
				t.Errorf("call %d: %d booked, %v", i, len(r.Charges), err)
			}
		}
		var other Key
		other.InitIn(memory, Name("k"), two)
		if err := other.Do(t.Context(), &Step{}, &r); err != nil || r.State.Level[1] != 2 || there.Direct() || !there.Remote() {
			t.Errorf("the state is not in the store: %+v, %v", r.State, err)
		}
	})
}
