package calls

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// A request has its method, its body and its headers, and no empty header.
func TestDo_RequestHasWhatItIsGiven(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		_, empty := req.Header["Empty"]
		fmt.Fprint(w, req.Method, " ", req.URL.Path, " ", req.Header.Get("Key"), " ", empty, " ", string(body))
	}))
	defer server.Close()
	resp := exampletest.Must(Do(t.Context(), server.Client(), http.MethodPost, server.URL+"/path", "text", "Key", "value", "Empty", ""))
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "POST /path value false text" {
		t.Errorf("%q, %v", got, err)
	}
}

// No error shows a URL, which may hold a secret.
func TestDo_ErrorHidesTheURL(t *testing.T) {
	for _, url := range []string{"ftp://user:canary@example.com/?token=canary", "http://user:canary@exa mple.com/"} {
		if _, err := Get(t.Context(), new(http.Client), url); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("the error is %v", err)
		}
	}
}

// Calls run at the same time, and all of their errors are returned.
func TestTogether_ReturnsAllErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		first := errors.New("first")
		start := time.Now()
		err := Together(3, func(i int) error {
			if !Sleep(ctx, time.Duration(i)*time.Minute) {
				return ctx.Err()
			}
			if i == 0 {
				return first
			}
			return nil
		})
		if !errors.Is(err, first) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 90*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}
