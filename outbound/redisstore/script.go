package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

//go:embed bucket.lua
var script string

// digest is the name under which a server knows the script, a string.
var digest any = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()
