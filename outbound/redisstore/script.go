package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

// script is what the server runs.
//
//go:embed hot.lua
var script string

// digest is the name under which a server knows the script, a string.
var digest any = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()
