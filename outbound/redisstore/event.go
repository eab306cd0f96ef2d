package redisstore

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
	// EventAway is a server that does not answer, or that refuses every request until
	// it is in order again, as one without memory does. Operations fail at once until
	// then. The store tells it once for each outage, and of each server of a Cluster.
	// With a Key it is the server to which this key has moved, and others may have.
	EventAway = EventKind(engine.Away)
	// EventBack is a server that answers again, or another that answers in its
	// place. It follows each EventAway once the program asks something again.
	EventBack = EventKind(engine.Back)
	// EventDiffer is a bucket that another worker uses with other limits, as
	// it may be while a new release rolls out. Each worker is held to its own.
	// The store tells it at most once a minute for each key.
	EventDiffer = EventKind(engine.Differ)
	// EventGarbage is a key that held what this package has not written, or was
	// of another type. The store has deleted it, and it begins anew, full to the brim.
	EventGarbage = EventKind(engine.Garbage)
	// EventLost is a report of a call, such as a Settle or a Hold, that did not reach
	// the server. Other workers do not heed such a hold, and a cost that was lower than
	// booked gives nothing back. The bucket reports a cost that was higher once more.
	EventLost = EventKind(engine.Lost)
	// EventDenied is a server that does not let this program in, or does not let it do
	// what it needs: a password is missing or wrong, or a permission is missing. No wait
	// cures that, so it is not EventAway, and each operation fails with the server's
	// words. The store tells it at once, and again only after an operation has gone well,
	// at most once a minute.
	EventDenied = EventKind(engine.Denial)
	// EventDataLoss is a server that has lost a bucket, or the latest charges to it: it
	// was flushed, restarted without its data, evicts keys, or a replica was promoted that
	// was behind. Each loss may let up to one Capacity more out than the limits allow. Err
	// says which of these it was. Each worker that has used the bucket while its key
	// should have lasted tells it, at most once a minute for each key. A key that has
	// expired, with nothing in it, is no loss.
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
