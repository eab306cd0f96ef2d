package redisstore_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// This file searches every order of events in which three operations of two workers
// can reach a store. The worker sends each request up to three times. Each copy and
// each reply arrives at any time, in any order, or never. A worker may give up an
// operation at any time after it has sent it, and go on to its next. A worker may
// also crash and start anew. The store may also lose its latest write (a failover to
// a replica that had not received it), all its data, or its records of the workers.
//
// Two simplifications make this small. A worker sends all copies at once: a copy
// sent again later is the same as one sent at first that took longer. And losing a
// message is no step: a lost message is one that never arrives.
//
// These must never happen:

// harm is a set of violations.
type harm uint8

const (
	chargedTwice    harm = 1 << iota // one call, charged twice
	returnedTwice                    // one charge, given back twice
	returnedNothing                  // given back, though it was not charged: capacity out of nothing
	uncharged                        // a call goes, and was not charged
)

var harms = []string{"charged twice", "returned twice", "returned without charge", "granted without charge"}

func (h harm) String() string {
	var all []string
	for i, name := range harms {
		if h&(1<<i) != 0 {
			all = append(all, name)
		}
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}

// operation is one operation of a worker: a charge, or the return of an earlier
// charge.
type operation struct {
	worker  int
	returns int // the operation whose charge it gives back; -1: it charges
}

// scripts have three operations each. Workers run at the same time; the operations
// of one worker follow each other.
var scripts = map[string][3]operation{
	"A charges and returns, B charges":    {{0, -1}, {0, 0}, {1, -1}},
	"A charges twice, B charges":          {{0, -1}, {0, -1}, {1, -1}},
	"A charges twice, returns the first":  {{0, -1}, {0, -1}, {0, 0}},
	"A charges twice, returns the second": {{0, -1}, {0, -1}, {0, 1}},
	"A charges, returns, charges":         {{0, -1}, {0, 0}, {0, -1}},
}

// token says how the store recognizes a request that it has carried out before.
type token uint8

const (
	noToken   token = iota // it does not
	oneSlot                // it keeps the latest request, of any worker
	perWorker              // it keeps the latest request of each worker, by a rising number
)

// proof says when the store gives a charge back.
type proof uint8

const (
	unproved proof = iota // always
	reached               // if the worker's record has reached the charge's number, in the same life of the key
	unbroken              // and the record has lost nothing between that charge and now
)

// fault is what the store loses, once.
type fault uint8

const (
	noFault  fault = iota
	rollback       // its latest write
	wiped          // all its data
	dropped        // the workers' records, as a store drops idle ones to save room
)

// variant is one protocol, with one set of faults.
type variant struct {
	token   token
	proof   proof
	doubt   bool // the worker's next request also returns a charge that was given up
	crash   bool // one worker may crash, and starts anew
	sameID  bool // and uses the same name as before
	fault   fault
	wanted  harm
	another int // number of states of a coarser model; 0: unknown
}

// variants are protocols, each with its violations.
//
// The store has to follow the variants with an unbroken number. Each request carries
// the worker's id, its number, and the highest number that the worker has had an
// answer to. The store gives a charge back only if the worker's record has reached
// its number without a break, and the key has not died since.
//
// The log shows the number of states beside that of a coarser model. The counts are
// of one size, but cannot be equal: this search runs five scripts and not one,
// starts crashed workers anew, lets two work at the same time, and takes no steps
// for lost or repeated messages. The verdicts can be compared. They are the same but
// for one: the coarser model found no fault in "returns by number, rollback". That
// fault needs another charge between a charge and its return: the store loses the
// first, takes the second, and then has a number high enough to give the first back.
var variants = []struct {
	name string
	variant
}{
	{"no token", variant{wanted: chargedTwice | returnedTwice, another: 47_184}},
	{"no token, rollback", variant{fault: rollback, wanted: chargedTwice | returnedTwice | returnedNothing | uncharged, another: 180_316}},
	{"one slot for all", variant{token: oneSlot, crash: true, wanted: chargedTwice | returnedTwice, another: 63_851}},
	{"a record per worker", variant{token: perWorker, crash: true, another: 21_298}},
	{"a record per worker, rollback", variant{token: perWorker, crash: true, fault: rollback, wanted: returnedNothing | uncharged, another: 65_122}},
	{"a record per worker, dropped", variant{token: perWorker, fault: dropped, wanted: chargedTwice | returnedTwice}},
	{"a record per worker, id reused", variant{token: perWorker, crash: true, sameID: true, wanted: returnedNothing | uncharged}},
	{"a record per worker, doubtful charges returned", variant{token: perWorker, doubt: true, wanted: returnedNothing}},
	{"returns by number", variant{token: perWorker, proof: reached, crash: true, another: 21_298}},
	{"returns by number, all lost", variant{token: perWorker, proof: reached, crash: true, fault: wiped, wanted: uncharged}},
	{"returns by number, rollback", variant{token: perWorker, proof: reached, crash: true, fault: rollback, wanted: returnedNothing | uncharged, another: 64_773}},
	{"returns by number, dropped", variant{token: perWorker, proof: reached, fault: dropped, wanted: chargedTwice | returnedTwice}},
	{"returns by number, doubtful ones too", variant{token: perWorker, proof: reached, doubt: true, crash: true}},
	{"returns by unbroken number, all lost", variant{token: perWorker, proof: unbroken, crash: true, fault: wiped, wanted: uncharged}},
	{"returns by unbroken number, rollback", variant{token: perWorker, proof: unbroken, crash: true, fault: rollback, wanted: uncharged}},
	{"returns by unbroken number, dropped", variant{token: perWorker, proof: unbroken, fault: dropped, wanted: chargedTwice}},
	{"returns by unbroken number, doubtful ones too, rollback", variant{token: perWorker, proof: unbroken, doubt: true, crash: true, fault: rollback, wanted: uncharged}},
}

func TestARecordPerWorkerChargesOnceInAnyOrderOfMessages(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			var found harm
			states := 0
			for name, script := range scripts {
				s := newSearch(v.variant, script)
				found |= s.found
				states += len(s.worlds)
				t.Logf("%s: %d states, %v", name, len(s.worlds), s.found)
				for h := harm(1); h <= uncharged; h <<= 1 {
					if s.found&h != 0 {
						t.Logf("  %v: %s", h, s.story(h))
					}
				}
			}
			t.Logf("%d states in all, a coarser model %d", states, v.another)
			require.Equal(t, v.wanted.String(), found.String())
		})
	}
}
