package retry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/transport"
)

// How long the client waits after failures, and how often it sends again.
func TestFailure_PausesAndBounds(t *testing.T) {
	bubble(t, "After a failure the client waits for RetryWaitMin, doubled up to RetryWaitMax, and up to half more", func(t *testing.T) {
		const s, ms = time.Second, time.Millisecond
		doubled := []time.Duration{s, 2 * s, 4 * s, 8 * s}
		for _, c := range []struct {
			what     step
			min, max time.Duration
			want     []time.Duration
		}{
			{dial, s, 30 * s, doubled}, {reset, s, 30 * s, doubled}, {status(500), s, 30 * s, doubled},
			{status(502), s, 30 * s, doubled[:1]}, {status(503), s, 30 * s, doubled[:1]}, {status(599), s, 30 * s, doubled[:1]},
			{reset, ms, 3 * ms, []time.Duration{ms, 2 * ms, 3 * ms, 3 * ms}},
			{reset, s, 0, []time.Duration{s, s, s, s}},
			{reset, 0, time.Hour, []time.Duration{0, 0, 0, 0}},
			{reset, -s, -s, []time.Duration{0, 0, 0, 0}},
			{reset, 1 << 60, 1<<63 - 1, nil}, // longer than a day
		} {
			api := play(c.what)
			client := NewClient(over(api))
			client.RetryMax, client.RetryWaitMin, client.RetryWaitMax = max(1, len(c.want)), c.min, c.max
			resp, err := get(t, client)
			went := api.went()
			require.Len(t, went, len(c.want)+1)
			if c.what.err != nil {
				require.ErrorIs(t, err, c.what.err)
				require.Equal(t, len(went), ended(t, err).Attempts)
			} else {
				require.NoError(t, err)
				require.Equal(t, c.what.status, resp.StatusCode)
			}
			for i, want := range c.want {
				about(t, want, 0.5, went[i+1]-went[i])
			}
		}
	})
	bubble(t, "RetryMax bounds failures and refusals together", func(t *testing.T) {
		refused := status(429, "Retry-After", "1")
		for most, want := range map[int]int{-1: 1, 0: 1, 3: 4, 5: 6, 9: 6} {
			api := play(refused, reset, refused, reset, refused, status(200))
			client := NewClient(over(api))
			if client.RetryMax = most; want == 4 { // the fourth is a reset
				_, err := get(t, client)
				require.Equal(t, want, ended(t, err).Attempts)
			} else {
				answered(t, map[int]int{1: 429, 6: 200}[want], client)
			}
			require.Len(t, api.went(), want)
		}
	})
	bubble(t, "A pause that could end after the deadline is not begun", func(t *testing.T) {
		api := play(reset)
		_, err := getIn(within(t, 2*time.Second), t, NewClient(over(api)))
		require.ErrorIs(t, err, reset.err)
		require.Equal(t, 2, ended(t, err).Attempts)
		about(t, time.Second, 0.5, time.Since(api.start)) // the second pause, of 2 s, would end too late
	})
	bubble(t, "The transport's Timeout bounds an attempt, which is then a failure", func(t *testing.T) {
		calls, start := 0, time.Now()
		answered(t, 200, NewClient(&transport.Transport{Timeout: 3 * time.Second, Base: base(func(req *http.Request) (*http.Response, error) {
			if calls++; calls == 1 {
				return hangs(req)
			}
			return status(200).response(req, newBody("")), nil
		})}))
		about(t, 4*time.Second, 0.125, time.Since(start))
	})
	bubble(t, "The pauses are not part of an attempt's Timeout", func(t *testing.T) {
		for _, what := range []step{reset, status(500), status(429, "Retry-After", "2")} {
			api := play(what, status(200))
			answered(t, 200, NewClient(&transport.Transport{Base: api, Timeout: 500 * time.Millisecond}))
			require.Len(t, api.went(), 2)
		}
	})
}

// All other statuses are final.
func TestFailure_OtherStatusesAreFinal(t *testing.T) {
	for _, code := range []int{200, 204, 304, 400, 401, 403, 404, 408, 409, 425, 501, 505} {
		api := play(status(code, "Retry-After", "1"))
		answered(t, code, NewClient(over(api)))
		require.Len(t, api.went(), 1, strconv.Itoa(code))
	}
}

// Errors that another attempt cannot change are final.
func TestFailure_MistakesAreFinal(t *testing.T) {
	for _, err := range []error{
		&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		errors.New(`unsupported protocol scheme "ftp"`),
		errors.New(`net/http: invalid header field name "a b"`),
	} {
		api := play(step{err: err})
		_, got := get(t, NewClient(over(api)))
		require.ErrorIs(t, got, err)
		require.Len(t, api.went(), 1)
	}
	_, err := NewClient(&transport.Transport{Base: &http.Transport{}}).Get("ftp://api.example.com/")
	require.Equal(t, 1, ended(t, err).Attempts, "%v", err)
}

const longestPause = time.Duration(math.MaxInt64)

// Jitter lengthens a pause, and neither overflows nor exceeds the bound.
func TestPause_JitterOnlyLengthens(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	edges := []time.Duration{0, 1, 2, time.Second, longestPause / 2, longestPause - 1, longestPause}
	pick := func() time.Duration {
		if random.IntN(2) == 0 {
			return edges[random.IntN(len(edges))]
		}
		return time.Duration(random.Int64N(int64(longestPause)))
	}
	for range 10_000 {
		d, more, most := pick(), pick(), pick()
		got := jitter(d, more, most)
		require.GreaterOrEqual(t, got, d)
		require.LessOrEqual(t, got, max(d, most), "%d, %d, %d", d, more, most)
		if d < longestPause-more {
			require.LessOrEqual(t, got, d+more)
		}
	}
	spread := map[time.Duration]bool{}
	for range 100 {
		spread[jitter(time.Second, time.Second, longestPause)] = true
	}
	require.Greater(t, len(spread), 90)
}

// A pause doubles up to the longest, for any number of retries.
func TestPause_DoublesUpToTheLongest(t *testing.T) {
	for _, c := range []struct {
		first, most time.Duration
		n           int
		want        time.Duration
	}{
		{1, 10, 4, 8}, {1, 10, 5, 10}, {1, 10, 1 << 30, 10}, {6, 10, 2, 10}, {20, 10, 1, 20},
		{1, longestPause, 63, 1 << 62}, {1, longestPause, 64, longestPause}, {1, longestPause, 1000, longestPause}, {longestPause, longestPause, 2, longestPause},
	} {
		require.Equal(t, c.want, unasked(c.first, c.most, c.n-1), "%+v", c)
	}
}
