package retry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/transport"
)

func TestFailuresArePausedForLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{dial, reset, status(500), status(502), status(503), status(599)} {
			api := play(what)
			resp, err := get(t, NewClient(over(api)))
			if what.err != nil {
				require.ErrorIs(t, err, what.err)
				require.Equal(t, 5, ended(t, err).Attempts)
			} else {
				require.NoError(t, err)
				require.Equal(t, what.status, resp.StatusCode)
			}
			went := api.went()
			require.Len(t, went, 5)
			for i, want := range []time.Duration{1, 2, 4, 8} {
				about(t, want*time.Second, 0.5, went[i+1]-went[i])
			}
		}
	})
}

func TestRetryWaitMinAndMaxOfTheClientBoundThePausesAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			min, max time.Duration
			want     []time.Duration
		}{
			{time.Millisecond, 4 * time.Millisecond, []time.Duration{1e6, 2e6, 4e6, 4e6}},
			{time.Millisecond, 3 * time.Millisecond, []time.Duration{1e6, 2e6, 3e6, 3e6}},
			{time.Second, 0, []time.Duration{1e9, 1e9, 1e9, 1e9}},
			{0, 0, []time.Duration{0, 0, 0, 0}},
			{0, time.Hour, []time.Duration{0, 0, 0, 0}},
			{-time.Second, -time.Second, []time.Duration{0, 0, 0, 0}},
			{1 << 60, 1<<63 - 1, nil}, // longer than a day
		} {
			api := play(reset)
			client := NewClient(over(api))
			client.RetryMax, client.RetryWaitMin, client.RetryWaitMax = max(1, len(c.want)), c.min, c.max
			_, err := get(t, client)
			require.Equal(t, len(c.want)+1, ended(t, err).Attempts)
			for i, want := range c.want {
				about(t, want, 0.5, api.went()[i+1]-api.went()[i])
			}
		}
	})
}

func TestRetryMaxBoundsFailuresAndRefusalsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := status(429, "Retry-After", "1")
		for most, want := range map[int]int{-1: 1, 0: 1, 3: 4, 5: 6, 9: 6} {
			api := play(refused, reset, refused, reset, refused, status(200))
			client := NewClient(over(api))
			client.RetryMax = most
			resp, err := get(t, client)
			require.Len(t, api.went(), want)
			switch {
			case want%2 == 0 && want < 6:
				require.Equal(t, want, ended(t, err).Attempts)
			case want < 6:
				require.NoError(t, err)
				require.Equal(t, 429, resp.StatusCode)
			default:
				require.NoError(t, err)
				require.Equal(t, 200, resp.StatusCode)
			}
		}
	})
}

func TestOtherAnswersStandAsTheyAre(t *testing.T) {
	for _, code := range []int{200, 204, 304, 400, 401, 403, 404, 408, 409, 425, 501, 505} {
		api := play(status(code, "Retry-After", "1"))
		resp, err := get(t, NewClient(over(api)))
		require.NoError(t, err)
		require.Equal(t, code, resp.StatusCode)
		require.Len(t, api.went(), 1, strconv.Itoa(code))
	}
}

func TestMistakesAreNotTriedAgain(t *testing.T) {
	certificate := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	for _, err := range []error{
		certificate,
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

func TestABackoffBeyondTheDeadlineIsNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		api := play(reset)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		require.NoError(t, err)
		_, err = NewClient(over(api)).StandardClient().Do(req)
		require.ErrorIs(t, err, reset.err)
		require.Equal(t, 2, ended(t, err).Attempts)
		about(t, time.Second, 0.5, time.Since(api.start)) // the second pause, of 2 s, would end too late
	})
}

func TestAnAttemptThatTimesOutIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		start := time.Now()
		client := NewClient(&transport.Transport{Timeout: 3 * time.Second, Base: base(func(req *http.Request) (*http.Response, error) {
			if calls++; calls == 1 {
				<-req.Context().Done()
				return nil, req.Context().Err()
			}
			return &http.Response{StatusCode: 200, Body: newBody(""), Request: req}, nil
		})})
		_, err := get(t, client)
		require.NoError(t, err)
		about(t, 4*time.Second, 0.125, time.Since(start))
	})
}

func TestPausesAreNotPartOfAnAttemptsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{reset, status(500), status(429, "Retry-After", "2")} {
			api := play(what, status(200))
			client := NewClient(&transport.Transport{Base: api, Timeout: 500 * time.Millisecond})
			_, err := get(t, client)
			require.NoError(t, err)
			require.Len(t, api.went(), 2)
		}
	})
}
