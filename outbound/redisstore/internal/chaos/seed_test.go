//go:build linux

package chaos

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dice draw the random numbers of one test.
type dice struct{ *rand.Rand }

// newDice returns dice with the seed of DRIPFEED_SEED, or with a new one, and
// prints the seed.
func newDice(t *testing.T) dice {
	t.Helper()
	seed := rand.Uint64N(1e6)
	if text := os.Getenv("DRIPFEED_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "DRIPFEED_SEED")
	}
	t.Logf("to draw the same random numbers again: DRIPFEED_SEED=%d go test -run '^%s$' ./outbound/redisstore/internal/chaos", seed, t.Name())
	h := fnv.New64a() // the test's name, so that its numbers do not depend on which tests run
	_, _ = h.Write([]byte(t.Name()))
	return dice{rand.New(rand.NewPCG(seed, h.Sum64()))}
}

// between draws a time.
func (d dice) between(from, to time.Duration) time.Duration {
	return from + time.Duration(d.Int64N(int64(to-from)))
}

// tag draws a word.
func (d dice) tag() string { return strconv.FormatUint(d.Uint64(), 36) }
