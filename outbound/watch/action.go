package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Action is a request of the page to change a bucket.
type Action struct {
	Name  string        // of the limiter, as given to [Board.Add]
	Label string        // of the key, or empty
	Do    string        // "resume" or "pause"
	For   time.Duration // how long to pause
}

const (
	actionBody = 64 << 10        // bytes of a request for an action
	actionTime = 5 * time.Second // for the store of a shared bucket
	maxPause   = 24 * time.Hour
)

// mayAct returns why a request may ask for no action at all.
func (s *server) mayAct(r *http.Request) error {
	if s.allow == nil {
		return errors.New("this page is read-only: Board.Allow is not set")
	}
	if !s.knows(r.Host) {
		return fmt.Errorf("this page is read-only under %q: add the host to Board.Hosts", hostname(r.Host))
	}
	return nil
}

// knows reports whether a host is safe: localhost, an address or one of Hosts. If the name of
// another site resolves to this server's address, its page reaches this server as its own origin,
// and only the Host shows it.
func (s *server) knows(host string) bool {
	name := hostname(host)
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return true
	}
	return name != "" && slices.ContainsFunc(s.hosts, func(h string) bool { return hostname(h) == name })
}

// hostname returns a host without port, brackets and the dot of a full name, in small letters.
func hostname(host string) string {
	return strings.ToLower(strings.TrimSuffix((&url.URL{Host: host}).Hostname(), "."))
}

// act carries out the action that a request asks for, or returns why it changes nothing.
func (s *server) act(w http.ResponseWriter, r *http.Request) (code int, err error) {
	if err := cmp.Or(s.mayAct(r), new(http.CrossOriginProtection).Check(r)); err != nil {
		return http.StatusForbidden, err
	}
	r.Body = http.MaxBytesReader(w, r.Body, actionBody)
	a, err := readAction(r)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge, err
	} else if err != nil {
		return http.StatusBadRequest, err
	}
	bucket := s.bucketOf(a.Name, a.Label)
	if bucket == nil {
		return http.StatusNotFound, errors.New("no such bucket")
	}
	if err := s.allow(r, a); err != nil {
		return http.StatusForbidden, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), actionTime)
	defer cancel()
	if a.Do == "pause" {
		err = bucket.Pause(ctx, a.For)
	} else {
		err = bucket.Resume(ctx)
	}
	if err != nil {
		return http.StatusBadGateway, errors.New(named(err, bucket.Key(), a.Name))
	}
	return http.StatusNoContent, nil
}

// readAction reads a form.
func readAction(r *http.Request) (Action, error) {
	if err := r.ParseForm(); err != nil {
		return Action{}, err
	}
	a := Action{Name: r.PostForm.Get("name"), Label: r.PostForm.Get("label"), Do: r.PostForm.Get("do")}
	var err error
	switch a.Do {
	case "resume":
	case "pause":
		if a.For, err = time.ParseDuration(r.PostForm.Get("for")); err == nil && (a.For <= 0 || a.For > maxPause) {
			err = fmt.Errorf("a pause lasts more than 0 s and at most %v", maxPause)
		}
	default:
		err = errors.New("an action is a form: name, label, do=resume or do=pause, for=1m")
	}
	return a, err
}
