package watch

import (
	"context"
	"crypto/sha256"
	_ "embed" // page.html
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/dripfeed/dripfeed/outbound"
)

//go:embed page.html
var page string

// policy lets the page run its own style and script, ask its own host, and nothing else. No markup can come from data.
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

// ServeHTTP serves a page that shows the limiters, wherever it is mounted. GET is the page. GET ?json is what it shows,
// a [Snapshot] with an ID for each limiter, where q is [Query].Search and rows is Query.Rows. POST carries out an
// [Action], if Allow lets it: a form with name, label, do and hold, such as "1m". Whoever may see the page sees names and
// labels, so put it where only those come who may.
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
		io.WriteString(w, page) // nobody could be told of an error
	case http.MethodPost:
		s.act(w, r)
	default:
		h.Set("Allow", "GET, HEAD, POST")
		http.Error(w, "watch: a page for GET, an action for POST", http.StatusMethodNotAllowed)
	}
}

// view is a Snapshot as the page gets it.
type view struct {
	Snapshot
	Limiters []viewRow // instead of the Snapshot's
	ReadOnly string    // why this request may ask for no action; "": it may
}

// viewRow is a Limiter with what names it in an action. JSON cannot say each name: its strings are
// UTF-8, names are bytes.
type viewRow struct {
	Limiter
	ID string // name and label, encoded as in a form
}

// data answers with what the page shows.
func (s *server) data(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodHead {
		return
	}
	form := r.URL.Query()
	rows, _ := strconv.Atoi(form.Get("rows")) // 0: as many as a Board has without being told
	v := view{Snapshot: s.Snapshot(r.Context(), Query{Search: form.Get("q"), Rows: rows})}
	if err := s.mayAct(r); err != nil {
		v.ReadOnly = err.Error()
	}
	v.Limiters = make([]viewRow, len(v.Snapshot.Limiters))
	for i, l := range v.Snapshot.Limiters {
		if v.ReadOnly != "" {
			l.Actions = nil
		}
		v.Limiters[i] = viewRow{l, url.Values{"name": {l.Name}, "label": {l.Label}}.Encode()}
	}
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Write(text)
}
