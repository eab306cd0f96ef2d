package redisstore_test

import (
	"slices"
	"strconv"
	"strings"
)

// stored is the part of the store's state that matters here: the charges.
type stored struct {
	life     int8 // 0: there is no such key
	slot     int8 // the latest operation, plus one
	records  [2][2]record
	charged  [3]int8
	returned [3]int8
}

// record is the store's record of one worker.
type record struct {
	seq   int8 // of its latest request
	since int8 // the record is unbroken from this number on
}

type phase uint8

const (
	idle phase = iota
	asking
	answered
	over // given up, or not needed, or its worker has crashed
)

// progress is the state of one operation and its request.
type progress struct {
	phase   phase
	flying  int8  // copies of the request on their way
	replies uint8 // replies on their way: a bit for each life of the key that a reply comes from
	life    int8  // life of the key, in the reply that has arrived

	start, seq, heard int8 // of the request: the worker's start, the request's number, the highest number answered before
}

// world is the state of everything at one moment.
type world struct {
	now, before stored // before is the state before the store's latest write
	lives       int8
	ops         [3]progress
	starts      [2]int8 // how often a worker has crashed
	crashed     bool
	faulted     bool
}

// search is one search through all possible worlds.
type search struct {
	variant
	script [3]operation
	number map[world]int
	worlds []world
	from   []int
	how    []event
	found  harm
	first  map[harm]int
}

// event is the step from one world to the next.
type event struct {
	what string
	who  int // operation or worker
}

func (e event) String() string {
	return strings.NewReplacer("#", strconv.Itoa(e.who+1), "@", string(rune('A'+e.who))).Replace(e.what)
}

func newSearch(v variant, script [3]operation) *search {
	s := &search{variant: v, script: script, number: map[world]int{}, first: map[harm]int{}}
	// The key exists: a key born anew each time would hide faults.
	s.reach(world{now: stored{life: 1}, before: stored{life: 1}, lives: 1}, -1, "", 0)
	for i := 0; i < len(s.worlds); i++ {
		s.next(i)
	}
	return s
}

// reach adds a world that follows from another.
func (s *search) reach(w world, from int, what string, who int) {
	if _, known := s.number[w]; known {
		return
	}
	i := len(s.worlds)
	s.number[w] = i
	s.worlds, s.from, s.how = append(s.worlds, w), append(s.from, from), append(s.how, event{what, who})
	bad := s.judge(w)
	s.found |= bad
	for h := harm(1); h <= uncharged; h <<= 1 {
		if _, seen := s.first[h]; bad&h != 0 && !seen {
			s.first[h] = i
		}
	}
}

func (s *search) judge(w world) (bad harm) {
	for i, op := range w.ops {
		if s.script[i].returns >= 0 {
			continue
		}
		charged, returned := w.now.charged[i], w.now.returned[i]
		if charged > 1 {
			bad |= chargedTwice
		}
		if returned > 1 && returned > charged {
			bad |= returnedTwice
		}
		if returned > 0 && charged == 0 {
			bad |= returnedNothing
		}
		if op.life > 0 && charged == 0 {
			bad |= uncharged
		}
	}
	return bad
}

// story tells the shortest way to a violation.
func (s *search) story(h harm) string {
	var steps []string
	for i := s.first[h]; i > 0; i = s.from[i] {
		steps = append(steps, s.how[i].String())
	}
	slices.Reverse(steps)
	return strings.Join(steps, "; ")
}

// next reaches all worlds that can follow from one.
func (s *search) next(from int) {
	w := s.worlds[from]
	for worker := range 2 {
		s.work(w, from, worker)
	}
	for i := range w.ops {
		if w.ops[i].flying > 0 {
			s.reach(s.deliver(w, i), from, "request # arrives", i)
		}
	}
	if s.fault != noFault && !w.faulted {
		s.lose(w, from)
	}
}

// lose takes each step in which the store loses something.
func (s *search) lose(w world, from int) {
	w.faulted = true
	what := "the store forgets its latest write"
	switch s.fault {
	case rollback:
		w.now = w.before
	case wiped:
		w.now, w.before = stored{}, stored{}
		what = "the store forgets everything"
	case dropped:
		w.now.records = [2][2]record{}
		what = "the store forgets its records"
	}
	s.reach(w, from, what, 0)
}

// work takes each step that one worker can take.
func (s *search) work(w world, from, worker int) {
	if s.crash && !w.crashed {
		after := w
		after.crashed = true
		after.starts[worker]++
		for i := range after.ops {
			// The worker no longer knows what it has done, or asked for.
			if op := &after.ops[i]; s.script[i].worker == worker && op.phase != idle {
				op.phase, op.replies = over, 0
			}
		}
		s.reach(after, from, "worker @ crashes", worker)
	}
	for i := range w.ops {
		if s.script[i].worker != worker || w.ops[i].phase >= answered {
			continue
		}
		if w.ops[i].phase == idle {
			s.begin(w, from, i)
		} else {
			s.wait(w, from, i)
		}
		return // a worker makes one operation after the other
	}
}

// copies is the number of copies of each request.
const copies = 3

// begin starts an operation: the worker makes its request, and sends it.
func (s *search) begin(w world, from, i int) {
	op := &w.ops[i]
	if of := s.script[i].returns; of >= 0 {
		charge := w.ops[of]
		here := charge.start == w.starts[s.script[i].worker] // else the permit is lost with its worker
		inDoubt := s.doubt && charge.phase == over && charge.seq > 0 && of == i-1
		if !here || charge.phase != answered && !inDoubt {
			op.phase = over
			s.reach(w, from, "nothing to return by #", i)
			return
		}
	}
	*op = progress{phase: asking, flying: copies, seq: 1, start: w.starts[s.script[i].worker]}
	for j, earlier := range w.ops[:i] {
		if s.script[j].worker != s.script[i].worker || earlier.start != op.start || earlier.seq == 0 {
			continue
		}
		op.seq++
		if earlier.phase == answered {
			op.heard = earlier.seq
		}
	}
	s.reach(w, from, "request # is sent", i)
}

// wait takes each step of a worker that waits for a reply.
func (s *search) wait(w world, from, i int) {
	op := w.ops[i]
	for life := int8(1); life <= w.lives; life++ {
		if op.replies&(1<<life) == 0 {
			continue
		}
		after := w
		after.ops[i].phase, after.ops[i].life, after.ops[i].replies = answered, life, 0
		s.reach(after, from, "reply # is heard", i)
	}
	after := w
	after.ops[i].phase, after.ops[i].replies = over, 0
	s.reach(after, from, "# is given up", i)
}

// deliver plays the store: it carries a request out, or answers from its record.
func (s *search) deliver(w world, i int) world {
	op := &w.ops[i]
	op.flying--
	was, start := w.now, op.start
	if s.sameID {
		start = 0
	}
	r := &w.now.records[s.script[i].worker][start]
	switch {
	case s.token == oneSlot && w.now.slot == int8(i+1), s.token == perWorker && r.seq == op.seq:
		w.answer(i)
		return w
	case s.token == perWorker && r.seq > op.seq:
		return w // the request is too old: nobody waits for it
	}
	if w.now.life == 0 {
		w.lives++
		w.now.life = w.lives
	}
	if s.proof == unbroken && r.seq < op.heard {
		r.since = op.seq // the store has answered more than its record has
	}
	if of := s.script[i].returns; of < 0 {
		w.now.charged[i]++
	} else if charge := w.ops[of]; s.proof == unproved || s.proved(*r, charge, w.now.life) {
		w.now.returned[of]++
	}
	w.now.slot, r.seq = int8(i+1), op.seq
	w.before = was
	w.answer(i)
	return w
}

func (s *search) proved(r record, charge progress, life int8) bool {
	if charge.life == 0 { // the worker does not know whether it was charged
		return r.seq == charge.seq
	}
	return charge.life == life && r.since <= charge.seq && charge.seq <= r.seq
}

// answer sends the reply. It matters only to a worker that still waits.
func (w *world) answer(i int) {
	if w.ops[i].phase == asking {
		w.ops[i].replies |= 1 << w.now.life
	}
}
