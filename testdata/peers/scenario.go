package main

import "time"

// options are the flags of a run.
type options struct {
	Rounds    int
	Benchtime time.Duration
	Keys      int
	Waiters   int
	Idle      time.Duration // how long waiters are watched while nothing happens

	Against string // the other tree, if trees are compared
	Strict  bool   // a worse row is an error then
}

// A scenario measures one thing that some of the contenders can do.
type scenario struct {
	section string // the table that it stands in
	name    string
	metrics []metric
	// offered says whether the contender can do it.
	offered func(contender) bool
	// measure takes one turn.
	measure func(contender) (sample, error)
	// apart is true where each turn has a process of its own: goroutines that
	// have ended leave memory to those that come after.
	apart bool
}

// A metric is a column of a table. Less is better.
type metric struct {
	name   string
	digits int
	// ratio is false where a ratio to the first contender says nothing.
	ratio bool
	// size is true where it is bytes that are kept.
	size bool
}

// A sample is what one turn measured.
type sample struct {
	Values []float64 // one for each metric
	Wrong  float64   // the share of decisions that went wrong
	// Allocated is what the decisions of the first metric allocate, nil where
	// nobody has counted.
	Allocated *allocated
}

// A contest is who is measured beside each other, in what.
type contest struct {
	list      []contender
	scenarios []scenario
}

// contests lists what there is to measure, through Redis only with a server.
func contests(o options, s *server) []contest {
	list := []contest{{contenders(), scenarios(o)}}
	if s != nil {
		list = append(list, contest{sharers(), sharedScenarios(o, s)})
	}
	return list
}

// scenarios lists what is measured in memory, in the order of the tables.
func scenarios(o options) []scenario {
	var list []scenario
	for _, g := range []int{1, 2, 64} {
		list = append(list, decision(o, true, g))
	}
	for _, g := range []int{1, 2, 64} {
		list = append(list, decision(o, false, g))
	}
	list = append(list,
		limitSize(),
		keyed(o, 1, 1),
		keyed(o, min(1000, o.Keys), 1),
		keyed(o, min(1000, o.Keys), 64),
		keyed(o, o.Keys, 1),
		parked(o),
		released(o),
		roundTrip(o))
	return list
}
