package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/examples/internal/workers"
)

// server is the Redis that the workers share.
type server struct {
	url  string
	what string // for the screen
	end  func()
}

// newServer returns the server at a URL, or one of the program's own for "".
func newServer(ctx context.Context, url string) (server, error) {
	if url != "" {
		version, err := answers(ctx, url)
		if err != nil {
			return server{}, cli.Wrong("-redis: %v", err)
		}
		return server{url, "the server of -redis, version " + version, func() {}}, nil
	}
	if path, err := exec.LookPath("redis-server"); err == nil {
		return started(ctx, path)
	}
	mini := miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		return server{}, err
	}
	return server{"redis://" + mini.Addr(), "an embedded miniredis (no redis-server)", mini.Close}, nil
}

var errNoURL = errors.New("want a URL such as redis://localhost:6379") // not the cause, which may show a password

// answers returns the version of a server that answers.
func answers(ctx context.Context, url string) (version string, err error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return "", errNoURL
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return "", err
	}
	info, err := rdb.Info(ctx, "server").Result()
	_, version, ok := strings.Cut(info, "redis_version:")
	if err != nil || !ok {
		return "unknown", nil // the server need not say
	}
	return strings.Fields(version)[0], nil
}

// started returns a redis-server that writes nothing to a disk, on a socket in a folder of its own.
func started(ctx context.Context, path string) (server, error) {
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return server{}, err
	}
	socket := filepath.Join(dir, "redis.sock")
	cmd := exec.Command(path, "--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--appendonly", "no", "--logfile", "log")
	cmd.SysProcAttr = workers.Child(syscall.SIGKILL)
	if err := cmd.Start(); err != nil {
		return server{}, errors.Join(err, os.RemoveAll(dir))
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its log says why it ends
		close(done)
	}()
	s := server{url: "unix://" + socket, end: func() {
		_ = cmd.Process.Kill() // it may have ended
		<-done
		_ = os.RemoveAll(dir) // its data is temporary
	}}
	patience := time.After(10 * time.Second)
	for {
		version, err := answers(ctx, s.url)
		if err == nil {
			s.what = "a redis-server of its own, version " + version
			return s, nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
			continue
		case <-done:
		case <-patience:
		case <-ctx.Done():
		}
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		s.end()
		return server{}, fmt.Errorf("%s: %w; the output: %s", path, err, log)
	}
}
