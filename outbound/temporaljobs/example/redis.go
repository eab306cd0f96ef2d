package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"
)

// startRedis starts a redis-server that keeps nothing on disk, and ends with the program.
func startRedis() (*server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("no redis-server is installed, and -redis names none")
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no")
	cmd.SysProcAttr = apart()
	if err := cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &server{address: fmt.Sprintf("redis://127.0.0.1:%d", port), end: func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it says that the server was killed
		_ = os.RemoveAll(dir)
	}}, nil
}

// dialRedis waits for a server that has just been started.
func dialRedis(ctx context.Context, url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("-redis needs a URL such as redis://localhost:6379") // the URL may carry a password
	}
	rdb := redis.NewClient(options)
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := rdb.Ping(ctx).Err()
		if err == nil {
			return rdb, nil
		}
		if time.Now().After(until) || ctx.Err() != nil {
			_ = rdb.Close()
			return nil, fmt.Errorf("redis does not answer: %w", err)
		}
	}
}
