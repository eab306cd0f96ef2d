package sdks

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-github/v84/github"
	"github.com/stretchr/testify/require"
)

func gitHub(t *testing.T, s *server, client *http.Client) *github.Client {
	c, err := github.NewClient(client).WithEnterpriseURLs(s.URL, s.URL)
	require.NoError(t, err)
	return c
}

// go-github does not try again by itself: the attempts are the RoundTripper's.
func TestGitHub_RateLimitErrorIsFound(t *testing.T) {
	reset := time.Now().Add(time.Hour).Unix()
	s := answer(t, 429, `{"message": "API rate limit exceeded"}`, "Retry-After", "0.01",
		"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", strconv.FormatInt(reset, 10))
	_, _, err := gitHub(t, s, paced(t)).Users.Get(t.Context(), "gopher")
	var limit *github.RateLimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, "API rate limit exceeded", limit.Message)
	require.Equal(t, reset, limit.Rate.Reset.Unix())
	require.Equal(t, 5, s.made())

	_, _, err = gitHub(t, s, http.DefaultClient).Users.Get(t.Context(), "gopher")
	require.ErrorAs(t, err, &limit)
	require.Equal(t, 1, s.made())
}

func TestGitHub_AbuseRateLimitErrorIsFound(t *testing.T) {
	s := answer(t, 429, `{"message": "secondary", "documentation_url": "https://docs.github.com/x#secondary-rate-limits"}`, "Retry-After", "3600")
	_, _, err := gitHub(t, s, paced(t)).Users.Get(t.Context(), "gopher")
	var limit *github.AbuseRateLimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, time.Hour, limit.GetRetryAfter())
	require.Equal(t, 1, s.made(), "an hour is more than anybody waits")
}

func TestGitHub_ReadsARefusalOfTheLimiter(t *testing.T) {
	s := answer(t, 200, `{}`)
	_, _, err := gitHub(t, s, full(t)).Users.Get(t.Context(), "gopher")
	var response *github.ErrorResponse
	require.ErrorAs(t, err, &response)
	require.Equal(t, "3600", response.Response.Header.Get("Retry-After"))
	require.Contains(t, response.Message, "retry in")
	require.Zero(t, s.made())
}
