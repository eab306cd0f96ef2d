package leak

import "time"

// StoreStats is what a store across a network has counted since it was made, for whoever watches
// it: its method Stats returns them. The counts only grow, also when a server has lost its data.
// Each operation that callers have asked of the store, and that has ended, is in one of
// Answered, Remembered, Failed and Cancelled.
type StoreStats struct {
	// Answered counts the operations that a trip has answered. On average Answered /
	// Trips.Count of them shared a trip.
	Answered uint64
	// Remembered counts the operations that the store has answered without a trip, because
	// it remembered a refusal.
	Remembered uint64
	// Failed counts the operations that have ended with an error of the store, those included
	// that failed at once because the server was known to be away.
	Failed uint64
	// Cancelled counts the operations whose ctx ended before they had an answer.
	Cancelled uint64
	// Trips are the trips that a server has answered, whatever it said. One that got no answer
	// in time is not among them: its operations have Failed.
	Trips Trips
	// Repeats counts how often the store has sent a trip once more: its answer was late or
	// lost, another node had the key, or the server did not know the script. If that keeps
	// growing, the network loses what it carries, or the server is slower than a quarter of
	// the store's timeout.
	Repeats uint64
	// Outages are the servers that serve nobody now, by address: one at most, unless the store
	// has several, as a Redis Cluster has. nil: the store knows of none. While nobody asks
	// the store anything, an outage does not end.
	Outages []Outage
}

// Trips are the number of trips, and the time that they took: each from when it was first sent
// until its answer arrived, however often it was sent.
type Trips struct {
	Count uint64
	Time  time.Duration // of all together
	// Within is a histogram: how many trips took at most so long, with bounds from a
	// millisecond to an hour in ascending order. A trip that took longer is in Count only.
	Within []TripsWithin
}

// TripsWithin is how many trips took at most as long as a bound, those of lower bounds included.
type TripsWithin struct {
	Bound time.Duration
	Count uint64
}

// Outage is a server that serves nobody.
type Outage struct {
	// Server is its address; "": the store has one server, or could not find out which of
	// several has a key.
	Server string
	Since  time.Time // when the store found that out
	// Err is the latest error of an operation there, with its cause. It matches [ErrAway] if
	// a wait may end the outage. If not, the server denies access to this program.
	Err error
}
