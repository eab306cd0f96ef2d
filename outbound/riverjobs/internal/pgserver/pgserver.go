// Package pgserver starts a PostgreSQL server and makes River's databases, for tests and the
// example. The server listens on a free port of 127.0.0.1, and ends with this process, however that
// ends.
package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is a PostgreSQL server that runs.
type Server struct {
	// URL is where the server is, for a driver.
	URL string

	dir   string
	stdin io.Closer // the server ends when this is closed
	cmd   *exec.Cmd
}

// Installed returns nil if PostgreSQL is installed, or an error that says what is missing.
func Installed() error {
	_, err := programs()
	return err
}

// programs returns the folder of PostgreSQL's programs.
func programs() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is a good one
	if len(found) == 0 {
		return "", errors.New("PostgreSQL is not installed: no initdb in PATH or /usr/lib/postgresql")
	}
	return slices.Max(found), nil
}

// Start makes a database in a new folder and starts its server.
func Start(ctx context.Context) (*Server, error) {
	folder, err := programs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pgserver")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	attributes, err := owner(dir)
	if err == nil {
		initdb := exec.CommandContext(ctx, filepath.Join(folder, "initdb"), "-D", dir, "-A", "trust", "-U", "postgres", "--no-sync", "--no-locale", "-E", "UTF8")
		initdb.Dir, initdb.SysProcAttr = "/", attributes
		var out []byte
		if out, err = initdb.CombinedOutput(); err != nil {
			err = fmt.Errorf("initdb: %w: %s", err, out)
		}
	}
	for range 5 { // another process may take the port
		if err == nil {
			if err = s.start(ctx, filepath.Join(folder, "postgres"), attributes); err == nil {
				return s, nil
			}
		}
	}
	s.Stop()
	return nil, err
}

// owner gives the folder to the user who runs the server, because root must not.
func owner(dir string) (*syscall.SysProcAttr, error) {
	attributes := &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for this process, which then ends the server
	if os.Getuid() != 0 {
		return attributes, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not start as root, and no other user exists: %w", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attributes, os.Chown(dir, uid, gid)
}

// untilEOF runs a program until its own input ends, as it does when the process at its other end
// dies.
const untilEOF = `"$@" & read -r _; kill -QUIT $!; wait $!`

func (s *Server) start(ctx context.Context, program string, attributes *syscall.SysProcAttr) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close() // so that the server can have the port
	args := []string{"-c", untilEOF, "sh", program, "-D", s.dir, "-p", port}
	for _, set := range []string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=32MB", "max_connections=300",
		"fsync=off", "full_page_writes=off", "log_min_messages=fatal",
	} {
		args = append(args, "-c", set)
	}
	s.cmd = exec.Command("sh", args...)
	s.cmd.Dir, s.cmd.SysProcAttr = "/", attributes
	var printed bytes.Buffer
	s.cmd.Stderr = &printed
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.URL = "postgres://postgres@127.0.0.1:" + port + "/postgres?sslmode=disable"
	for until := time.Now().Add(15 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := pgx.Connect(ctx, s.URL)
		if err == nil {
			return conn.Close(ctx)
		}
		if ctx.Err() != nil || time.Now().After(until) {
			s.end()
			return fmt.Errorf("the server does not answer: %w: %s", err, &printed)
		}
	}
}

// end ends the server without saving its data.
func (s *Server) end() {
	_ = s.stdin.Close()
	_ = s.cmd.Wait() // with the status of a program that was ended
}

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	if s.stdin != nil {
		s.end()
	}
	_ = os.RemoveAll(s.dir)
}
