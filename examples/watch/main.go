// Command watch shows limiters on a page while they work.
//
//	go run ./examples/watch [-addr host:port] [-for 10m]
//
// It prints the URL of the page, and that of the numbers for
// Prometheus, and works until you press ^C:
//
//   - "github" is under load. Another program uses the same key: the API's report shows how much.
//   - "billing" is held: the API has asked for a pause. Press
//     "Resume", and it goes on.
//   - "search" is slowed, because the API allows less than is
//     configured.
//   - "tenants" are 2 000 keys. A few are in trouble.
//   - "mail" is shared by three workers, through a store that is unavailable now and then.
//
// alerts.yml and dashboard.json next to this file use the same numbers.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound/watch"
)

const shows = "A page that shows limiters while they work."

var example = cli.Example{Name: "watch", Usage: shows + "\n\n\tgo run ./examples/watch [flags]", New: program}

func main() { example.Main() }

func program(flags *flag.FlagSet) cli.Run {
	addr := flags.String("addr", "127.0.0.1:0", "where to serve it")
	lasts := flags.Duration("for", 365*24*time.Hour, "how long to work")
	return func(ctx context.Context, out io.Writer) error {
		ctx, cancel := context.WithTimeout(ctx, *lasts)
		defer cancel()
		return run(ctx, out, *addr)
	}
}

// run serves the page until ctx ends.
func run(ctx context.Context, out io.Writer, addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(out, nil))
	// Any client of this example's page may act. In a program of yours, ask here who it is.
	board := &watch.Board{Allow: func(r *http.Request, a watch.Action) error {
		log.Info("somebody acts", "limiter", a.Name, "do", a.Do)
		return nil
	}}
	mux := http.NewServeMux()
	mux.Handle("/", board)
	mux.Handle("/metrics", board.Metrics())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	fmt.Fprintf(out, "%s\n\nhttp://%s/\nhttp://%[2]s/metrics\n\n", shows, listener.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	work(ctx, board)
	select {
	case <-ctx.Done():
		return server.Close()
	case err := <-served:
		return err
	}
}
