package retry

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const forever = time.Duration(math.MaxInt64)

func TestJitterOnlyLengthensAndNeverOverflows(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	edges := []time.Duration{0, 1, 2, time.Second, forever / 2, forever - 1, forever}
	pick := func() time.Duration {
		if random.IntN(2) == 0 {
			return edges[random.IntN(len(edges))]
		}
		return time.Duration(random.Int64N(int64(forever)))
	}
	for range 10_000 {
		d, more, most := pick(), pick(), pick()
		got := jitter(d, more, most)
		require.GreaterOrEqual(t, got, d)
		require.LessOrEqual(t, got, max(d, most), "%d, %d, %d", d, more, most)
		if d < forever-more {
			require.LessOrEqual(t, got, d+more)
		}
	}
	spread := map[time.Duration]bool{}
	for range 100 {
		spread[jitter(time.Second, time.Second, forever)] = true
	}
	require.Greater(t, len(spread), 90)
}

func TestPausesDoubleUpToTheMost(t *testing.T) {
	for _, c := range []struct {
		first, most time.Duration
		n           int
		want        time.Duration
	}{
		{1, 10, 1, 1},
		{1, 10, 2, 2},
		{1, 10, 4, 8},
		{1, 10, 5, 10},
		{1, 10, 1 << 30, 10},
		{5, 10, 2, 10},
		{6, 10, 2, 10},
		{20, 10, 1, 20},
		{-1, -1, 2, 0},
		{0, 10, 7, 0},
		{0, 0, 7, 0},
		{1, forever, 63, 1 << 62},
		{1, forever, 64, forever},
		{1, forever, 1000, forever},
		{forever, forever, 2, forever},
	} {
		require.Equal(t, c.want, unasked(c.first, c.most, c.n-1), "%+v", c)
	}
}
