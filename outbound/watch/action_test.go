package watch

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// heldBucket returns a bucket that is held for an hour.
func heldBucket(t testing.TB) *outbound.Bucket {
	t.Helper()
	b := bucket(t, outbound.PerSecond(10))
	hold(t, b, time.Hour)
	return b
}

// heldFor returns for how long a bucket is held.
func heldFor(t testing.TB, b *outbound.Bucket) time.Duration {
	return must(b.Explain(t.Context(), outbound.Cost{1})).States[0].HeldFor
}

// post sends a form, as the page of http://localhost:8080 does, but for the header.
func post(h http.Handler, form string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "http://localhost:8080/debug/dripfeed", strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		if r.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// boardOf returns a Board with a bucket that is held, where everybody may act whose request comes from the page.
func boardOf(t testing.TB) (b *Board, bucket *outbound.Bucket) {
	t.Helper()
	bucket = heldBucket(t)
	b = &Board{Allow: anybody, Hosts: []string{"Dash.Example.com.", "", "[::]:x", "port.example:8080"}}
	b.Add("github", bucket)
	return b, bucket
}

// acts posts a form, and checks the code and for how long the bucket is held then.
func acts(t *testing.T, b *Board, bucket *outbound.Bucket, code int, least, most time.Duration, form string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	w := post(b, form, header...)
	if d := heldFor(t, bucket); w.Code != code || d < least || d > most {
		t.Errorf("%.60q, %q: %d %s, want %d; held for %v, want %v to %v", form, header, w.Code, w.Body, code, d, least, most)
	}
	return w
}

// Trap 7: no other site's page acts, however it got the browser to send a request.
func TestAction_OtherSitesChangeNothing(t *testing.T) {
	b, bucket := boardOf(t)
	b.Allow = func(r *http.Request, a Action) error {
		t.Errorf("Allow is asked: %v", r.Header)
		return nil
	}
	for _, header := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "cross-site", "Origin", "http://localhost:8080"},
		{"Origin", "https://evil.example"}, {"Origin", "http://localhost:9090"}, {"Origin", "null"},
		// Names that resolve to this machine because a stranger wants it so.
		{"Host", "evil.example"}, {"Host", "evil.example:8080", "Origin", "http://evil.example:8080"}, {"Host", "evil.example:8080", "Sec-Fetch-Site", "same-origin"},
		{"Host", "localhost.evil.example"}, {"Host", "127.0.0.1.evil.example"}, {"Host", "evil.example:127.0.0.1"}, {"Host", "notlocalhost"}, {"Host", "localhost.."}, {"Host", ""},
		{"Host", "evil.example#localhost"}, {"Host", "localhost:80@evil.example"}, {"Host", "0x7f.1"}, {"Host", "dash.example.com.evil.example"}, {"Host", "xdash.example.com"},
	} {
		for _, form := range []string{"name=github&do=resume", "name=github&do=pause&for=2h"} {
			acts(t, b, bucket, http.StatusForbidden, 50*time.Minute, time.Hour, form, header...)
		}
	}
}

// Requests of the page itself and of curl act, whatever name of this machine or of Hosts they use.
func TestAction_PageAndCurlMayAct(t *testing.T) {
	for _, header := range [][]string{
		{}, {"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:8080"}, {"Sec-Fetch-Site", "none"}, {"Origin", "http://localhost:8080"},
		{"Host", "LocalHost"}, {"Host", "localhost.:80"}, {"Host", "127.0.0.1:6060"}, {"Host", "10.1.2.3"}, {"Host", "[::1]:6060"}, {"Host", "[::1]"}, {"Host", "[fe80::1%25eth0]:80"},
		{"Host", "dash.example.com"}, {"Host", "DASH.example.COM.:8443"}, {"Host", "port.example"},
	} {
		b, bucket := boardOf(t)
		w := acts(t, b, bucket, http.StatusNoContent, 0, 0, "name=github&do=resume", header...)
		errorIf(t, w.Body.Len() > 0, "%q: %s", header, w.Body)
		acts(t, b, bucket, http.StatusNoContent, time.Minute, 90*time.Second, "name=github&do=pause&for=90s", header...)
	}
}

// Trap 8, the second half: without Allow nobody acts, wherever the request comes from.
func TestAction_NilAllowIsReadOnly(t *testing.T) {
	b, bucket := boardOf(t)
	b.Allow = nil
	for _, header := range [][]string{{}, {"Sec-Fetch-Site", "same-origin"}, {"Host", "127.0.0.1"}} {
		for _, form := range []string{"name=github&do=resume", "name=github&do=pause&for=2h", "", "do=jump"} {
			w := acts(t, b, bucket, http.StatusForbidden, 50*time.Minute, time.Hour, form, header...)
			errorIf(t, !strings.Contains(w.Body.String(), "read-only"), "%q %q: %s", form, header, w.Body)
		}
	}
}

// Allow decides by the request and the action, and its error is the answer.
func TestAction_AllowDecides(t *testing.T) {
	b, bucket := boardOf(t)
	var asked []Action
	b.Allow = func(r *http.Request, a Action) error {
		asked = append(asked, a)
		if user, _, _ := r.BasicAuth(); user != "root" {
			return errors.New("<b>only root</b>")
		}
		return nil
	}
	w := acts(t, b, bucket, http.StatusForbidden, 0, time.Hour, "name=github&label=&do=pause&for=2h")
	errorIf(t, w.Body.String() != "<b>only root</b>\n" || w.Header().Get("Content-Type") != "text/plain; charset=utf-8",
		"%v %v", w.Header(), w.Body)
	acts(t, b, bucket, http.StatusNoContent, 110*time.Minute, 2*time.Hour, "name=github&do=pause&for=2h", "Authorization", "Basic cm9vdDo=")
	want := (Action{Name: "github", Do: "pause", For: 2 * time.Hour})
	errorIf(t, len(asked) != 2 || asked[0] != want || asked[1] != want, "Allow was asked for %+v", asked)
}

// Trap 28: Allow may look at the board, and act itself.
func TestAction_AllowIsCalledWithoutALock(t *testing.T) {
	b, bucket := boardOf(t)
	b.Allow = func(r *http.Request, a Action) error {
		b.Add("github", bucket)
		get(b, "/?json")
		return errors.Join(bucket.Resume(r.Context()), errors.New("no"))
	}
	w := post(b, "name=github&do=pause&for=2h")
	errorIf(t, w.Code != http.StatusForbidden || w.Body.String() != "no\n", "%v %v", w.Code, w.Body)
}

// A request that is no form of an action, or that names no bucket, changes nothing, and Allow is not asked.
func TestAction_InvalidFormIsRefused(t *testing.T) {
	b, bucket := boardOf(t)
	b.Allow = func(_ *http.Request, a Action) error {
		t.Errorf("Allow is asked for %+v", a)
		return nil
	}
	b.Add("keys", nil)
	AddKeyed(b, "tenants", tenants(10, outbound.PerSecond(1)), itself)
	for form, code := range map[string]int{
		"":                                              http.StatusBadRequest,
		"name=github":                                   http.StatusBadRequest,
		"name=github&do=Resume":                         http.StatusBadRequest,
		"name=github&do=pause":                          http.StatusBadRequest,
		"name=github&do=pause&for=0s":                   http.StatusBadRequest,
		"name=github&do=pause&for=-1m":                  http.StatusBadRequest,
		"name=github&do=pause&for=24h0m0.1s":            http.StatusBadRequest,
		"name=github&do=pause&for=99999999h":            http.StatusBadRequest,
		"name=github&do=pause&for=60":                   http.StatusBadRequest,
		"name=github&do=pause&for=1e9s":                 http.StatusBadRequest,
		"name=github&do=pause&for=NaNs":                 http.StatusBadRequest,
		"name=%zz&do=resume":                            http.StatusBadRequest,
		"name=gitlab&do=resume":                         http.StatusNotFound,
		"name=github&label=acme&do=resume":              http.StatusNotFound,
		"name=keys&do=resume":                           http.StatusNotFound,
		"name=tenants&do=resume":                        http.StatusNotFound,
		"name=tenants&label=nobody&do=resume":           http.StatusNotFound,
		"name=secret-key&do=resume":                     http.StatusNotFound,
		"do=resume&name=" + strings.Repeat("x", 70_000): http.StatusRequestEntityTooLarge,
	} {
		acts(t, b, bucket, code, 50*time.Minute, time.Hour, form)
	}
	for _, kind := range []string{"application/json", "text/plain", "multipart/form-data; boundary=x"} {
		acts(t, b, bucket, http.StatusBadRequest, 50*time.Minute, time.Hour, "name=github&do=resume", "Content-Type", kind)
	}
	r := httptest.NewRequest(http.MethodPost, "http://localhost/?name=github&do=resume", nil)
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	errorIf(t, w.Code != http.StatusBadRequest, "an action in the address: %d", w.Code)
	d := heldFor(t, bucket)
	errorIf(t, d < 50*time.Minute || d > time.Hour, "held for %v now", d)
}

// The error of a failed action has the cause, and not the key, which may be a secret. A store that hangs is not waited for.
func TestAction_FailureHasAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for cause, change := range map[string]func(*fakeStore){
			"connection refused": func(s *fakeStore) { s.fail(fmt.Errorf("%w: connection refused", store.ErrUnavailable)) },
			"deadline exceeded":  func(s *fakeStore) { s.hangs.Store(true) },
		} {
			s := newStore()
			change(s)
			b := &Board{Allow: anybody}
			b.Add("github", shared(t, s, "secret key", outbound.PerSecond(1)))
			for _, form := range []string{"name=github&do=resume", "name=github&do=pause&for=1m"} {
				began := time.Now()
				w := post(b, form)
				if text := w.Body.String(); w.Code != http.StatusBadGateway || !strings.Contains(text, cause) || strings.Contains(text, "secret") {
					t.Errorf("%s: %d %s", form, w.Code, text)
				}
				d := time.Since(began)
				errorIf(t, d > actionTime, "%s: answered after %v", form, d)
			}
		}
	})
}
