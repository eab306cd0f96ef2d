package main

import "time"

// options are the flags of a run.
type options struct {
	Rounds    int
	Benchtime time.Duration
	Keys      int
	Waiters   int
	Window    int           // most calls of the windows
	Idle      time.Duration // how long to watch waiters while nothing happens

	Against string // the other tree, or empty
	Strict  bool   // then a worse row is an error
}

// A scenario measures one thing that some of the contenders can do.
type scenario struct {
	section string // the table of its columns
	name    string
	metrics []metric
	// offered reports whether the contender can do it.
	offered func(contender) bool
	// measure makes one measurement.
	measure func(contender) (sample, error)
	// apart says that each turn has a process of its own: goroutines that have
	// ended leave memory to later ones.
	apart bool
}

// A metric is a column of a table. Less is better.
type metric struct {
	name   string
	digits int
	// ratio is false if a ratio to the first contender means nothing.
	ratio bool
	// size says that the metric is bytes in use.
	size bool
}

// A sample is the result of one measurement.
type sample struct {
	Values []float64 // one for each metric; none if the tree lacks what is measured
	Wrong  float64   // the share of wrong decisions
	// Allocated is the allocations of the decisions of the first metric, or nil if not counted.
	Allocated *allocated
}

// A contest is a set of contenders, and the scenarios to compare them in.
type contest struct {
	list      []contender
	scenarios []scenario
}

// servers are those of a run, or nil.
type servers struct {
	redis    *server
	postgres *database
}

// contests lists the measurements, those through servers only where there are such.
func contests(o options, s servers) []contest {
	list := []contest{{contenders(), scenarios(o)}, {windowers(), windowScenarios(o)}}
	if s.redis != nil {
		list = append(list, contest{sharers(), sharedScenarios(o, s.redis)}, contest{windowSharers(), windowSharedScenarios(o, s.redis)})
	}
	if s.postgres != nil {
		list = append(list, contest{postgresSharers(), postgresScenarios(o, s)})
	}
	return list
}

// scenarios lists the scenarios in memory, in the order of the tables.
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
