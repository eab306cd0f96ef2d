package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// format is the version of what is kept in a key, and of its script. A change of
// either is another format, whose keys the older one never reads. Nothing is released
// yet: until then it stays 1.
const format = "1"

// name returns the server's key of a bucket.
func (c *Config) name(bucket string) string {
	prefix := c.Prefix + ":" + format + ":"
	if c.PlainKeys && len(bucket) <= maxPlain {
		return prefix + plain(bucket)
	}
	sum := sha256.Sum256([]byte(bucket))
	return prefix + "#" + base64.RawURLEncoding.EncodeToString(sum[:16])
}

// maxPlain is the longest bucket key, in bytes, that is not hashed in any case.
const maxPlain = 512

// plain escapes what could end a hash tag, a line or a word, and the end of what would
// look like the end of a prefix.
func plain(bucket string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(bucket) {
		switch c := bucket[i]; {
		case c == ':' && (bucket[:i] == format || strings.HasSuffix(bucket[:i], ":"+format)):
			b.WriteString("%3A")
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.:/@", c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}
