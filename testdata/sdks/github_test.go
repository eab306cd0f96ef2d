package sdks

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-github/v93/github"
	"github.com/stretchr/testify/require"
)

func user(ctx context.Context, s *server, client *http.Client) error {
	c, err := github.NewClient(github.WithHTTPClient(client), github.WithEnterpriseURLs(s.URL, s.URL))
	if err == nil {
		_, _, err = c.Users.Get(ctx, "gopher")
	}
	return err
}

// go-github does not try again by itself: the attempts are the RoundTripper's.
func TestGitHub_RateLimitErrorIsFound(t *testing.T) {
	reset := time.Now().Add(time.Hour).Unix()
	s := answer(t, 429, `{"message": "API rate limit exceeded"}`, "Retry-After", "0.01",
		"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", strconv.FormatInt(reset, 10))
	for attempts, client := range map[int]*http.Client{5: paced(t), 1: http.DefaultClient} {
		var limit *github.RateLimitError
		require.ErrorAs(t, user(t.Context(), s, client), &limit)
		require.Equal(t, "API rate limit exceeded", limit.Message)
		require.Equal(t, reset, limit.Rate.Reset.Unix())
		require.Equal(t, attempts, s.made())
	}
}

// A secondary limit is reported with its Retry-After.
func TestGitHub_AbuseRateLimitErrorIsFound(t *testing.T) {
	s := answer(t, 429, `{"message": "secondary", "documentation_url": "https://docs.github.com/x#secondary-rate-limits"}`, "Retry-After", "3600")
	var limit *github.AbuseRateLimitError
	require.ErrorAs(t, user(t.Context(), s, paced(t)), &limit)
	require.Equal(t, time.Hour, limit.GetRetryAfter())
	require.Equal(t, 1, s.made(), "an hour is longer than MaxWait")
}
