package store

import "time"

// StoreStats is what a store across a network has counted since it was made. Its method Stats
// returns it. The counts only grow, even when a server has lost its data. Each operation that has
// ended is in one of Answered, Remembered, Failed and Cancelled.
type StoreStats struct {
	// Answered counts the operations that a request to a server has answered. On average Answered
	// / Requests.Count of them shared a request.
	Answered uint64
	// Remembered counts the operations that the store has answered by itself, because it
	// remembered a refusal.
	Remembered uint64
	// Failed counts the operations that have ended with an error of the store. It includes those
	// that failed immediately because the server was known to be unavailable.
	Failed uint64
	// Cancelled counts the operations whose ctx ended before their answer came.
	Cancelled uint64
	// Requests are the requests that a server has answered in time, even with an error. The operations
	// of all other requests have Failed.
	Requests Times
	// Repeats counts how often the store has sent a request again: its answer was late or lost,
	// another node had the key, or the server did not know the script. If it keeps growing, the
	// network loses packets, or the server is slower than a quarter of the store's timeout.
	Repeats uint64
	// Outages are the servers that serve no operation now, by address. There is at most one, unless
	// the store has several servers, as a Redis Cluster has. If it is nil, the store knows of none.
	// An outage ends only when an operation finds that it has.
	Outages []Outage
}

// TimeBounds are the upper ends of the buckets of [Times].
var TimeBounds = [...]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, time.Hour,
}

// Times is a histogram of how long something took. A request takes from when it was first sent
// until its answer arrived, however often it was sent.
type Times struct {
	Count uint64
	Time  time.Duration // of all together
	// Within counts by the first of TimeBounds that the time did not exceed. What took longer is in
	// Count only.
	Within [len(TimeBounds)]uint64
}

// Add counts one more, which took d.
func (t *Times) Add(d time.Duration) {
	t.Count++
	t.Time += max(0, d)
	for i, bound := range TimeBounds {
		if d <= bound {
			t.Within[i]++
			return
		}
	}
}

// Plus adds all that u has counted.
func (t *Times) Plus(u *Times) {
	t.Count += u.Count
	t.Time += u.Time
	for i, n := range u.Within {
		t.Within[i] += n
	}
}

// Outage is a server that serves no operation.
type Outage struct {
	// Server is its address. It is empty if the store has one server, or could not find out which
	// of several has a key.
	Server string
	Since  time.Time // when the store found that out
	// Err is the latest error of an operation there, with its cause. It matches [ErrUnavailable] if
	// a wait may end the outage. If not, the server denies access to this program.
	Err error
}
