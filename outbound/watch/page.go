package watch

import (
	"context"
	"crypto/sha256"
	_ "embed" // page.html
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/dripfeed/dripfeed/outbound"
)

//go:embed page.html
var page string

// policy lets the page run its own style and script, and ask its own host. Data cannot bring
// markup.
var policy = "default-src 'none'; style-src " + hashOf("style") + "; script-src " + hashOf("script") +
	"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
	"; require-trusted-types-for 'script'"

// hashOf names what stands in the page's one element of this name, as a browser computes it.
func hashOf(element string) string {
	_, text, _ := strings.Cut(page, "<"+element+">")
	text, _, _ = strings.Cut(text, "</"+element+">")
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// ServeHTTP serves a page that shows the limiters, on any path. GET returns the page. GET ?json
// returns its contents, a [Snapshot]: q is [Query].Search, and rows is Query.Rows. POST carries out
// an [Action], if Allow permits it: a form with the ID of a limiter, do=pause or do=resume, and
// for=1m. The page shows names and labels, so protect it.
func (b *Board) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(&server{source: b, allow: b.Allow, hosts: b.Hosts}).ServeHTTP(w, r)
}

// source is what a server needs of a Board.
type source interface {
	Snapshot(ctx context.Context, q Query) Snapshot
	bucketOf(name, label string) *outbound.Bucket
}

// server answers requests for a source.
type server struct {
	source
	allow func(*http.Request, Action) error
	hosts []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		if r.URL.Query().Has("json") {
			s.data(w, r)
			return
		}
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(len(page)))
		io.WriteString(w, page) // an error means that the browser has gone
	case http.MethodPost:
		code, err := s.act(w, r)
		if err != nil {
			http.Error(w, err.Error(), code)
			return
		}
		w.WriteHeader(code)
	default:
		h.Set("Allow", "GET, HEAD, POST")
		http.Error(w, "watch: a page for GET, an action for POST", http.StatusMethodNotAllowed)
	}
}

// view is a Snapshot as the page gets it.
type view struct {
	Snapshot
	ReadOnly string // why this request may not act, or empty
}

// data answers with what the page shows.
func (s *server) data(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodHead {
		return
	}
	form := r.URL.Query()
	rows, _ := strconv.Atoi(form.Get("rows")) // 0 for the default
	v := view{Snapshot: s.Snapshot(r.Context(), Query{Search: form.Get("q"), Rows: rows})}
	if err := s.mayAct(r); err != nil {
		v.ReadOnly = err.Error()
	}
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Write(text)
}
