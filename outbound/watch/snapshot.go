package watch

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// Query selects what a [Snapshot] shows.
type Query struct {
	// Search is what the name or the label of a limiter contains, in any case. If it is empty, the
	// Snapshot shows all.
	Search string
	// Rows is how many limiters are shown at most, those in trouble first. If it is zero or less, 50
	// are shown, and never more than 1,000. Keys take no more than half of them while there are names
	// to show.
	Rows int
}

// Snapshot is what a [Board] shows at one moment. It is what the page gets as JSON: durations are
// in nanoseconds. All counts are those of this process. Levels of shared buckets are those of all
// processes that share them.
type Snapshot struct {
	At       time.Time
	Began    time.Time // when the Board was first used: since then it counts
	Limiters []Limiter // those in trouble first
	Hidden   int       // further limiters, keys included, that match the Query
	Stores   []Store
	Events   []Event // the latest first, 100 at most
}

// Severity is how much a limiter is in trouble, for the order and the colour of what is shown.
type Severity uint8

// The severities.
const (
	Calm    Severity = iota // calls leave, or there are none
	Busy                    // calls wait, or were refused within the last minute
	Slowed                  // calls leave more slowly: the API has refused some, or a store is unavailable
	Stopped                 // no call leaves: a hold, or an unavailable store
)

// Limiter is what a Board shows of one limiter, or of one key of an [outbound.Keyed].
type Limiter struct {
	Name     string
	Label    string // of the key; empty if it is no key
	ID       string // of both in an [Action]: a form
	Severity Severity
	// Trouble says in words what is wrong, a sentence each. If it is empty, nothing is wrong.
	Trouble []string
	// Keyed says that the row stands for all keys of an [outbound.Keyed], and Keys how many there are.
	Keyed bool
	Keys  int
	// Bucket is true if the limiter has a bucket, which can be paused. Shared is true if the bucket's
	// state is in a store: its levels, holds and speed are those of all processes.
	Bucket, Shared bool
	// Err is why there is no state now, or an older one. If it is empty, the state is the latest.
	Err string
	// Explain says when and why a call of average cost could leave. Its String puts that in words. If
	// it is nil, the state is unknown.
	Explain *outbound.Explanation

	Limits   []Limit
	HeldFor  time.Duration
	HeldTime time.Duration // of all holds that this process has learned of
	Reason   string
	Speed    float64 // 1, or less after refusals

	Queue *queue.Stats // nil without a queue

	Calls   Calls
	Minute  *Minute // nil for a key
	Budgets []Budget
	// Ledger is what the ledger of this Name has counted: the ten labels that have used most. If there
	// are more, the last Entry is all further labels together. It is empty for a key.
	Ledger []Entry

	failed string // why the latest call has failed
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
	InFlight bool // the level is of calls in progress
	// InProgress is how many of those are of this process, and Oldest the age of the first of them.
	// Where is what [outbound.State.Where] returns.
	InProgress int
	Oldest     time.Duration
	Where      string
	Headroom   float64 // units or slots that the queue keeps free for other calls
	// Pace and UsedUpIn foresee when a quota is used up, as in [outbound.State]. They are 0 for a key
	// whose bucket has no observer.
	Pace     float64
	UsedUpIn time.Duration
	// If a limit admits Of units in each Window of at most a minute, Used is how many of them this
	// process was admitted in the last one, about. With other limits Of is 0.
	Used, Of float64
	Window   time.Duration
}

// Calls counts the calls by their results. Admitted, Refused, Failed and Cancelled add up to all
// calls, except for those that still wait.
type Calls struct {
	Second
	Cancelled uint64            // their context ended
	ByLimit   map[string]uint64 // the refused, by the limit that had no capacity; "" if there was another reason
	ByError   map[string]uint64 // the failed, by the type of the error
	ByReason  map[string]uint64 // those that the API has refused, by its reason
	Units     [units]float64    // of the admitted
	Waits     store.Times       // of the admitted
}

// Minute is what has happened in the last minute.
type Minute struct {
	Sum     Second
	Seconds []Second // 60, the latest last; the last one is not over
	// P50 and P99 are the waits that half and 99 of a hundred calls did not exceed, about. They are
	// below 0 if no call was admitted.
	P50, P99 time.Duration
}

// Second is how many calls there were in one second.
type Second struct {
	Admitted uint64
	Refused  uint64 // by the limiter
	Failed   uint64 // another error
	ByAPI    uint64 // refused by the API, after they were admitted
}

func (s Second) minus(t Second) Second {
	return Second{s.Admitted - t.Admitted, s.Refused - t.Refused, s.Failed - t.Failed, s.ByAPI - t.ByAPI}
}

// Budget is what the API has reported of one of its quotas, until its reset. Reset is how long
// until then.
type Budget struct {
	outbound.Budget
	Age time.Duration // of the report
	// OtherClients is the part of Limit that other clients have used since the quota's window
	// began, or since the first report of it. Other clients are other programs with the same API
	// key, and other processes of this program. OtherClients is negative if it is unknown: for
	// other units than requests, resets that are unknown or move with each call, windows below ten
	// seconds, and an [outbound.Keyed].
	OtherClients float64
}

// Store is what a Board shows of a store.
type Store struct {
	Name           string
	Unavailable    bool
	UnavailableFor time.Duration
	Err            string // why it is unavailable
	Trouble        []string
	// Stats are what the store counts, without Outages. If it is nil, the store counts nothing.
	Stats *store.StoreStats
	// Fallback is what a fallback does, without Err. If it is nil, the store is none.
	Fallback *fallback.State
}

// Event is something that has happened to a limiter's bucket.
type Event struct {
	At    time.Time
	Name  string
	Kind  string // as in [outbound.Event]
	Words string
	Times int // that it has happened in a row, the latest at At
}
