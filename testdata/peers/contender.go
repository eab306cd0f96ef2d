package main

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"
)

// A contender is one library in the comparison, or one way to use it. A nil function
// means that the library cannot do this.
type contender struct {
	name string
	// peer is true for other people's libraries, and for what most write themselves where
	// there is none. The last table compares the subject with the fastest of them.
	peer bool

	// admit returns a decision on a limit with room at every call.
	admit func() (func() bool, error)
	// refuse returns a decision on a limit of one unit per hour.
	refuse func() (func() bool, error)
	// alone says that such a limit is an object of its own, and not a key in a store.
	alone bool
	// keyed returns a decision per key, each with room at every call, and a function
	// that ends the set of keys.
	keyed func() (take func(key string) bool, stop func(), err error)
	// window returns a decision on a limit of n units per window: in any such, or only
	// in those that begin where the last one ended.
	window func(n int, window time.Duration) (func() bool, error)
	// wait returns a call that waits until that rate admits it, one at a time.
	wait func(perSecond float64) (func(context.Context) error, error)
	// cancels says that this call ends with its context.
	cancels bool
	// wrap returns a RoundTripper that paces base, with room at every call.
	wrap func(base http.RoundTripper) (http.RoundTripper, error)

	// shared returns a decision per key with the limits in a server, each with room at
	// every call. Each result is a worker of its own.
	shared func(redis.UniversalClient) (func(key string) bool, error)
	// sharedRefuse returns a decision on such a limit of one unit per hour.
	sharedRefuse func(redis.UniversalClient) (func() bool, error)
	// sharedWindow is window with the limit in a server.
	sharedWindow func(rdb redis.UniversalClient, n int, window time.Duration) (func() bool, error)
	// rows is shared in PostgreSQL.
	rows func(*sql.DB) (func(key string) bool, error)
	// command is the command that a decision sends, in the words of the server's
	// statistics, if it sends just one.
	command string
	// keeps says that the server stores something for each limit.
	keeps bool
}

// contenders lists the contenders in memory, in the order of the rows and of the measurements.
// Ratios refer to the first.
func contenders() []contender {
	return []contender{
		floor(),
		floorMutex(),
		dripfeed(),
		dripfeedLimits(),
		byHand(),
		xtimeThree(),
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

// subject is the contender that the last table compares with the rest.
const subject = "dripfeed"

// plenty is a rate per second, and a burst, that no machine can exhaust: a unit is back
// after a nanosecond.
const plenty = 1_000_000_000

// errNoRoom is the error of RoundTrippers made of a bare limiter.
var errNoRoom = errors.New("peers: over the limit")

func nothing() {}
