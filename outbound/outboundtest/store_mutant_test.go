package outboundtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// mutant is a store on a table, with what makes it wrong.
type mutant struct {
	*table
	fails  string // the sentence that it fails begins so
	id     int
	stamp  func(id int, now time.Duration) time.Duration // its clock; nil: now
	lag    func() time.Duration                          // between the stamp and the lock
	naive  bool                                          // takes each stamp that goes back for a step of the clock
	key    func(string) string
	save   func(*store.Stored)
	forget func(s *store.Stored, r *store.Reply) time.Duration
	result func(*store.Reply)
	asked  func(op *store.Op, row *store.Stored) *store.Op // the step that it carries out
	unix   func(now time.Duration) time.Duration           // its time of day; nil: now
	torn   bool                                            // reads and writes without a lock in between
	json   bool                                            // keeps JSON
	lazy   bool                                            // writes a key only if it has changed

	// What it does while it is broken, and with requests that arrive late.
	hangs, halfway, ghosts, marks bool
	cause                         error // nil: ErrUnavailable
	opens                         bool  // takes a corrupt key for one that does not exist
}

func (m *mutant) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if err := ctx.Err(); err != nil {
		return store.Reply{}, err
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
	if broken, late := m.broken, m.late; broken != nil || late > 0 {
		if m.marks && op.Move != nil {
			op.Move.Settled = true
		}
		return store.Reply{}, m.fault(ctx, key, op.Clone(), broken, late)
	}
	return m.update(key, op, now), nil
}

// fault fails, and may carry op out all the same. The lock is held before and after.
func (m *mutant) fault(ctx context.Context, key string, op *store.Op, broken chan struct{}, late time.Duration) error {
	var timer <-chan time.Time
	if late > 0 {
		timer = time.After(late)
	}
	if m.halfway {
		m.update(key, op, time.Duration(time.Now().UnixNano()))
	}
	if m.ghosts {
		go func() {
			select {
			case <-broken:
				time.Sleep(100 * time.Millisecond)
			case <-timer:
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.update(key, op, time.Duration(time.Now().UnixNano()))
		}()
	}
	m.mu.Unlock()
	defer m.mu.Lock()
	if m.hangs {
		<-broken
	}
	if late > 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	if m.cause != nil {
		return m.cause
	}
	return fmt.Errorf("%w: broken", store.ErrUnavailable)
}

func (m *mutant) update(key string, op *store.Op, now time.Duration) store.Reply {
	if m.forget != nil && time.Now().After(m.until[key]) {
		delete(m.rows, key)
	}
	var row store.Stored
	read, write := row.UnmarshalBinary, row.MarshalBinary
	if m.json {
		read = func(b []byte) error {
			err := json.Unmarshal(b, &row)
			if err != nil {
				row.State.Speed = -1 // corrupt
			}
			return err
		}
		write = func() ([]byte, error) { return json.Marshal(row) }
	}
	if m.rows[key] != nil && read(m.rows[key]) != nil && m.opens {
		row = store.Stored{}
	}
	if m.torn {
		m.mu.Unlock()
		time.Sleep(10 * time.Microsecond)
		m.mu.Lock()
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
	if m.save != nil {
		m.save(&row)
	}
	if !m.lazy || r.Changed {
		if m.forget != nil {
			m.until[key] = time.Now().Add(m.forget(&row, &r))
		}
		m.rows[key], _ = write()
	}
	if m.result != nil {
		m.result(&r)
	}
	return r
}

// open returns the mutant's store of a process.
func (m mutant) open(id int, on *table) store.Store {
	m.id, m.table = id, on
	return &m
}

// fail checks that the test finds the mutant's fault.
func (m mutant) fail(t *testing.T, hooks func(*table) StoreHooks) {
	t.Helper()
	failed := examine(t, m.fails, m.open, hooks)
	if len(failed) == 0 {
		t.Error("it has passed")
	}
	for i := range failed {
		failed[i] = failed[i][:min(len(failed[i]), 400)]
	}
	t.Log(strings.Join(failed, "\n"))
}

// apart returns clocks of processes that are d apart.
func apart(d time.Duration) func(int, time.Duration) time.Duration {
	return func(id int, now time.Duration) time.Duration { return now + time.Duration(id)*d }
}

// part changes each part that a mutant saves.
func part(change func(*store.Part)) func(*store.Stored) {
	return func(s *store.Stored) {
		for i := range s.State.Parts {
			change(&s.State.Parts[i])
		}
	}
}

// step changes the step that a mutant carries out.
func step(change func(op *store.Op, row *store.Stored)) func(*store.Op, *store.Stored) *store.Op {
	return func(op *store.Op, row *store.Stored) *store.Op {
		as := *op
		change(&as, row)
		return &as
	}
}

// reports has a mutant change the reports that it is told.
func reports(change func(*store.Report)) func(*store.Op, *store.Stored) *store.Op {
	return step(func(op *store.Op, _ *store.Stored) {
		op.Reports = slices.Clone(op.Reports)
		for i := range op.Reports {
			change(&op.Reports[i])
		}
	})
}

// charges has a mutant change the charges of its replies.
func charges(change func(*store.Charge)) func(*store.Reply) {
	return func(r *store.Reply) {
		for i := range r.Charges {
			change(&r.Charges[i])
		}
	}
}

// kinds has a mutant take limits of one kind for those of another.
func kinds(is, taken store.Kind) func(*store.Op, *store.Stored) *store.Op {
	return step(func(op *store.Op, _ *store.Stored) {
		op.Limits = slices.Clone(op.Limits)
		for i := range op.Limits {
			if op.Limits[i].Kind == is {
				op.Limits[i].Kind = taken
			}
		}
	})
}

// mutantPeriods has a mutant change the periods that it is told.
func mutantPeriods(change func([]store.Period) []store.Period) func(*store.Op, *store.Stored) *store.Op {
	return step(func(op *store.Op, _ *store.Stored) { op.Periods = change(slices.Clone(op.Periods)) })
}

// The conformance test finds each of these stores.
func TestStoreCases_FindMutants(t *testing.T) {
	started := time.Now()
	for name, m := range map[string]mutant{
		// Clocks and locks.
		"clock jitter":                          {fails: "in any interval at most the", naive: true, stamp: func(_ int, now time.Duration) time.Duration { return now + rand.N(2*time.Millisecond) }},
		"the time at which a transaction began": {fails: "in any interval at most the", naive: true, lag: func() time.Duration { return 1 + rand.N(2*time.Millisecond) }},
		"processes' clocks 1 ms apart":          {fails: "in any interval at most the", naive: true, stamp: apart(time.Millisecond)},
		"processes' clocks 100 ms apart":        {fails: "in any interval at most the", naive: true, stamp: apart(100 * time.Millisecond)},
		"processes' clocks an hour apart":       {fails: "in any interval at most the", stamp: apart(time.Hour)},
		"no lock between read and write":        {fails: "at most", torn: true},
		"a time of day since its start":         {fails: "for limits", unix: func(now time.Duration) time.Duration { return now - time.Duration(started.UnixNano()) }},

		// Keys.
		"keys in one case":             {fails: "keys of", key: strings.ToLower},
		"keys without trailing blanks": {fails: "keys of", key: func(k string) string { return strings.TrimRight(k, " ") }},
		"keys without blanks":          {fails: "keys of", key: strings.TrimSpace},
		"composed keys": {fails: "keys of", key: func(k string) string {
			return strings.NewReplacer("e\u0301", "\u00e9", "E\u0301", "\u00c9").Replace(k)
		}},
		"decomposed keys": {fails: "keys of", key: func(k string) string { return strings.ReplaceAll(k, "\u00e9", "e\u0301") }},

		// What is kept.
		"no Number":  {fails: "limits that were set outlive", save: func(s *store.Stored) { s.Number = 1 }},
		"no Base":    {fails: "the step is carried", save: func(s *store.Stored) { s.Base = 0 }},
		"no Made":    {fails: "the step is carried", save: func(s *store.Stored) { s.Made = 0 }},
		"no Limits":  {fails: "the step is carried", save: func(s *store.Stored) { s.Limits = []store.Limit{slow(100)} }},
		"no Version": {fails: "limits of a higher version", save: func(s *store.Stored) { s.Limits = []store.Limit{slow(s.Limits[0].Capacity)} }},
		"no Set":     {fails: "limits that were set outlive", save: func(s *store.Stored) { s.Set = false }, forget: func(_ *store.Stored, r *store.Reply) time.Duration { return min(r.Expire, time.Hour) }},
		"no Lead":    {fails: "a process has", save: func(s *store.Stored) { s.Lead = 0 }},
		"no Skip":    {fails: "no call leaves while", save: func(s *store.Stored) { s.State.Skip = 0 }},
		"no Speed":   {fails: "refusals of", save: func(s *store.Stored) { s.State.Speed = 1 }},
		"no Rem":     {fails: "no call leaves while", save: func(s *store.Stored) { s.State.Rem = -store.HoldMemory }},
		"no Last":    {fails: "order of booking", save: func(s *store.Stored) { s.State.Last = -store.BookingGrace }},
		"no Epoch":   {fails: "refusals of", save: func(s *store.Stored) { s.State.Epoch = 0 }},
		"no Fails":   {fails: "refusals of", save: func(s *store.Stored) { s.State.Fails = store.NoRefusalYet }},
		"no Why":     {fails: "in a pause", save: func(s *store.Stored) { s.State.Why = 0 }},
		"no Top":     {fails: "the last booking", save: func(s *store.Stored) { s.State.Top = 0 }},
		"no IDs":     {fails: "the last booking", save: func(s *store.Stored) { s.State.IDs = s.State.Top }},
		"Top is that of the last booking even if it may not be undone": {fails: "a cost above what", save: func(s *store.Stored) { s.State.Top = s.State.IDs }},
		"no Leaked": {fails: "the store keeps all that the next step needs", save: func(s *store.Stored) { s.State.Leaked = store.Units{} }},
		"no Row":    {fails: "a key remembers", save: func(s *store.Stored) { s.State.Row = store.Row{} }},
		"no Ret":    {fails: "no call leaves while", save: part(func(p *store.Part) { p.Ret = 0 })},
		"no Over":   {fails: "the store keeps all that the next step needs", save: part(func(p *store.Part) { p.Over = 0 })},
		"no Owed":   {fails: "reservations of", save: part(func(p *store.Part) { p.Owed = 0 })},
		"no Since":  {fails: "limits that were set are", save: part(func(p *store.Part) { p.Since = 0 })},
		"no Begin":  {fails: "a calendar admits", save: part(func(p *store.Part) { p.Begin = 0 })},
		"no End":    {fails: "a calendar admits", save: part(func(p *store.Part) { p.End = 0 })},
		"no Units":  {fails: "Slots asks", save: part(func(p *store.Part) { p.Units = 0 })},
		"no Sure":   {fails: "Slots asks", save: part(func(p *store.Part) { p.Sure = false })},
		"ever Sure": {fails: "a fixed window begins", save: part(func(p *store.Part) { p.Sure = true })},
		"no Slots":  {fails: "in any interval of", save: part(func(p *store.Part) { p.Slots = nil })},
		"one slot":  {fails: "in any interval of", save: part(func(p *store.Part) { p.Slots = p.Slots[:min(1, len(p.Slots))] })},
		"no charge for what comes while another was read": {fails: "at most", save: func(s *store.Stored) { s.State.Level[0] = min(s.State.Level[0], 20) }},

		// How long.
		"limits that were set are forgotten with the levels": {fails: "limits that were set outlive", forget: func(s *store.Stored, r *store.Reply) time.Duration {
			if s.Set {
				return r.Expire - 30*24*time.Hour
			}
			return r.Expire
		}},
		"keys are forgotten at half of Expire": {fails: "a key is not forgotten before Expire", forget: func(s *store.Stored, r *store.Reply) time.Duration { return r.Expire / 2 }},
		"it forgets after a step that does nothing": {fails: "a key is not forgotten before Expire of", forget: func(_ *store.Stored, r *store.Reply) time.Duration {
			if r.Stale {
				return 0
			}
			return time.Hour
		}},

		// What is carried out.
		"numbers are not looked at": {fails: "Replace does", asked: step(func(op *store.Op, row *store.Stored) {
			if row.Number > 0 {
				op.Number = row.Number
			}
		})},
		"any limits do": {fails: "a step by limits", asked: step(func(op *store.Op, row *store.Stored) {
			if row.Number > 0 && op.Action != store.Replace {
				op.Limits = row.Limits
			}
		})},
		"a process's own limits count": {fails: "limits that were set outlive", asked: step(func(op *store.Op, row *store.Stored) {
			if row.Number > 0 && store.Same(op.Limits, row.Limits) && op.Action != store.Replace {
				row.Limits = op.Limits
			}
		})},
		"it reports before it asks": {fails: "a key remembers", asked: func(op *store.Op, row *store.Stored) *store.Op {
			if row.Number > 0 && len(op.Reports) > 0 && op.Reports[0].Kind != store.Settled {
				first := store.Op{Limits: row.Limits, Number: row.Number, Periods: op.Periods, Reports: op.Reports}
				first.Apply(row, row.State.At)
			}
			return op
		}},
		"no Slots in the reply": {fails: "Slots asks", asked: step(func(op *store.Op, _ *store.Stored) { op.Slots = false })},
		"no Headroom":           {fails: "a call with a Headroom", asked: step(func(op *store.Op, _ *store.Stored) { op.Headroom = 0 })},
		"Headroom twice":        {fails: "a call with a Headroom", asked: step(func(op *store.Op, _ *store.Stored) { op.Headroom *= 2 })},
		"no Weight":             {fails: "a process has", asked: step(func(op *store.Op, _ *store.Stored) { op.Weight = 1 })},
		"no Bid":                {fails: "of what a window frees", asked: step(func(op *store.Op, _ *store.Stored) { op.Bid = store.Bid{} })},
		"no Claim":              {fails: "a process has", asked: step(func(op *store.Op, _ *store.Stored) { op.Claim = 0 })},
		"no After":              {fails: "no reservation", asked: step(func(op *store.Op, _ *store.Stored) { op.After = 0 })},
		"no Horizon":            {fails: "order of", asked: step(func(op *store.Op, _ *store.Stored) { op.Horizon = op.Wait })},
		"no Own":                {fails: "the step", asked: step(func(op *store.Op, _ *store.Stored) { op.Own = false })},
		"no Age":                {fails: "the step is carried", asked: step(func(op *store.Op, _ *store.Stored) { op.Age = 1000 * time.Hour })},
		"no MaxWait":            {fails: "a hold is", asked: reports(func(r *store.Report) { r.MaxWait = 0 })},
		"a pause is a hold": {fails: "in a pause", asked: reports(func(r *store.Report) {
			if r.Kind == store.Paused {
				r.Kind = store.Held
			}
		})},
		"a hold is a pause": {fails: "no call leaves while", asked: reports(func(r *store.Report) {
			if r.Kind == store.Held {
				r.Kind = store.Paused
			}
		})},
		"only the first report":  {fails: "the reports", asked: step(func(op *store.Op, _ *store.Stored) { op.Reports = op.Reports[:min(1, len(op.Reports))] })},
		"only the first of Back": {fails: "the last", asked: step(func(op *store.Op, _ *store.Stored) { op.Unused = op.Unused[:min(1, len(op.Unused))] })},
		"Back is never undone": {fails: "the last", asked: step(func(op *store.Op, _ *store.Stored) {
			for i := range op.Unused {
				op.Reports = append(slices.Clone(op.Reports), store.Report{Kind: store.Settled, Charge: &op.Unused[i]})
			}
			op.Unused = nil
		})},
		"Back is any booking": {fails: "the last booking", asked: step(func(op *store.Op, row *store.Stored) {
			if len(op.Unused) > 0 && row.State.Top > 0 {
				op.Unused = slices.Clone(op.Unused)
				op.Unused[0].ID, op.Unused[0].Place = row.State.Top, row.State.Dial()+row.State.Last
			}
		})},
		"Move never moves": {fails: "Move undoes", asked: step(func(op *store.Op, _ *store.Stored) {
			if op.Move != nil {
				op.Move = &store.Charge{ID: -1}
			}
		})},
		"Move books beside":        {fails: "Move undoes", asked: step(func(op *store.Op, _ *store.Stored) { op.Move = nil })},
		"reservations are refused": {fails: "the last booking", asked: step(func(op *store.Op, _ *store.Stored) { op.Wait = min(op.Wait, time.Minute) })},
		"limits that are set begin empty": {fails: "limits that were set are", asked: step(func(op *store.Op, row *store.Stored) {
			if op.Action == store.Replace && op.Number == row.Number {
				row.State.Level = store.Units{}
			}
		})},
		"limits that are set move reservations": {fails: "Replace does", asked: step(func(op *store.Op, row *store.Stored) {
			if op.Action == store.Replace && op.Number == row.Number {
				row.State.Skip += time.Millisecond
			}
		})},
		"limits that are set void reservations": {fails: "reservations of", asked: step(func(op *store.Op, row *store.Stored) {
			if op.Action == store.Replace && op.Number == row.Number {
				row.State.Last = min(row.State.Last, 0)
			}
		})},
		"charges are changed": {fails: "Update changes", asked: func(op *store.Op, _ *store.Stored) *store.Op {
			for i := range op.Reports {
				if c := op.Reports[i].Charge; c != nil {
					c.Settled = true
				}
			}
			return op
		}},
		"what is returned is marked": {fails: "Update changes", asked: func(op *store.Op, _ *store.Stored) *store.Op {
			for i := range op.Unused {
				op.Unused[i].Settled = true
			}
			return op
		}},
		"windows are leaky":        {fails: "in any interval of", asked: kinds(store.Window, store.Leaky)},
		"windows move":             {fails: "Slots asks", asked: kinds(store.Fixed, store.Window)},
		"windows begin with calls": {fails: "Slots asks", asked: kinds(store.Window, store.Fixed)},
		"no Periods":               {fails: "for limits", asked: mutantPeriods(func([]store.Period) []store.Period { return nil })},
		"any Periods do":           {fails: "a calendar admits", asked: mutantPeriods(func([]store.Period) []store.Period { return []store.Period{{Begin: 0, End: 4e9, Next: 4.5e9}} })},
		"no Next": {fails: "if the", asked: mutantPeriods(func(all []store.Period) []store.Period {
			for i := range all {
				all[i].Next = all[i].End + 1
			}
			return all
		})},

		// Replies.
		"it does not say its time": {fails: "if the", result: func(r *store.Reply) {
			if r.Untimely {
				r.State.Unix = 0
			}
		}},
		"When is 90 ms old":                  {fails: "When is", result: func(r *store.Reply) { r.When = time.Now().Add(-90 * time.Millisecond) }},
		"When is to come":                    {fails: "When is", result: func(r *store.Reply) { r.When = time.Now().Add(90 * time.Millisecond) }},
		"no Limits in the reply":             {fails: "the step is carried", result: func(r *store.Reply) { r.Limits = nil }},
		"a stale step is Reported":           {fails: "a step by", result: func(r *store.Reply) { r.Reported = r.Stale }},
		"charges without numbers":            {fails: "the last booking", result: charges(func(c *store.Charge) { c.ID, c.Prev = 0, 0 })},
		"charges without the limits' number": {fails: "to calls from before", result: charges(func(c *store.Charge) { c.Number = 0 })},
		"charges that never end":             {fails: "a calendar admits", result: charges(func(c *store.Charge) { c.Until = 0 })},
	} {
		t.Run(name, func(t *testing.T) { m.fail(t, nil) })
	}
}

// The cases with hooks find each of these stores.
func TestStoreCases_FindMutantsOfFaults(t *testing.T) {
	for name, m := range map[string]mutant{
		"hangs forever":                {fails: "Update ends", hangs: true},
		"fails with another error":     {fails: "Update ends", cause: errors.New("no")},
		"carries out later":            {fails: "nothing of an Update", ghosts: true},
		"marks what it could not move": {fails: "a step that failed", marks: true},
		"opens corrupt keys":           {fails: "every limit of a corrupt", opens: true},
		"corrupt keys are not marked":  {fails: "every limit of a corrupt", save: func(s *store.Stored) { s.State.Corrupt = false }},
	} {
		t.Run(name, func(t *testing.T) { m.fail(t, all) })
	}
}
