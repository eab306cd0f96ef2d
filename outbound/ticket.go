package outbound

import (
	"fmt"
	"time"
)

// ticketText is how a ticket is written: the version of the text, the life of the bucket, the
// number of its limits and the reservation.
const ticketText = "1-%x:%x:%x"

// String returns the ticket as text of a few dozen characters, for a header or a column outside of
// this process. [Clock.DueText] returns when it is due. The text grants nothing. That of the zero
// Ticket is empty.
func (t Ticket) String() string {
	if t.call == nil {
		return ""
	}
	c := &t.call.charge[0]
	return fmt.Sprintf(ticketText, int64(c.Born), c.Number, int64(c.Place))
}

// DueText returns when the reservation of a ticket is due by this clock, from the ticket's String,
// with the holds that this clock includes. A hold moves all reservations alike: one that had passed
// by an hour when it began stays an hour before the end of it. ok is false if the text is invalid
// or later than the last reservation. It is also false after a [Bucket.Resume], a
// [Bucket.SetLimits] or a [Bucket.Hold] that has made the ticket void.
func (k *Clock) DueText(ticket string) (at time.Time, ok bool) {
	born, version, leaves, ok := readTicket(ticket)
	if !ok || !k.Known() || born != int64(k.state.Born) {
		return time.Time{}, false
	}
	if version != k.number && (version != k.before || time.Duration(leaves) > k.stands) {
		return time.Time{}, false
	}
	// Stores round times, some to the microsecond.
	if last := later(k.state.Dial(), max(0, k.state.Last)); time.Duration(leaves) > later(last, moved) {
		return time.Time{}, false
	}
	in, late := k.state.Due(time.Duration(leaves))
	return k.at.Add(in - late), true
}

func readTicket(text string) (born, version, leaves int64, ok bool) {
	_, err := fmt.Sscanf(text, ticketText, &born, &version, &leaves)
	return born, version, leaves, err == nil && fmt.Sprintf(ticketText, born, version, leaves) == text // there is one way to write it
}
