package outbound

import (
	"fmt"
	"time"
)

// marks is how a mark is written: its version, the life of the bucket, the number of its limits and
// the reservation.
const marks = "1-%x:%x:%x"

// Mark returns the ticket as text of a few dozen characters, for a header or a column outside of
// this process. [Clock.Place] returns when it is due. A mark grants nothing. That of the zero
// Ticket is empty.
func (t Ticket) Mark() string {
	if t.call == nil {
		return ""
	}
	c := &t.call.charge[0]
	return fmt.Sprintf(marks, int64(c.Born), c.Number, int64(c.Place))
}

// Place returns when the reservation of a mark is due by this clock, with the holds that this clock
// includes. A hold moves all places alike: one that had passed by an hour when it began stays an
// hour before the end of it. ok is false if the mark is invalid or later than the last reservation.
// It is also false after a [Bucket.Resume], a [Bucket.SetLimits] or a [Bucket.Hold] that has made
// the mark void.
func (k *Clock) Place(m string) (at time.Time, ok bool) {
	born, version, place, ok := readMark(m)
	if !ok || !k.Known() || born != int64(k.state.Born) {
		return time.Time{}, false
	}
	if version != k.number && (version != k.before || time.Duration(place) > k.stands) {
		return time.Time{}, false
	}
	// Stores round times, some to the microsecond.
	if last := later(k.state.Dial(), max(0, k.state.Last)); time.Duration(place) > later(last, moved) {
		return time.Time{}, false
	}
	in, late := k.state.Due(time.Duration(place))
	return k.at.Add(in - late), true
}

func readMark(m string) (born, version, place int64, ok bool) {
	_, err := fmt.Sscanf(m, marks, &born, &version, &place)
	return born, version, place, err == nil && fmt.Sprintf(marks, born, version, place) == m // there is one way to write it
}
