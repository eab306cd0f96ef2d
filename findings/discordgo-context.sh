#!/usr/bin/env bash
# Guess: a request of discordgo with WithContext ends when its context does, also while it waits after a 429.
# Seen: it sleeps for all of retry_after, and only then reports the context's deadline.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
go mod init finding 2>/dev/null
timeout 100 go get -t github.com/bwmarrin/discordgo@v0.29.0 2>/dev/null
cat >finding_test.go <<'END'
package finding

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bwmarrin/discordgo"
)

// answer gives each request the same response, in no time.
type answer struct {
	n      int
	status int
	header http.Header
	body   string
}

func (a *answer) RoundTrip(req *http.Request) (*http.Response, error) {
	a.n++
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: a.status, Header: a.header, Request: req, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(a.body))}, nil
}

func Test(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		session, err := discordgo.New("Bot token")
		if err != nil {
			t.Fatal(err)
		}
		session.Client = &http.Client{Transport: &answer{status: 429, header: http.Header{},
			body: `{"message": "You are being rate limited.", "retry_after": 3600, "global": false}`}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		_, err = session.User("1", discordgo.WithContext(ctx))
		t.Logf("a context of 10s ends the request after %v: %v", time.Since(begin), err)
		if time.Since(begin) != time.Hour || !errors.Is(err, context.DeadlineExceeded) {
			t.Error("want an hour")
		}
	})
}
END
timeout 120 go mod tidy 2>/dev/null
timeout 150 go test -v -count=1 . | grep -v '^=== '
