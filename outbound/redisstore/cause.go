package redisstore

import (
	"errors"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
)

// verdict returns the result of a trip after an error.
func verdict(err error) engine.Verdict {
	switch {
	case redirects(err):
		return engine.Elsewhere
	case transient(err):
		return engine.Later
	case errors.Is(err, redis.ErrClosed):
		return engine.Unasked
	case isReply(err) || engine.Incurable(err):
		return engine.Denied
	}
	return engine.Failed
}

// isReply reports whether the words of an error are the server's.
func isReply(err error) bool {
	var said redis.Error
	return errors.As(err, &said)
}

// redirects reports whether an error says that the key is elsewhere.
func redirects(err error) bool { return hasPrefix(err, "MOVED ", "ASK ", "TRYAGAIN") }

// transient reports whether a wait may cure an error, so that what was asked is tried
// again, and the server is away if that does not help in time.
func transient(err error) bool {
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, errReply) || errors.Is(err, errReplies) || errors.Is(err, errOld) || engine.Incurable(err) {
		return false
	}
	if !isReply(err) {
		return true
	}
	var n net.Error
	if errors.As(err, &n) || errors.Is(err, io.EOF) {
		return true
	}
	return hasPrefix(err, "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "NOREPLICAS", "OOM", "MISCONF", "max number of clients")
}

// denied reports whether an error says that this program may not do what it asks.
func denied(err error) bool {
	// A client without a password may send few and short words: a step fails with "unauthenticated
	// multibulk length".
	if hasPrefix(err, "NOAUTH", "WRONGPASS", "NOPERM", "AUTH ", "Protocol error: unauthenticated") {
		return true
	}
	text := err.Error() // a renamed command is unknown
	return strings.Contains(text, "The user executing the script can't run") || strings.Contains(text, "Unknown Redis command") || strings.HasPrefix(text, "ERR unknown command")
}

func hasPrefix(err error, prefixes ...string) bool {
	// Redis 6.2 says "ERR Error running script (…): @user_script: 1: -OOM …".
	inner := ""
	if text := err.Error(); strings.Contains(text, "Error running script") {
		_, inner, _ = strings.Cut(text, ": -")
	}
	for _, p := range prefixes {
		if redis.HasErrorPrefix(err, p) || strings.HasPrefix(err.Error(), p) || strings.HasPrefix(inner, p) {
			return true
		}
	}
	return false
}
