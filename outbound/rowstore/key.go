package rowstore

import (
	"crypto/sha256"
	"strings"
)

// maxPlain is the longest bucket key, in bytes, that is not hashed in any case.
const maxPlain = 512

// hashed begins the name of a row whose bucket's key is hashed. No other name begins so.
const hashed = "#"

// name returns the name of a bucket's row.
func (c *Config) name(bucket string) []byte {
	if c.PlainKeys && len(bucket) <= maxPlain && !strings.HasPrefix(bucket, hashed) {
		return []byte(bucket)
	}
	sum := sha256.Sum256([]byte(bucket))
	return append([]byte(hashed), sum[:16]...)
}
