package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is the Redis of the fleet.
type server struct {
	url string
	rdb *redis.Client
	end func()
}

// errNoURL does not show the URL, which may carry a password.
var errNoURL = errors.New("-redis needs a URL such as redis://localhost:6379")

// newServer returns the server at a URL, or starts one, which ends with the program.
func newServer(ctx context.Context, url string) (*server, error) {
	s := &server{url: url, end: func() {}}
	if url == "" {
		var err error
		if s, err = launch(); err != nil {
			return nil, err
		}
	}
	options, err := redis.ParseURL(s.url)
	if err != nil {
		return nil, errNoURL
	}
	s.rdb = redis.NewClient(options)
	end := s.end
	s.end = func() {
		_ = s.rdb.Close()
		end()
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := s.rdb.Ping(ctx).Err()
		if err == nil {
			return s, nil
		}
		if time.Now().After(until) || ctx.Err() != nil {
			s.end()
			return nil, fmt.Errorf("redis does not answer: %w", err)
		}
	}
}

// launch starts a redis-server that keeps nothing on disk.
func launch() (*server, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("no redis-server is installed, and -redis names none")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close() // so that the server can have the port
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	cmd := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no")
	cmd.Stdout = &said
	cmd.SysProcAttr = apart()
	if err := cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &server{url: "redis://127.0.0.1:" + port, end: func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it says that the server was killed
		_ = os.RemoveAll(dir)
	}}, nil
}
