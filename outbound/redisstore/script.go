package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

//go:embed bucket.lua
var script string

// digest is the name under which a server knows the script, a string.
var digest any = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()

// once is a command that the client must not send twice by itself: it cannot know
// that a lost reply is not a lost command.
type once struct{ *redis.Cmd }

// NoRetry is what the client asks a command.
func (once) NoRetry() bool { return true }
