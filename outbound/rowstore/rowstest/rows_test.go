package rowstest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
)

// table is a map of rows, with a fault.
type table struct {
	mu    sync.Mutex
	rows  map[string]rowstore.Row
	fault string
}

func (m *table) Swap(_ context.Context, swaps []rowstore.Swap) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range swaps {
		s, key := &swaps[i], string(swaps[i].Key)
		s.Clock = time.Duration(time.Now().UnixNano())
		switch m.fault {
		case "milliseconds":
			s.Clock = s.Clock.Truncate(time.Millisecond)
		case "a local time":
			s.Clock += 2 * time.Hour
		case "no clock":
			s.Clock = 0
		case "keys without case":
			key = strings.ToLower(key)
		}
		fits := m.rows[key].Token == s.Old
		switch m.fault {
		case "tokens as float64":
			fits = float64(m.rows[key].Token) == float64(s.Old)
		case "no tokens":
			fits = true
		case "the first only":
			fits = fits && i == 0
		}
		if s.New != nil && fits && (s.InTime() || m.fault == "no InTime") {
			m.rows[key], s.Done = rowstore.Row{Token: s.Token, Bytes: s.New}, true
		}
		s.Row = m.rows[key]
	}
	return nil
}

// Rows of a map conform.
func TestRows_OfAMapConform(t *testing.T) {
	m := &table{rows: make(map[string]rowstore.Row)}
	TestRows(t, func(*testing.T) rowstore.Rows { return m })
}

// recorder is a tester that keeps what a case reports. Fatalf ends its goroutine.
type recorder struct {
	mu    sync.Mutex
	texts []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(r)
}

// Each fault of rows fails a case, which says what is wrong.
func TestRows_EachFaultIsFound(t *testing.T) {
	for fault, says := range map[string]string{
		"no InTime": "does Swap check InTime?", "milliseconds": "whole milliseconds", "a local time": "UTC?", "no clock": "clock 0s",
		"keys without case": "that of another one", "tokens as float64": "the token", "no tokens": "the token", "the first only": "swap 1 of 40",
	} {
		m := &table{rows: make(map[string]rowstore.Row), fault: fault}
		r := new(recorder)
		for _, c := range cases {
			if c.sentence == cases[4].sentence && fault == "no clock" {
				continue // it ends goroutines
			}
			func() {
				defer func() {
					if p := recover(); p != nil && p != any(r) {
						panic(p)
					}
				}()
				c.check(&exam{tester: r, rows: m, other: m, sentence: c.sentence})
			}()
		}
		if all := strings.Join(r.texts, "\n"); !strings.Contains(all, says) {
			t.Errorf("%s: want %q, got\n%s", fault, says, all)
		}
	}
}
