package main

import (
	"context"
	"errors"
	"net/http"

	"github.com/redis/go-redis/v9"
)

// A contender is one library, or one way to use it, in the comparison. A nil
// function means that it has nothing of the kind.
type contender struct {
	name string
	// peer is true for other people's libraries: the fastest of them is what
	// the subject is held against.
	peer bool

	// admit returns a decision on a limit with room at every call.
	admit func() (func() bool, error)
	// refuse returns a decision on a limit of one unit per hour.
	refuse func() (func() bool, error)
	// alone is true where such a limit is an object of its own, not a key in a store.
	alone bool
	// keyed returns a decision per key, each with room at every call, and what
	// ends the set of keys.
	keyed func() (take func(key string) bool, stop func(), err error)
	// wait returns a call that waits its turn at that rate, one at a time.
	wait func(perSecond float64) (func(context.Context) error, error)
	// cancels is true if that call heeds its context.
	cancels bool
	// wrap returns a RoundTripper that paces base, with room at every call.
	wrap func(base http.RoundTripper) (http.RoundTripper, error)

	// shared returns a decision per key that a server keeps, each with room at
	// every call. Each result is a worker of its own.
	shared func(redis.UniversalClient) (func(key string) bool, error)
	// sharedRefuse returns a decision on a limit there of one unit per hour.
	sharedRefuse func(redis.UniversalClient) (func() bool, error)
	// command is what a decision sends, if it is one command, as the server's
	// statistics call it.
	command string
	// keeps is true if the server keeps something of it.
	keeps bool
}

// contenders lists who takes part in memory, in the order of the rows and of the turns.
// The first is what the ratios refer to.
func contenders() []contender {
	return []contender{
		floor(),
		floorMutex(),
		dripfeed(),
		dripfeedLimits(),
		dripfeedQueue(),
		dripfeedAcquire(),
		xtime(),
		uber(),
		failsafego(),
		throttledMemstore(),
		goLimiter(),
		retryable(),
	}
}

// subject is the contender that the last table holds against the others.
const subject = "dripfeed"

// plenty is a rate per second, and a burst, that no machine can use up: a unit
// is back after a nanosecond.
const plenty = 1_000_000_000

// errNoRoom is what the RoundTrippers made of a bare limiter return.
var errNoRoom = errors.New("peers: no room")

func nothing() {}
