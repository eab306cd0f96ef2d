package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
)

var (
	//go:embed bucket.lua
	bucketLua string
	//go:embed kinds.lua
	kindsLua string
)

// script is what the server runs: bucket.lua with kinds.lua in its place.
var script = strings.Replace(bucketLua, "--include kinds.lua\n", kindsLua, 1)

// digest is the name under which a server knows the script, a string.
var digest any = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()
