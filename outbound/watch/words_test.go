package watch

import (
	"math"
	"testing"
	"time"
)

// durations are in words as an operator reads them. The page's own have a test in Chromium that they are the same.
var durations = map[time.Duration]string{
	-time.Second: "0 s", 0: "0 s", 1: "0 s", 1_700: "2 µs", 999_400: "999 µs", 1_500_000: "2 ms", 21 * time.Millisecond: "21 ms",
	999_600 * time.Microsecond: "1 s", 1_340 * time.Millisecond: "1.3 s", 9_960 * time.Millisecond: "10 s", 24_999 * time.Millisecond: "25 s",
	59_600 * time.Millisecond: "1 min", 532 * time.Second: "8 min 52 s", 3_599_700 * time.Millisecond: "1 h", 2*time.Hour + 5*time.Minute: "2 h 5 min",
	24*time.Hour - time.Second: "1 d", 50*time.Hour + 29*time.Minute: "2 d 2 h", 700 * 24 * time.Hour: "700 d", 800 * 24 * time.Hour: "2 years", math.MaxInt64: "292 years",
}

// Each duration has the words that an operator reads.
func TestWords_Durations(t *testing.T) {
	for d, want := range durations {
		equal(t, brief(d), want, "%d is", d)
	}
}
