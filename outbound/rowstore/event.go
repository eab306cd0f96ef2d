package rowstore

import (
	"fmt"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
)

// Event is something that no call returns as its error.
type Event struct {
	Kind EventKind
	// Key is the bucket's key, as the program wrote it; "" where it is not about
	// one bucket. Do not log it if it may hold a credential.
	Key string
	// Err is the cause.
	Err error
}

// EventKind is the kind of an [Event].
type EventKind uint8

// The kinds of events.
const (
	// EventAway is a database that does not answer, or that refuses every request for now. Operations
	// fail at once until it is back. The store tells it once for each outage.
	EventAway = EventKind(engine.Away)
	// EventBack is a database that answers again, or another in its place. It follows each
	// EventAway once the program asks something again.
	EventBack = EventKind(engine.Back)
	// EventDiffer is a bucket that another worker uses with other limits, as it may be while a
	// new release rolls out. Each worker is held to its own. The store tells it at most once a
	// minute for each key.
	EventDiffer = EventKind(engine.Differ)
	// EventGarbage is a row that held what this package has not written. It begins anew, full to
	// the brim.
	EventGarbage = EventKind(engine.Garbage)
	// EventLost is a report of a call, such as a Settle or a Hold, that did not reach the
	// database. Other workers do not heed such a hold, and a cost that was lower than booked gives
	// nothing back. The bucket reports a cost that was higher once more.
	EventLost = EventKind(engine.Lost)
	// EventDenied is a database that does not do what it is asked, for a reason that no wait
	// cures: the table is missing, or a permission. Each operation fails with its words. The
	// store tells it at once, and again only after an operation has gone well, at most once a
	// minute.
	EventDenied = EventKind(engine.Denial)
	// EventDataLoss is a database that has lost a bucket, or the latest charges to it. Each loss
	// may let up to one Capacity more out than the limits allow. Err says which of these it was.
	// Each worker that remembers the bucket when it uses it again tells it, at most once a minute for
	// each key: it forgets one that it has not used for a minute if it uses new keys, and for 10 minutes
	// if not. A row that has expired, with nothing in it, is no loss.
	EventDataLoss = EventKind(engine.DataLoss)
)

var eventKinds = [...]string{"unknown", "away", "back", "differ", "garbage", "lost", "denied", "dataloss"}

// String returns the kind in one word: "away".
func (k EventKind) String() string {
	if int(k) >= len(eventKinds) {
		return fmt.Sprintf("event %d", uint8(k))
	}
	return eventKinds[k]
}
