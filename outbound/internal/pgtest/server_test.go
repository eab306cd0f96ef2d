package pgtest

import (
	"bytes"
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
)

// patience bounds every wait that normally takes milliseconds.
const patience = 30 * time.Second

// server is a PostgreSQL server, running or not.
type server struct {
	dir  string // of its data; empty if the tests have not started it
	host string // and port
	user *url.Userinfo
	log  *bytes.Buffer
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

var (
	bin      string              // the folder of PostgreSQL's programs, if it is installed
	owner    *syscall.Credential // of the servers; nil: this user
	base     string              // the folder of all servers
	starting = make(chan func())
	port     atomic.Int64 // the number of the last one

	making   sync.Mutex
	template string // the data of a new server

	sharing sync.Mutex
	shared  *server // of all tests that do not stop it
)

func TestMain(m *testing.M) {
	rollouttest.BareProcess(openBare)
	bin = programs()
	for _, name := range []string{"postgres", "nobody"} { // a server does not run as root
		if u, err := user.Lookup(name); err == nil && os.Getuid() == 0 && owner == nil {
			uid, _ := strconv.Atoi(u.Uid)
			gid, _ := strconv.Atoi(u.Gid)
			owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	var err error
	if base, err = os.MkdirTemp("", "pgtest"); err != nil {
		log.Fatal(err)
	}
	if err := os.Chmod(base, 0o755); err != nil {
		log.Fatal(err)
	}
	port.Store(rand.Int64N(2_000))
	go func() {
		runtime.LockOSThread() // the kernel ends a child with the thread that has started it
		for f := range starting {
			f()
		}
	}()
	code := m.Run()
	if shared != nil {
		shared.kill(syscall.SIGQUIT)
	}
	_ = os.RemoveAll(base)
	os.Exit(code)
}

// programs returns the folder of PostgreSQL's programs, or "".
func programs() string {
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
		_, initdb := os.Stat(filepath.Join(folder, "initdb"))
		_, postgres := os.Stat(filepath.Join(folder, "postgres"))
		if initdb == nil && postgres == nil {
			return folder
		}
	}
	return ""
}

// folder returns a new folder that belongs to the user who runs servers.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "")
	require.NoError(t, err)
	if owner != nil {
		require.NoError(t, os.Chown(dir, int(owner.Uid), int(owner.Gid)))
	}
	return dir
}

// command returns a program that runs as the user who runs servers. The kernel ends it with this
// process.
func command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	return cmd
}

// run runs a program to its end.
func run(t testing.TB, program string, args ...string) {
	t.Helper()
	out, err := command(program, args...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// launch starts a program that runs until it is ended.
func launch(cmd *exec.Cmd) error {
	begun := make(chan error)
	starting <- func() { begun <- cmd.Start() }
	return <-begun
}

// theServer returns the server of all tests.
func theServer(t testing.TB) *server {
	t.Helper()
	sharing.Lock()
	defer sharing.Unlock()
	if text := os.Getenv("DRIPFEED_POSTGRES_URL"); text != "" && shared == nil {
		u, err := url.Parse(text)
		require.True(t, err == nil, "DRIPFEED_POSTGRES_URL is no URL") // err shows its password
		shared = &server{host: u.Host, user: u.User}
	}
	if shared == nil {
		shared = newServer(t)
	}
	return shared
}

// ownServer returns a server for one test, which may stop it.
func ownServer(t testing.TB, settings ...string) *server {
	t.Helper()
	s := newServer(t, settings...)
	t.Cleanup(func() { s.kill(syscall.SIGQUIT) })
	return s
}

// newServer starts a server on a copy of the template. Without PostgreSQL it skips the test, or fails
// it where servers are required.
func newServer(t testing.TB, settings ...string) *server {
	t.Helper()
	if bin == "" && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip("no PostgreSQL server is installed: there is no initdb in PATH, nor in /usr/lib/postgresql")
	}
	making.Lock()
	defer making.Unlock()
	if template == "" {
		dir := folder(t)
		run(t, filepath.Join(bin, "initdb"), "-D", dir, "-A", "trust", "-U", "postgres", "--no-sync", "--no-locale", "-E", "UTF8")
		template = dir
	}
	s := &server{dir: folder(t), user: url.User("postgres")}
	run(t, "cp", "-a", template+"/.", s.dir)
	require.NoError(t, s.start(settings...))
	return s
}

// freeHost returns a host and a port that is free. The kernel gives no client a port so low, and
// freeHost returns no port twice. So it stays free while its server does not run.
func freeHost() string {
	for {
		host := fmt.Sprintf("127.0.0.1:%d", 30_000+port.Add(1)%2_000)
		if l, err := net.Listen("tcp", host); err == nil {
			_ = l.Close() // it has had no connection
			return host
		}
	}
}

// start starts the server, on the port that it had before if it had one.
func (s *server) start(settings ...string) error {
	s.host = cmp.Or(s.host, freeHost())
	_, port, _ := net.SplitHostPort(s.host)
	args := []string{"-D", s.dir, "-p", port}
	for _, set := range append([]string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=16MB", "max_connections=200",
		"fsync=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0", "log_min_messages=fatal",
	}, settings...) {
		args = append(args, "-c", set)
	}
	cmd, done := command(filepath.Join(bin, "postgres"), args...), make(chan struct{})
	s.log, s.cmd, s.done = new(bytes.Buffer), cmd, done
	cmd.Stderr = s.log
	if err := launch(cmd); err != nil {
		return err
	}
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	db, err := sql.Open("pgx", s.url(nil))
	if err != nil {
		return err
	}
	defer db.Close()
	for until := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if err = db.Ping(); err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("the server has ended: %s", s.log)
		default:
		}
		if time.Now().After(until) {
			s.kill(syscall.SIGQUIT)
			return fmt.Errorf("the server does not answer: %w", err)
		}
	}
}

// kill sends a signal that ends the server, and waits until it has ended.
func (s *server) kill(signal syscall.Signal) {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(signal) // it may have ended already
		<-s.done
	}
}

// signal sends a signal to all processes of the server: each connection has one.
func (s *server) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(signal))
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, path := range stats {
		text, _ := os.ReadFile(path) // unless it has ended
		// After the name, which is in parentheses, come the state and the parent.
		_, after, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); len(fields) > 1 && fields[1] == strconv.Itoa(s.cmd.Process.Pid) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			_ = syscall.Kill(pid, signal)
		}
	}
}

// replica starts a replica of the server.
func (s *server) replica(t testing.TB) *server {
	t.Helper()
	r := &server{dir: folder(t), user: s.user}
	run(t, filepath.Join(bin, "pg_basebackup"), "-D", r.dir, "-d", s.url(nil), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	require.NoError(t, r.start(append(replicated, "hot_standby=on")...))
	t.Cleanup(func() { r.kill(syscall.SIGQUIT) })
	return r
}

// pgbouncer starts a pgbouncer in front of a server, in transaction or statement mode. Without one the test
// is skipped, or fails where servers are required.
func pgbouncer(t testing.TB, s *server, mode string) *server {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip("there is no pgbouncer")
	}
	require.NoError(t, err)
	b := &server{host: freeHost(), user: s.user}
	_, port, _ := net.SplitHostPort(b.host)
	to, toPort, _ := net.SplitHostPort(s.host)
	config := filepath.Join(folder(t), "pgbouncer.ini")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "[databases]\npostgres = host=%s port=%s user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%s\n"+
		"unix_socket_dir=\nauth_type=any\npool_mode=%s\ndefault_pool_size=8\nmax_client_conn=1000\nlogfile=/dev/null\n", to, toPort, port, mode), 0o644))
	cmd := command(program, config)
	require.NoError(t, launch(cmd))
	t.Cleanup(func() { _ = errors.Join(cmd.Process.Kill(), cmd.Wait()) })
	db := b.open(t, "", url.Values{"default_query_exec_mode": {"exec"}})
	require.Eventually(t, func() bool { return db.Ping() == nil }, patience, 10*time.Millisecond)
	return b
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

// open returns a DB of the server by a driver, "pgx" or "postgres", which is lib/pq.
func (s *server) open(t testing.TB, driver string, more url.Values) *sql.DB {
	t.Helper()
	db, err := sql.Open(cmp.Or(driver, "pgx"), s.url(more))
	require.NoError(t, err)
	db.SetMaxIdleConns(8)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// with opens a DB for one use.
func (s *server) with(t testing.TB, use func(db *sql.DB) error) {
	t.Helper()
	db, err := sql.Open("pgx", s.url(nil))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, use(db))
}

// exec runs SQL as the superuser.
func (s *server) exec(t testing.TB, text string, args ...any) {
	t.Helper()
	s.with(t, func(db *sql.DB) error {
		_, err := db.Exec(text, args...)
		return err
	})
}

// one returns the only value of a query.
func (s *server) one(t testing.TB, text string, args ...any) (n float64) {
	t.Helper()
	s.with(t, func(db *sql.DB) error { return db.QueryRow(text, args...).Scan(&n) })
	return n
}
