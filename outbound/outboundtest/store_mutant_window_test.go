package outboundtest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// logs changes each log that a mutant saves.
func logs(change func(*leak.Log)) func(*leak.Stored) {
	return func(s *leak.Stored) {
		if s.State.Logs != nil {
			for i := range *s.State.Logs {
				change(&(*s.State.Logs)[i])
			}
		}
	}
}

// kinds has a mutant take limits of one kind for those of another.
func kinds(is, taken leak.Kind) func(*leak.Op, *leak.Stored) *leak.Op {
	return func(op *leak.Op, row *leak.Stored) *leak.Op {
		as := *op
		as.Limits = slices.Clone(op.Limits)
		for i := range as.Limits {
			if as.Limits[i].Kind == is {
				as.Limits[i].Kind = taken
			}
		}
		return &as
	}
}

// told has a mutant change the periods that it is told.
func told(change func([]leak.Period) []leak.Period) func(*leak.Op, *leak.Stored) *leak.Op {
	return func(op *leak.Op, _ *leak.Stored) *leak.Op {
		as := *op
		as.Periods = change(op.Periods)
		return &as
	}
}

func TestStoresThatAreWrongAboutWindowsFailTheExam(t *testing.T) {
	const any, calendar, untimely = "any n go at once", "a calendar counts", "if the Periods"
	started := time.Now()
	for name, m := range map[string]mutant{
		"no logs":          {fails: any, save: func(s *leak.Stored) { s.State.Logs = nil }},
		"no entries":       {fails: any, save: logs(func(g *leak.Log) { g.Entries = nil })},
		"no calendars":     {fails: calendar, save: logs(func(g *leak.Log) { g.Calendar = leak.Calendar{} })},
		"no Coming":        {fails: "a call that goes within Slack", save: logs(func(g *leak.Log) { g.Calendar.Coming = 0 })},
		"no Total":         {fails: "what a call has not used of a window", save: logs(func(g *leak.Log) { g.Total = 0 })},
		"no Longest":       {fails: "workers with different windows", save: logs(func(g *leak.Log) { g.Longest = 0 })},
		"no Skip of a log": {fails: "a fixed window", save: logs(func(g *leak.Log) { g.Skip = 0 })},
		"no Aged": {fails: "a hold makes", save: logs(func(g *leak.Log) {
			for i := range g.Entries {
				g.Entries[i].Aged = 0
			}
		})},
		"no Beside":                {fails: "a hold makes", save: logs(func(g *leak.Log) { g.Beside = time.Hour })},
		"one entry a log":          {fails: "what a call has not used", save: logs(func(g *leak.Log) { g.Entries = g.Entries[:min(1, len(g.Entries))] })},
		"windows are leaky":        {fails: any, asked: kinds(leak.Moving, leak.Leaky)},
		"windows move":             {fails: "a fixed window", asked: kinds(leak.Fixed, leak.Moving)},
		"windows begin with calls": {fails: any, asked: kinds(leak.Moving, leak.Fixed)},
		"no Periods":               {fails: calendar, asked: told(func([]leak.Period) []leak.Period { return nil })},
		"any Periods do":           {fails: untimely, asked: told(func([]leak.Period) []leak.Period { return []leak.Period{{Begin: 0, End: 5e9, Next: 6e9, After: 7e9}} })},
		"only the first period": {fails: untimely, asked: told(func(all []leak.Period) []leak.Period {
			all = slices.Clone(all)
			for i := range all {
				p := &all[i]
				p.Next, p.After = 8e9, 9e9-1
			}
			return all
		})},
		"it does not tell its time": {fails: untimely, result: func(r *leak.Reply) {
			if r.Untimely {
				r.Unix = 0
			}
		}},
		"a time of day since its start": {fails: "for limits that count", unix: func(now time.Duration) time.Duration { return now - time.Duration(started.UnixNano()) }},
	} {
		t.Run(name, func(t *testing.T) {
			m.fail(t)
		})
	}
}

// racer is a store that keeps each key as a value. Each step loses a race first: the racer
// drops what it has computed, and computes it again from the key.
type racer struct {
	mu   sync.Mutex
	rows map[string]leak.Stored
	take func(leak.Stored) leak.Stored // the copy of a key to compute with
}

func (s *racer) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if err := ctx.Err(); err != nil {
		return leak.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Duration(time.Now().UnixNano())
	lost := s.take(s.rows[key])
	op.Clone().Apply(&lost, now)
	row := s.take(s.rows[key])
	r := op.Apply(&row, now)
	s.rows[key] = row
	return r, nil
}

func TestAStoreThatLosesRacesPassesTheExamIfItClonesKeys(t *testing.T) {
	clone := func(s leak.Stored) leak.Stored { return s.Clone() }
	for _, failed := range examine(t, "", func(int, *table) leak.Store { return &racer{rows: make(map[string]leak.Stored), take: clone} }, nil) {
		if !strings.HasPrefix(failed, "in any interval") { // those take several stores on one state
			t.Error(failed)
		}
	}
	assign := func(s leak.Stored) leak.Stored { return s }
	if failed := examine(t, "any n go", func(int, *table) leak.Store { return &racer{rows: make(map[string]leak.Stored), take: assign} }, nil); len(failed) == 0 {
		t.Error("it passes as well if lost races share the logs of a key")
	}
}
