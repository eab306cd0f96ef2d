package queue

import "time"

// trips is what the queue knows of its trips to the bucket.
type trips struct {
	mean, deviation time.Duration // of the time that a trip takes; 0: there was none yet
	ended           time.Time     // when the last one ended
	// wayBack is how long a reply normally takes to arrive. A place that is due sooner
	// has passed when the queue hears of it. 0: less than half the tolerance.
	wayBack time.Duration
}

// measure takes a trip into account, as TCP does its round trips. A trip that takes far
// too long counts less, or places would be booked too far ahead for a while. So does the
// first, which may open a connection, as soon as there is another.
func (t *trips) measure(took, wayBack, tolerance time.Duration) {
	t.wayBack = wayBack
	if wayBack <= tolerance/2 {
		t.wayBack = 0
	}
	if t.mean == 0 || took < t.mean/2 {
		t.mean, t.deviation = max(1, took), took/8
	}
	t.mean = max(t.mean, min(took, wayBack)) // a mean from an outage may be too short
	took = min(took, t.mean+max(4*t.deviation, span))
	t.deviation += ((took - t.mean).Abs() - t.deviation) / 4
	t.mean += (took - t.mean) / 8
}

// lowMark is how far ahead the last place is due at least, while calls wait for more.
func (t *trips) lowMark() time.Duration { return low + t.mean + 4*t.deviation }
