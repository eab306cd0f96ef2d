package watch

import (
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

// Action is what somebody asks for on the page.
type Action struct {
	Name  string        // of the limiter, as given to [Board.Add]
	Label string        // of the key; "": it is no key
	Do    string        // "resume" or "hold"
	Hold  time.Duration // how long to hold
}

const (
	actionBody = 64 << 10        // bytes of a request for an action
	actionTime = 5 * time.Second // for the store of a shared bucket
	maxHold    = 24 * time.Hour
)

var errReadOnly = errors.New("this page is read-only: Board.Allow is not set")

// mayAct returns why a request may ask for no action at all.
func (s *server) mayAct(r *http.Request) error {
	if s.allow == nil {
		return errReadOnly
	}
	if !s.knows(r.Host) {
		return fmt.Errorf("this page is read-only under %q: Board.Hosts does not list it", hostname(r.Host))
	}
	return nil
}

// knows reports whether a host is one whose name nobody else can have lead here. A page of a stranger reaches this
// server as its own origin, if the stranger's name resolves to this server's address: only the Host tells.
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

// act carries out the action that a request asks for, or changes nothing and answers why.
func (s *server) act(w http.ResponseWriter, r *http.Request) {
	if err := s.mayAct(r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, actionBody)
	a, err := readAction(r)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	bucket := s.bucketOf(a.Name, a.Label)
	if bucket == nil {
		http.Error(w, "no such bucket", http.StatusNotFound)
		return
	}
	if err := s.allow(r, a); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), actionTime)
	defer cancel()
	if a.Do == "hold" {
		err = bucket.Hold(ctx, a.Hold)
	} else {
		err = bucket.Resume(ctx)
	}
	if err != nil {
		http.Error(w, named(err, bucket.Key(), a.Name), http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// readAction reads a form.
func readAction(r *http.Request) (Action, error) {
	if err := r.ParseForm(); err != nil {
		return Action{}, err
	}
	a := Action{Name: r.PostForm.Get("name"), Label: r.PostForm.Get("label"), Do: r.PostForm.Get("do")}
	switch a.Do {
	case "resume":
		return a, nil
	case "hold":
		var err error
		a.Hold, err = time.ParseDuration(r.PostForm.Get("hold"))
		if err == nil && (a.Hold <= 0 || a.Hold > maxHold) {
			err = fmt.Errorf("a hold lasts more than 0 s and at most %v", maxHold)
		}
		return a, err
	}
	return Action{}, errors.New(`an action is a form: name, label, do=resume or do=hold, hold=1m`)
}
