package watch

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Query says what a [Snapshot] is to show.
type Query struct {
	// Search has only limiters shown whose name or label contains it, in any case; "": all.
	Search string
	// Rows is how many limiters are shown at most, those in trouble first; 0 or less: 50. At most 1 000. Keys take no
	// more than half of them while there are names to show.
	Rows int
	// Names leaves the keys of Keyed limiters out.
	Names bool
}

// Snapshot is what a [Board] shows at one moment. It is what the page gets as JSON: durations are in nanoseconds.
// All counts are those of this process. Levels of shared buckets are those of all who share them.
type Snapshot struct {
	At       time.Time
	Began    time.Time // when the Board was first used: since then it counts
	Limiters []Limiter // those in trouble first
	Hidden   int       // further limiters, keys included, that match the Query and are not shown
	Stores   []Store
	Events   []Event // the latest first, 100 at most
}

// Severity is how much a limiter is in trouble, for the order and the colour of what is shown.
type Severity uint8

// The severities.
const (
	Calm    Severity = iota // calls go, or nobody asks
	Busy                    // calls wait, or were refused within the last minute
	Slowed                  // fewer calls go than could, after refusals by the API
	Stopped                 // no call goes: a hold, or a store that does not answer
)

// Limiter is what a Board shows of one limiter, or of one key of an [outbound.Keyed].
type Limiter struct {
	Name     string
	Label    string // of the key; "": it is no key
	Severity Severity
	// Trouble says in words what is wrong, a sentence each; empty: nothing is.
	Trouble []string
	// Keys is how many limiters there are, with the row that stands for all of a Keyed.
	Keys int
	// Shared says that the bucket's state is in a store, and that its levels, holds and speed are of all workers.
	Shared bool
	// Kept says that there is a bucket in the limiter, whose levels, holds and speed are told, and Queued that there is
	// a queue, whose waits are. Else those fields tell nothing. Keyed says that the row stands for all keys.
	Kept, Queued, Keyed bool
	// AsOf is when the state was true; zero: there is no state, as of a limiter that is neither a bucket nor a queue.
	AsOf time.Time
	// Err is why there is no state now, or an older one; "": there is one.
	Err string
	// Explain says when a call could go that costs what calls have cost so far, on average, and why not before. Its
	// String says so in words.
	Explain *outbound.Explanation

	Limits   []Limit
	HeldFor  time.Duration
	HeldTime time.Duration // of all holds that this process has heard of
	Reason   string
	Speed    float64 // 1, or less after refusals

	Waiting int           // in the queue
	Oldest  time.Duration // how long the first of them has waited
	NextIn  time.Duration // until the next of them goes, as far as known
	Late    uint64        // places that were lost because this process was late

	Calls    Calls
	Minute   *Minute // nil: of a key nothing is counted
	Budgets  []Budget
	Refusals map[string]uint64 // by the API, by reason
	Actions  []string          // that this request may ask for: "resume", "hold"

	gone bool // the look was broken off before the state was there
}

// Limit is what a Board shows of one limit.
type Limit struct {
	Name     string // or what it says, such as "10 per 1s"
	Unit     int
	Level    float64
	Capacity float64
	LeakRate float64 // units per second
	NextIn   time.Duration
	EmptyIn  time.Duration
	Binding  bool // it makes the call of Explain wait longest
	InFlight bool // the level is of calls in progress
	// Of a limit that lets Of units go in each Window of at most a minute: how many of them this process has let
	// go in the last one, about. Of is 0 with other limits, and then Level is what to show.
	Used, Of float64
	Window   time.Duration
}

// Calls counts the calls that asked for room, by what became of them. The counts add up to all calls that have asked,
// but for those that still wait.
type Calls struct {
	Admitted  uint64
	Refused   uint64            // without room
	Failed    uint64            // another error
	Cancelled uint64            // their context ended
	ByLimit   map[string]uint64 // the refused, by the limit that had no room; "": it has no name, or there was another reason
	ByError   map[string]uint64 // the failed, by the type of the error
	Units     [len(outbound.Cost{})]float64
	WaitTime  time.Duration // of the admitted, in all
}

// Minute is what has happened in the last minute.
type Minute struct {
	Seconds []Second // 60, the latest last; the last one is not over
	// P50 and P99 are the waits that half and 99 of a hundred calls did not exceed, about; below 0: no call was
	// admitted.
	P50, P99 time.Duration
}

// Second is what has happened in one second.
type Second struct {
	Admitted, Refused, ByAPI uint64 // ByAPI: refused by the API
	Failed                   uint64 // another error
}

// Budget is what the API has told of one of its quotas, as [outbound.Budget], until its reset.
type Budget struct {
	Policy, Unit     string
	Limit, Remaining float64       // below 0: not told
	ResetIn          time.Duration // below 0: not told
	ToldAgo          time.Duration
	// Others is the part of Limit that somebody else has used since the Board has seen the quota's window begin, or
	// since it has first heard of the quota. Somebody else is another program with the same key, or another worker.
	// Below 0: nobody knows. So it is with a quota that counts no requests, with one whose reset is not told or moves
	// with each call, with one whose windows are shorter than ten seconds, and with an [outbound.Keyed], whose keys
	// may have a quota each.
	Others float64
}

// Store is what a Board shows of a store.
type Store struct {
	Name    string
	Away    bool
	AwayFor time.Duration
	Err     string // why it is away
	Trouble []string

	// Counts says that the store counts what follows, as [store.StoreStats]: Operations are those that a
	// trip has answered.
	Counts bool

	Trips, Operations, Repeats, Remembered, Failures uint64

	TripTime time.Duration // of all trips
	MeanTrip time.Duration
	Within   []store.TripsWithin

	// Of a fallback:
	Fallback bool
	Shares   int    // keys that calls have used in this process alone
	Switched uint64 // how often the store was found away
}

// Event is a change that has happened to a limiter's bucket.
type Event struct {
	At    time.Time
	Name  string
	Kind  string // as [string] tells
	Words string
	Times int // that it has happened in a row, the latest at At
}
