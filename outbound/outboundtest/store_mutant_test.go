package outboundtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// small is a store that one writes in a quarter of an hour: the state of each key as JSON,
// and one lock.
type small struct {
	mu   sync.Mutex
	rows map[string][]byte
}

func (s *small) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if err := ctx.Err(); err != nil {
		return leak.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var row leak.Stored
	if s.rows[key] != nil && json.Unmarshal(s.rows[key], &row) != nil {
		row.State.Speed = -1 // garbage
	}
	r := op.Apply(&row, time.Duration(time.Now().UnixNano()))
	s.rows[key], _ = json.Marshal(row)
	return r, nil
}

func TestAStoreOfFifteenLinesPassesTheExam(t *testing.T) {
	TestStore(t, func(*testing.T) leak.Store { return &small{rows: make(map[string][]byte)} })
}

// mutant is like small, with what makes a store wrong.
type mutant struct {
	*table
	fails  string // the sentence that it fails begins so
	id     int
	stamp  func(id int, now time.Duration) time.Duration // its clock; nil: now
	lag    func() time.Duration                          // between the stamp and the lock
	naive  bool                                          // takes each stamp that goes back for a step of the clock
	key    func(string) string
	save   func(*leak.Stored)
	forget func(s *leak.Stored, r *leak.Reply) time.Duration
	result func(*leak.Reply)
	asked  func(op *leak.Op, row *leak.Stored) *leak.Op // the step that it carries out
	unix   func(now time.Duration) time.Duration        // its time of day; nil: now

	// While it is broken: whether it hangs, whether it carries steps out, and its error.
	hangs, halfway bool
	cause          error // nil: ErrAway
}

// table is the state that several stores share.
type table struct {
	mu     sync.Mutex
	rows   map[string][]byte
	until  map[string]time.Time
	broken chan struct{} // closed when it is mended; nil: it is not broken
}

func newTable() *table {
	return &table{rows: make(map[string][]byte), until: make(map[string]time.Time)}
}

func (m *mutant) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if err := ctx.Err(); err != nil {
		return leak.Reply{}, err
	}
	now := time.Duration(time.Now().UnixNano())
	if m.stamp != nil {
		now = m.stamp(m.id, now)
	}
	if m.lag != nil {
		time.Sleep(m.lag())
	}
	if m.key != nil {
		key = m.key(key)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.forget != nil && time.Now().After(m.until[key]) {
		delete(m.rows, key)
	}
	var row leak.Stored
	if m.rows[key] != nil && row.UnmarshalBinary(m.rows[key]) != nil {
		row.State.Speed = -1
	}
	if m.naive && row.State.Speed > 0 && now < row.State.At {
		row.State.Skip -= row.State.At - now
		row.State.At = now
	}
	if m.asked != nil {
		op = m.asked(op, &row)
	}
	unix := now
	if m.unix != nil {
		unix = m.unix(now)
	}
	r := op.ApplyAt(&row, now, unix)
	if broken := m.broken; broken != nil {
		if m.halfway {
			m.rows[key], _ = row.AppendBinary(nil)
		}
		if m.hangs {
			m.mu.Unlock()
			<-broken
			m.mu.Lock()
		}
		if m.cause != nil {
			return leak.Reply{}, m.cause
		}
		return leak.Reply{}, fmt.Errorf("%w: broken", outbound.ErrAway)
	}
	if m.forget != nil {
		m.until[key] = time.Now().Add(m.forget(&row, &r))
	}
	if m.save != nil {
		m.save(&row)
	}
	m.rows[key], _ = row.AppendBinary(nil)
	if m.result != nil {
		m.result(&r)
	}
	return r, nil
}

// recorder is a tester that remembers whether the exam was failed.
type recorder struct {
	failed []string
	mu     sync.Mutex
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// examine returns which of the sentences that begin so the stores fail. Each case has a
// bubble of its own.
func examine(t *testing.T, sentence string, store func(id int, on *table) leak.Store, hooks func(*table) StoreHooks) (failed []string) {
	for _, c := range storeCases() {
		if !strings.HasPrefix(c.sentence, sentence) {
			continue
		}
		synctest.Test(t, func(*testing.T) {
			var r recorder
			on := newTable()
			e := &exam{tester: &r, sentence: c.sentence}
			if hooks != nil {
				e.hooks = hooks(on)
			}
			if c.breaks && e.hooks.Break == nil {
				return
			}
			for id := range max(1, c.workers) {
				e.stores = append(e.stores, store(id, on))
			}
			e.store = e.stores[0]
			done := make(chan struct{})
			go func() { defer close(done); c.check(e) }()
			<-done
			if len(r.failed) > 0 {
				failed = append(failed, c.sentence+": "+r.failed[0])
			}
		})
	}
	return failed
}

func TestStoresThatAreWrongFailTheExam(t *testing.T) {
	const rate, keys, kept = "in any interval", "keys of any bytes", "the store keeps"
	for name, m := range map[string]mutant{
		"clock jitter":                          {fails: rate, naive: true, stamp: func(_ int, now time.Duration) time.Duration { return now + rand.N(2*time.Millisecond) }},
		"the time at which a transaction began": {fails: rate, naive: true, lag: func() time.Duration { return 1 + rand.N(2*time.Millisecond) }},
		"workers' clocks 1 ms apart":            {fails: rate, naive: true, stamp: apart(time.Millisecond)},
		"workers' clocks 100 ms apart":          {fails: rate, naive: true, stamp: apart(100 * time.Millisecond)},
		"workers' clocks an hour apart":         {fails: rate, stamp: apart(time.Hour)},
		"keys in one case":                      {fails: keys, key: strings.ToLower},
		"keys without trailing blanks":          {fails: keys, key: func(k string) string { return strings.TrimRight(k, " ") }},
		"keys without blanks":                   {fails: keys, key: strings.TrimSpace},
		"composed keys": {fails: keys, key: func(k string) string {
			return strings.NewReplacer("e\u0301", "\u00e9", "E\u0301", "\u00c9").Replace(k)
		}},
		"decomposed keys": {fails: keys, key: func(k string) string { return strings.ReplaceAll(k, "\u00e9", "e\u0301") }},
		"no Version":      {fails: kept, save: func(s *leak.Stored) { s.Version = 0 }},
		"no Skip":         {fails: kept, save: func(s *leak.Stored) { s.State.Skip = 0 }},
		"no Ret": {fails: kept, save: func(s *leak.Stored) {
			for i := range s.State.Level {
				s.State.Level[i].Ret = 0
			}
		}},
		"no Top": {fails: kept, save: func(s *leak.Stored) {
			for i := range s.State.Level {
				s.State.Level[i].Top = 0
			}
		}},
		"no Lead":   {fails: "a worker behind", save: func(s *leak.Stored) { s.Lead = 0 }},
		"no Others": {fails: "buckets made with", save: func(s *leak.Stored) { s.Others = nil }},
		"no Stamp":  {fails: "limits that were set outlive", save: func(s *leak.Stored) { s.Stamp = 0 }},
		"no Epoch":  {fails: kept, save: func(s *leak.Stored) { s.State.Epoch = 0 }},
		"no Fails":  {fails: "a refusal without a success", save: func(s *leak.Stored) { s.State.Fails = -2 }},
		"no Why":    {fails: "nothing goes until the reset", save: func(s *leak.Stored) { s.State.Why = 0 }},
		"limits that were set are forgotten with the levels": {fails: "limits that were set outlive", forget: func(_ *leak.Stored, r *leak.Reply) time.Duration { return r.Expire }},
		"keys are forgotten at half of Expire": {fails: "a key is not forgotten", forget: func(s *leak.Stored, r *leak.Reply) time.Duration {
			if s.Stamp != 0 {
				return time.Hour
			}
			return r.Expire / 2
		}},
		"it forgets after a step that does nothing": {fails: "a key is not forgotten before Expire of a step", forget: func(_ *leak.Stored, r *leak.Reply) time.Duration {
			if r.Stale {
				return 0
			}
			return time.Hour
		}},
		"stamps are not looked at": {fails: "a step by other limits", asked: func(op *leak.Op, row *leak.Stored) *leak.Op {
			as := *op
			as.Stamp = row.Stamp
			if row.Stamp != 0 {
				as.Limits = row.Limits
			}
			return &as
		}},
		"charges are changed": {fails: "Update changes nothing", asked: func(op *leak.Op, _ *leak.Stored) *leak.Op {
			for i := range op.Reports {
				if c := op.Reports[i].Charge; c != nil {
					c.Settled = true
				}
			}
			return op
		}},
		"what is given back is marked": {fails: "Update changes nothing", asked: func(op *leak.Op, _ *leak.Stored) *leak.Op {
			for i := range op.Back {
				op.Back[i].Settled = true
			}
			return op
		}},
		"When is 90 ms old": {fails: "When is", result: func(r *leak.Reply) { r.When = time.Now().Add(-90 * time.Millisecond) }},
		"When is to come":   {fails: "When is", result: func(r *leak.Reply) { r.When = time.Now().Add(90 * time.Millisecond) }},
	} {
		t.Run(name, func(t *testing.T) {
			m.fail(t)
		})
	}
}

// apart returns clocks of workers that are d apart.
func apart(d time.Duration) func(int, time.Duration) time.Duration {
	return func(id int, now time.Duration) time.Duration { return now + time.Duration(id)*d }
}

// A store that is right passes all of it, the cases that need a hook included.
func TestAStoreThatIsRightPassesTheExamWithItsHooks(t *testing.T) {
	for _, failed := range examine(t, "", func(_ int, on *table) leak.Store { return &mutant{table: on} }, breakable) {
		t.Error(failed)
	}
}

func TestStoresThatDoNotEndOrFailHalfwayFailTheExamWithItsHooks(t *testing.T) {
	for name, m := range map[string]mutant{
		"hangs for ever":           {hangs: true},
		"fails with another error": {fails: "Update ends", cause: errors.New("no")},
		"carries out and fails":    {halfway: true},
	} {
		failed := examine(t, m.fails, func(_ int, on *table) leak.Store {
			s := m
			s.table = on
			return &s
		}, breakable)
		if (len(failed) == 0) != m.halfway { // a store may carry out and fail: it charges no less
			t.Errorf("a store that %s: %v", name, failed)
		}
	}
}

// breakable returns hooks that break a table, and that reopen a store on a copy of it.
func breakable(on *table) StoreHooks {
	return StoreHooks{
		Break: func(leak.Store) func() {
			on.mu.Lock()
			defer on.mu.Unlock()
			on.broken = make(chan struct{})
			return func() {
				on.mu.Lock()
				defer on.mu.Unlock()
				close(on.broken)
				on.broken = nil
			}
		},
		Reopen: func(s leak.Store) leak.Store {
			again := *s.(*mutant)
			again.table = newTable()
			maps.Copy(again.rows, s.(*mutant).rows)
			return &again
		},
	}
}

// fail checks that the exam finds the mutant's fault.
func (m mutant) fail(t *testing.T) {
	failed := examine(t, m.fails, func(id int, on *table) leak.Store {
		s := m
		s.id, s.table = id, on
		return &s
	}, nil)
	if len(failed) == 0 {
		t.Error("it has passed")
	}
	t.Log(strings.Join(failed, "\n"))
}
