package store

import "fmt"

// StoreEvent is something about a store across a network that no operation returns as its error.
type StoreEvent struct {
	Kind StoreEventKind
	// Key is the bucket's key, as the program wrote it. It is empty if the event is not about one
	// bucket. Do not log it if it may hold a credential.
	Key string
	// Err is the cause.
	Err error
}

// StoreEventKind is the kind of a [StoreEvent].
type StoreEventKind uint8

// The kinds of a store's events.
const (
	// EventDown is a server that hangs, or that refuses every request for now, for instance because
	// its memory is full. Operations fail immediately until it is up. There is one for each
	// outage, and for each server of a Cluster.
	EventDown StoreEventKind = iota + 1
	// EventUp is a server that answers again, or its successor. It follows each EventDown
	// as soon as the program asks something again.
	EventUp
	// EventCorrupt is a key that held what the store has not written, or was of another type. It
	// begins again, full to the capacity, until a Resume takes out what no call has taken. With an
	// Err, a server has computed a step otherwise than package store, and the key stays as it is.
	EventCorrupt
	// EventLost is a report of a call, such as a Settle or a Hold, that did not reach the server.
	// Other processes ignore such a hold. A cost that was lower than booked returns nothing. The
	// bucket reports a cost that was higher once more.
	EventLost
	// EventDenied is a server that refuses an operation until someone changes a configuration: a
	// password, permission, certificate, table or command is missing or wrong. Each operation fails
	// with the server's words. The event comes immediately. It comes again only
	// after an operation has succeeded, at most once a minute.
	EventDenied
	// EventDataLoss is a server that has lost a bucket, or the latest charges to it. It was
	// flushed, restarted without its data, evicts keys, has crashed, or a replica was promoted that
	// was behind; Err says which. Each loss may let up to one Capacity more out than the limits
	// allow. Each process that remembers the bucket reports it, at most once a minute for each key.
	// An empty key that has expired is no loss.
	EventDataLoss
	// EventSkew is a store in rows without a clock, whose processes have clocks that differ. Err
	// says by how much. Package rowstore says what that costs. The event comes again only if the
	// difference has doubled.
	EventSkew
)

var storeEvents = [...]string{"unknown", "down", "up", "corrupt", "lost", "denied", "dataloss", "skew"}

// String returns the kind in one word: "down".
func (k StoreEventKind) String() string {
	if int(k) >= len(storeEvents) {
		return fmt.Sprintf("event %d", uint8(k))
	}
	return storeEvents[k]
}
