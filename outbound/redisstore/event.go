package redisstore

import "fmt"

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
	// EventAway is a server that does not answer: operations fail at once
	// until it does. It is told once for each time.
	EventAway EventKind = iota + 1
	// EventBack is a server that answers again.
	EventBack
	// EventDiffer is a bucket that another worker uses with other limits, as
	// it may be while a new release rolls out. Each worker is held to its own.
	// It is told at most once a minute for each key.
	EventDiffer
	// EventGarbage is a key that held what this package has not written, or was
	// of another type. It was deleted, and begins anew as full to the brim.
	EventGarbage
	// EventLost is a report of a call, such as a Settle or a Hold, that did not
	// reach the server: it costs room, and a hold is not heeded by others. What a
	// call has cost beyond its cost is told again.
	EventLost
)

var eventKinds = [...]string{"unknown", "away", "back", "differ", "garbage", "lost"}

// String returns the kind in one word: "away".
func (k EventKind) String() string {
	if int(k) >= len(eventKinds) {
		return fmt.Sprintf("event %d", uint8(k))
	}
	return eventKinds[k]
}

func (s *Store) tell(kind EventKind, key string, err error) {
	if s.config.Observe != nil {
		s.config.Observe(Event{Kind: kind, Key: key, Err: err})
	}
}
