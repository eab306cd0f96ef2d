package store

import "fmt"

type move struct {
	op   byte
	a, b int8
}

func (m move) String() string {
	names := map[byte]string{'f': "fill", 'k': "fill beside headroom", 's': "settle", 'u': "unbook", 'h': "hold", 'r': "refused", 'y': "succeeded",
		'e': "resume", 'c': "change", 'b': "back", 'x': "forget", 't': "step", 'p': "pause", 'd': "delay"}
	return fmt.Sprintf("%s(%d,%d)", names[m.op], m.a, m.b)
}

func (w *world) has(op byte) bool {
	for i := range len(w.ops) {
		if w.ops[i] == op {
			return true
		}
	}
	return false
}

// moves appends all moves that are possible now.
func (w *world) moves(all []move) []move {
	if w.n < w.fills {
		for i := range w.costs {
			for _, fate := range w.fates {
				all = append(all, move{'f', int8(i), int8(fate)})
			}
			if w.headroom > 0 {
				all = append(all, move{'k', int8(i), 0})
			}
		}
	}
	for i := range w.n {
		c := &w.calls[i]
		if c.over {
			continue
		}
		if !c.settled && w.has('s') {
			for b := range 3 {
				all = append(all, move{'s', int8(i), int8(b)})
			}
		}
		if !c.gone && w.has('u') {
			all = append(all, move{'u', int8(i), 0})
		}
		if c.gone && w.events > 0 && w.event() {
			for b := range w.holds {
				if w.has('h') {
					all = append(all, move{'h', int8(i), int8(b)})
				}
				if w.has('r') {
					all = append(all, move{'r', int8(i), int8(b)})
				}
			}
		}
	}
	if w.event() {
		for b := range w.holds {
			if w.has('h') {
				all = append(all, move{'h', -1, int8(b)})
			}
			for _, op := range "pd" {
				if w.has(byte(op)) {
					all = append(all, move{byte(op), -1, int8(b)})
				}
			}
			if w.has('r') && w.out > 0 { // of the call that left last, with the newest epoch
				all = append(all, move{'r', -1, int8(b)})
			}
		}
		if w.has('e') {
			all = append(all, move{'e', 0, 0})
		}
		if w.has('b') { // back by a wobble, by more, and forward again
			all = append(all, move{'b', 0, 0}, move{'b', 1, 0})
			if w.since > 0 && w.real-w.since < Wobble {
				all = append(all, move{'b', 2, 0})
			}
		}
		if w.has('c') && w.version+1 < len(w.versions) {
			for i := range w.shapes {
				if int8(i) != w.versions[w.version] {
					all = append(all, move{'c', int8(i), 0})
				}
			}
		}
	}
	if w.has('y') && w.out > 0 && w.state.Fails != HasSucceeded {
		all = append(all, move{'y', 0, 0})
	}
	if w.has('x') && w.state.Idle(w.limits()) && w.state.Born != w.state.At {
		all = append(all, move{'x', 0, 0})
	}
	for i := range w.steps {
		all = append(all, move{'t', 0, int8(i)})
	}
	return all
}

func (w *world) event() bool { return w.events+w.pauses < w.setting.events }
