package pgtest

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds every wait that normally takes milliseconds.
const patience = 30 * time.Second

// server is a PostgreSQL server, running or not.
type server struct {
	dir  string // of its data; "": the server is somebody's
	host string // and port
	user *url.Userinfo
	log  *bytes.Buffer
	env  []string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// bin returns the folder of PostgreSQL's programs.
var bin = sync.OnceValues(func() (string, error) {
	var folders []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		folders = append(folders, filepath.Dir(path))
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		folders = append(folders, strings.TrimSpace(string(out)))
	}
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.Reverse(versions)
	for _, folder := range append(folders, versions...) {
		if _, err := os.Stat(filepath.Join(folder, "initdb")); err == nil {
			if _, err := os.Stat(filepath.Join(folder, "postgres")); err == nil {
				return folder, nil
			}
		}
	}
	return "", errors.New("no PostgreSQL server is installed: there is no initdb in PATH, nor in /usr/lib/postgresql")
})

// owner returns the user who runs servers, or nil: this one.
var owner = sync.OnceValues(func() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.Atoi(u.Uid)
			gid, _ := strconv.Atoi(u.Gid)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("this is root, and there is neither a user postgres nor nobody")
})

// base is the folder of all servers. main removes it.
var base = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pgtest")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	return dir, err
})

// template returns the data of a new server.
var template = sync.OnceValues(func() (string, error) {
	folder, err := bin()
	if err != nil {
		return "", err
	}
	dir, err := newFolder("template")
	if err != nil {
		return "", err
	}
	cmd, err := command(filepath.Join(folder, "initdb"), "-D", dir, "-A", "trust", "-U", "postgres", "--no-sync", "--no-locale", "-E", "UTF8")
	if err != nil {
		return "", err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w: %s", err, out)
	}
	return dir, nil
})

// newFolder returns a new folder that belongs to the user who runs servers.
func newFolder(name string) (string, error) {
	in, err := base()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(in, name)
	if err != nil {
		return "", err
	}
	who, err := owner()
	if err == nil && who != nil {
		err = os.Chown(dir, int(who.Uid), int(who.Gid))
	}
	return dir, err
}

// command returns a program that runs as the user who runs servers. The kernel ends it with
// this process.
func command(program string, args ...string) (*exec.Cmd, error) {
	who, err := owner()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	return cmd, nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if s, err := shared(); err == nil {
		s.kill(syscall.SIGQUIT)
	}
	if dir, err := base(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// starter runs what starts children: the kernel ends a child with the thread that has started it.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// wasAsked is set once a test has asked for the shared server.
var wasAsked bool

// shared returns the server of all tests.
var shared = sync.OnceValues(func() (*server, error) {
	if !wasAsked {
		return nil, errors.New("nobody needs it")
	}
	if text := os.Getenv("DRIPFEED_POSTGRES_URL"); text != "" {
		u, err := url.Parse(text)
		if err != nil {
			return nil, errors.New("DRIPFEED_POSTGRES_URL is no URL")
		}
		return &server{host: u.Host, user: u.User}, nil
	}
	return newServer()
})

// newServer starts a server on a copy of the template.
func newServer(settings ...string) (*server, error) {
	from, err := template()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder("server")
	if err != nil {
		return nil, err
	}
	cp, err := command("cp", "-a", from+"/.", dir)
	if err != nil {
		return nil, err
	}
	if out, err := cp.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cp: %w: %s", err, out)
	}
	s := &server{dir: dir, user: url.User("postgres")}
	for range 5 { // somebody else may take the port
		if err = s.start(settings...); err == nil {
			break
		}
	}
	return s, err
}

// start starts the server, on the port that it had before if it had one.
func (s *server) start(settings ...string) error {
	folder, err := bin()
	if err != nil {
		return err
	}
	port := s.host
	if port == "" {
		if port, err = freeHost(); err != nil {
			return err
		}
	}
	args := []string{"-D", s.dir, "-p", portOf(port)}
	for _, set := range append([]string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=16MB", "max_connections=200",
		"fsync=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0", "log_min_messages=fatal",
	}, settings...) {
		args = append(args, "-c", set)
	}
	cmd, err := command(filepath.Join(folder, "postgres"), args...)
	if err != nil {
		return err
	}
	s.log = new(bytes.Buffer)
	cmd.Stderr, cmd.Env = s.log, append(os.Environ(), s.env...)
	begun := make(chan error)
	starter() <- func() { begun <- cmd.Start() }
	if err := <-begun; err != nil {
		return err
	}
	s.cmd, s.done = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(s.done)
	}()
	db, err := sql.Open("pgx", (&server{host: port, user: s.user}).url(nil))
	if err != nil {
		return err
	}
	defer db.Close()
	for until := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if err = db.Ping(); err == nil {
			s.host = port
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("the server has ended: %s", s.log)
		default:
		}
		if time.Now().After(until) {
			s.kill(syscall.SIGQUIT)
			return fmt.Errorf("the server does not answer: %w", err)
		}
	}
}

// freeHost returns a host and port that is free at this moment.
func freeHost() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func hostOf(host string) string {
	name, _, _ := net.SplitHostPort(host)
	return name
}

func portOf(host string) string {
	_, port, _ := net.SplitHostPort(host)
	return port
}

// writeFile writes a file that the user who runs servers may read.
func writeFile(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	require.NoError(t, os.Chmod(path, 0o644))
}

// kill sends a signal that ends the server, and waits until it has ended.
func (s *server) kill(signal syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(signal) // it may have ended already
	<-s.done
}

// url returns where the server is, for a driver. More are settings of the connection.
func (s *server) url(more url.Values) string {
	q := url.Values{"sslmode": {"disable"}}
	for name, values := range more {
		q[name] = values
	}
	u := url.URL{Scheme: "postgres", User: s.user, Host: s.host, Path: "/postgres", RawQuery: q.Encode()}
	return u.String()
}

// need skips a test that has no server, or fails it.
func need(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if _, missing := bin(); missing != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(missing)
	}
	t.Fatal(err)
}

// theServer returns the server of all tests.
func theServer(t testing.TB) *server {
	t.Helper()
	asking.Lock()
	wasAsked = true
	asking.Unlock()
	s, err := shared()
	need(t, err)
	return s
}

var asking sync.Mutex

// ownServer returns a server for one test, which may stop it.
func ownServer(t testing.TB, settings ...string) *server {
	t.Helper()
	s, err := newServer(settings...)
	need(t, err)
	t.Cleanup(func() { s.kill(syscall.SIGQUIT) })
	return s
}

// open returns a DB of the server by a driver, "pgx" or "postgres", which is lib/pq.
func (s *server) open(t testing.TB, driver string, more url.Values) *sql.DB {
	t.Helper()
	db, err := sql.Open(cmp.Or(driver, "pgx"), s.url(more))
	require.NoError(t, err)
	db.SetMaxIdleConns(8)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// exec runs SQL as the superuser.
func (s *server) exec(t testing.TB, text string, args ...any) {
	t.Helper()
	db, err := sql.Open("pgx", s.url(nil))
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(context.Background(), text, args...)
	require.NoError(t, err)
}

// signal sends a signal to all processes of the server: each connection has one.
func (s *server) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	parent := strconv.Itoa(s.cmd.Process.Pid)
	require.NoError(t, s.cmd.Process.Signal(signal))
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// After the name, which is in parentheses, come the state and the parent.
		_, after, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); len(fields) > 1 && fields[1] == parent {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			_ = syscall.Kill(pid, signal)
		}
	}
}
