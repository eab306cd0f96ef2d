package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
)

// server is a Temporal server that ends with the program.
type server struct {
	address string
	end     func()
}

// startServer starts a server for development, which keeps all in memory.
func startServer(ctx context.Context, stderr io.Writer) (*server, error) {
	path, err := exec.LookPath("temporal")
	if err != nil {
		return nil, errors.New("no command temporal is installed to start a server, and -server names none")
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, "server", "start-dev", "--ip", "127.0.0.1", "--port", strconv.Itoa(port), "--headless", "--log-level", "error")
	cmd.Stderr, cmd.SysProcAttr = stderr, apart()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &server{address: fmt.Sprintf("127.0.0.1:%d", port), end: func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}}, nil
}

// freePort returns an unused port.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
