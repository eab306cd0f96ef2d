package store

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
)

// lawful replays the departures through ideal buckets. The calls booked under one version
// of the limits obey that version, and all calls together obey the largest of them. Of that, a call
// that keeps a fraction free leaves it to others.
func (w *world) lawful() error {
	slack := w.stood // calls that left while the dial stood have left late
	if w.late {
		slack += w.tau
	}
	for i := range Max {
		var most Limit
		from := 0
		for v := range w.version + 1 {
			limits := w.shapes[w.versions[v]]
			if i >= len(limits) { // if the limit comes again it starts empty
				most, from = Limit{}, v+1
				continue
			}
			l := limits[i]
			if most = both(most, l); most.Capacity == 0 {
				most, from = l, v
			}
			if err := w.replay(i, l, slack, v, v); err != nil {
				return err
			}
			if from < v {
				if err := w.replay(i, most, slack, from, v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// both returns what calls by either of two limits keep all together. Nothing bounds those by
// two of different kinds, or by two Fixed windows, of which the shorter one begins elsewhere.
func both(a, b Limit) Limit {
	switch {
	case a.Capacity == 0:
		return b
	case a.Kind != b.Kind, a.Kind == Fixed && a.Window != b.Window:
		return Limit{}
	case a.Kind == Leaky:
		return Limit{Capacity: max(a.Capacity, b.Capacity), Rate: max(a.Rate, b.Rate)}
	}
	return Limit{Kind: a.Kind, Capacity: max(a.Capacity, b.Capacity), Window: min(a.Window, b.Window)}
}

// replayWindow is replay for a window. That of a Fixed limit begins with any call that has arrived,
// and a call of which nobody says before its window ends that it has not.
func (w *world) replayWindow(i int, l Limit, slack time.Duration, from, to int) error {
	var begin time.Duration
	sum := 0.
	for k := range w.out {
		c := &w.calls[w.left[k]]
		arrived := c.used[i] > 0 || c.cost[i] > 0 && c.told >= c.when+l.Window-slack
		if l.Kind == Fixed && arrived && c.when >= begin+l.Window-slack {
			begin, sum = c.when, 0
		}
		if int(c.version) < from || int(c.version) > to || c.used[i] == 0 {
			continue
		}
		if sum += c.used[i]; l.Kind == Window {
			sum = 0
			for j := range k + 1 {
				if o := &w.calls[w.left[j]]; int(o.version) >= from && int(o.version) <= to && o.when > c.when-l.Window+slack {
					sum += o.used[i]
				}
			}
		}
		if sum > w.room(c, &l)+1e-6 {
			return fmt.Errorf("limit %d %v (versions %d to %d): %v units in a window at %v", i, l, from, to, sum, c.when)
		}
	}
	return nil
}

func (w *world) replay(i int, l Limit, slack time.Duration, from, to int) error {
	if l.Kind != Leaky {
		return w.replayWindow(i, l, slack, from, to)
	}
	level, at := 0.0, time.Duration(0)
	brim := l.Rate*slack.Seconds() + 1e-6
	for k := range w.out {
		c := &w.calls[w.left[k]]
		if int(c.version) < from || int(c.version) > to || c.used[i] == 0 {
			continue
		}
		level = max(0, level-l.Rate*(c.when-at).Seconds()) + c.used[i]
		at = c.when
		if level > w.room(c, &l)+brim {
			return fmt.Errorf("limit %d %v (versions %d to %d): %v units in it at %v", i, l, from, to, level, c.when)
		}
	}
	return nil
}

// room returns how full a limit may be when c has left.
func (w *world) room(c *visit, l *Limit) float64 {
	if c.kept {
		return l.Capacity - math.Floor(l.Capacity*w.headroom)
	}
	return l.Capacity
}

// sound checks the rules that every state keeps after any history.
func (w *world) sound() error {
	s, limits := &w.state, w.limits()
	if s.Last < -BookingGrace || s.Rem < -HoldMemory || !(s.Speed >= MinSpeed && s.Speed <= 1) {
		return fmt.Errorf("last %v, rem %v, speed %v", s.Last, s.Rem, s.Speed)
	}
	for i := range limits {
		if l, p := s.Level[i], s.Parts[i]; !(l >= 0) || math.IsInf(l, 0) {
			return fmt.Errorf("limit %d: %v %+v", i, l, p)
		}
	}
	if !s.sound(limits, s.At) {
		return fmt.Errorf("not sound: %+v", s)
	}
	var small time.Duration
	for k := range 3 {
		var n Units
		for i := range limits {
			n[i] = min(limits[i].Capacity, float64(k+1)/2)
		}
		wait, _, _ := s.Wait(limits, &n)
		if wait < small {
			return fmt.Errorf("%v waits %v, less than a smaller cost", n, wait)
		}
		small = wait
	}
	if err := w.punctual(); err != nil {
		return err
	}
	if s.Idle(limits) {
		return w.asNew()
	}
	return nil
}

// punctual checks that a call that is alone goes when it was told to come back, and not
// before.
func (w *world) punctual() error {
	var n Units
	for i, l := range w.limits() {
		n[i] = min(1, l.Capacity)
	}
	if err := w.goes(n); err != nil || !w.fixed() {
		return err
	}
	for i, l := range w.limits() {
		n[i] = l.Capacity
	}
	return w.goes(n)
}

func (w *world) goes(n Units) error {
	limits := w.limits()
	var c Charge
	probe := w.probe()
	wait, _, ok := probe.Fill(limits, &n, &n, 0, &c)
	if ok {
		return nil
	}
	wait += w.ahead // Apply adds it to the wait of a refusal
	probe.Keep(w.ahead)
	probe.Advance(limits, w.now()+wait)
	if again, _, ok := probe.Fill(limits, &n, &n, 0, &c); !ok {
		return fmt.Errorf("told to come back after %v, then after another %v", wait, again)
	}
	early := time.Duration(3) // the wait is rounded up, and less than 1 ns is none
	if w.state.Speed < 1 {
		early = 3 + time.Duration(4/w.state.Speed)
	}
	fixed := slices.ContainsFunc(limits, func(l Limit) bool { // its window may have ended sooner than is sure now
		return l.Kind == Fixed
	})
	probe = w.probe()
	probe.Keep(w.ahead)
	probe.Advance(limits, w.now()+wait-early)
	if _, _, ok := probe.Fill(limits, &n, &n, 0, &c); ok && wait > early && !fixed {
		return fmt.Errorf("admitted %v before the %v that it was told", early, wait)
	}
	return nil
}

// asNew checks that a new state admits calls as the idle state does, so that a store may
// forget the idle one.
func (w *world) asNew() error {
	old, fresh, limits := w.probe(), New(w.now(), len(w.limits())), w.limits()
	for range 4 {
		var n Units
		for i := range limits {
			n[i] = min(1, limits[i].Capacity)
		}
		var c Charge
		a, _, _ := old.Fill(limits, &n, &n, time.Hour, &c)
		b, _, _ := fresh.Fill(limits, &n, &n, time.Hour, &c)
		if d := a - b; d < -10 || d > 10 {
			return fmt.Errorf("idle, but a call waits %v and in a new bucket %v", a, b)
		}
	}
	return nil
}

// sameStates reports whether two states of one time are the same.
func sameStates(a, b State) bool {
	pa, pb := a.Parts, b.Parts
	a.Parts, b.Parts = nil, nil
	return reflect.DeepEqual(a, b) && slices.EqualFunc(pa, pb, func(p, q Part) bool {
		s, t := p.Slots, q.Slots
		p.Slots, q.Slots = nil, nil
		return reflect.DeepEqual(p, q) && slices.Equal(s, t)
	})
}
