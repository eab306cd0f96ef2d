package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// server is the PostgreSQL server of the fleet.
type server struct {
	url string
	end func()
}

// newServer returns the server at a URL, or starts one, which ends with the program.
func newServer(ctx context.Context, url string) (*server, error) {
	if url != "" {
		return &server{url: url, end: func() {}}, nil
	}
	folder, err := programs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fleetpg")
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, folder, dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// programs returns the folder of PostgreSQL's programs.
func programs() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is a good one
	if len(found) == 0 {
		return "", errors.New("no PostgreSQL server is installed, and -db names none")
	}
	return slices.Max(found), nil
}

// ofChildren are the attributes of the processes that this one starts for the server.
var ofChildren syscall.SysProcAttr

// start makes a database in a folder, and starts its server.
func start(ctx context.Context, folder, dir string) (*server, error) {
	attributes := ofChildren
	if os.Getuid() == 0 { // PostgreSQL does not run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, fmt.Errorf("this is root, and there is no other user to start PostgreSQL: %w", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, err
		}
	}
	attributes.Setpgid = true // a Ctrl-C is for the program, which then ends the server
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(folder, name), args...)
		cmd.Dir, cmd.SysProcAttr = "/", &attributes
		return cmd
	}
	if out, err := command("initdb", "-D", dir, "-A", "trust", "-U", "postgres", "--no-sync").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close() // so that the server can have the port
	cmd := command("postgres", "-D", dir, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=700", "-c", "shared_buffers=16MB")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it says so if it fails
		close(done)
	}()
	s := &server{url: "postgres://postgres@127.0.0.1:" + port + "/postgres?sslmode=disable", end: func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // at once: nobody needs the data
		<-done
		_ = os.RemoveAll(dir)
	}}
	db, err := sql.Open("pgx", s.url)
	if err != nil {
		s.end()
		return nil, err
	}
	defer db.Close()
	for {
		if err = db.PingContext(ctx); err == nil {
			return s, nil
		}
		select {
		case <-done:
			return nil, fmt.Errorf("the server has ended: %s", &said)
		case <-ctx.Done():
			s.end()
			return nil, errors.New("interrupted")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
