package rowstore

import (
	"crypto/sha256"
	"strings"
	"time"
)

// key is what the store knows of a bucket's row. The engine's lock protects it.
type key struct {
	name  []byte
	row   *row          // as it was last seen, or nil
	skew                // of its time, as far as it is known
	alone bool          // its last step found no other process at the row
	races int           // that it has lost since its last step that went well
	pause time.Duration // after it finds the row locked again, or 0
}

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
