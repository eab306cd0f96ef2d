package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
)

// requirePostgresEnv, set to 1, makes a missing PostgreSQL an error.
const requirePostgresEnv = "DRIPFEED_REQUIRE_POSTGRES"

// A database is a PostgreSQL server of this run's own, on a free port, that never waits for
// the disk. It starts at its first use.
type database struct {
	process *process
	dir     string
	db      *sql.DB
}

// postgresPrograms returns the folder of PostgreSQL's programs.
func postgresPrograms() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is a good one
	if len(found) == 0 {
		return "", errors.New("PostgreSQL is not installed: the rows are skipped")
	}
	return slices.Max(found), nil
}

// empty empties the server and returns its DB, of 16 connections at most.
func (d *database) empty() (*sql.DB, error) {
	if d.db == nil {
		if err := d.start(); err != nil {
			d.stop()
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := d.db.ExecContext(ctx, "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
	return d.db, err
}

// start makes the files of a server, and starts it.
func (d *database) start() (err error) {
	folder, err := postgresPrograms()
	if err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "peers"); err != nil {
		return err
	}
	program := func(name string, args ...string) (*exec.Cmd, error) {
		cmd := exec.Command(filepath.Join(folder, name), args...)
		cmd.Dir = "/"
		return cmd, asPostgres(cmd, d.dir)
	}
	cmd, err := program("initdb", "-D", d.dir, "-A", "trust", "-U", "postgres", "--no-sync", "--no-locale")
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	listener.Close() // so that the server can have the port
	if cmd, err = program("postgres", "-D", d.dir, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"); err != nil {
		return err
	}
	if d.process, err = launch(cmd); err != nil {
		return err
	}
	// pgstore does not wait for the disk, so the rest may do the same.
	if d.db, err = sql.Open("pgx", "postgres://postgres@127.0.0.1:"+port+"/postgres?sslmode=disable&synchronous_commit=off"); err != nil {
		return err
	}
	d.db.SetMaxOpenConns(16)
	d.db.SetMaxIdleConns(16)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil && !d.process.ended() {
		if err = d.db.PingContext(ctx); err == nil {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("PostgreSQL does not answer: %w", err)
}

// stop ends the server, if there is one, and removes its files.
func (d *database) stop() {
	if d.db != nil {
		d.db.Close()
	}
	if d.process != nil {
		_ = d.process.cmd.Process.Signal(syscall.SIGQUIT) // it may be gone already
		<-d.process.done
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
	*d = database{}
}
