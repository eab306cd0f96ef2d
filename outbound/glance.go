package outbound

import "math"

// Glance returns how full the limit nearest its brim is, as a part of its capacity: 0 is empty, 1 is full, and it
// is above 1 where more is booked, and +Inf while a hold lasts. It is for looking at very many buckets, to find
// those of which [Bucket.State] is worth asking: it makes no trip, allocates nothing and leaves the bucket as it
// is. ok is false if the bucket is shared, and its state is not here.
func (b *Bucket) Glance() (full float64, ok bool) {
	if b.unmade() || b.remote() {
		return 0, false
	}
	if word := b.word.Load(); word != busy {
		return max(0, float64(word-int64(now()))) / float64(b.brim), true
	}
	p := b.slowPath()
	var r reply
	t := trips.Get().(*trip)
	p.local.update(&b.cell, &p.common, &step{}, t, &r)
	t.done()
	if r.State.Rem > 0 {
		return math.Inf(1), true
	}
	for i := range r.force.law {
		full = max(full, r.State.Level[i].Level/r.force.law[i].Capacity)
	}
	if r.inFlight != nil {
		full = max(full, float64(r.used)/r.inFlight.Capacity)
	}
	return full, true
}
