package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

// script is what the server runs. It must never:
//
//   - Compute a reply. Go computes it from the same state, so there is one arithmetic, and a
//     request that comes again is answered from its record.
//   - Let time pass by another clock than the server's TIME. A key has one clock.
//   - Change a key by limits that it has not been sent, or a key of another format: the edition of
//     the limits and the key's name say which they are.
//   - Book more or fewer calls than Op.ApplyAt. If a fault makes them differ, the server's number
//     counts, an event reports it, and the key goes by swap for a minute.
//     TestScript_DoesWhatApplyDoes compares random steps.
//   - Write before it has checked the request's number and the lock, and has computed all that it
//     writes.
//   - Touch a key other than KEYS[1].
//   - Use a command or a function newer than Redis 6.2, or a command that the ACL in the package's
//     doc lacks.
//
//go:embed hot.lua
var script string

// digest is the name under which a server knows the script, a string.
var digest any = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()
