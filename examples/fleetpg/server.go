package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/workers"
)

// programs returns the folder of PostgreSQL's programs.
func programs() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is valid
	if len(found) == 0 {
		return "", fmt.Errorf("no PostgreSQL server is installed, and -db names none")
	}
	return slices.Max(found), nil
}

// child returns the attributes of PostgreSQL's processes, which do not run as root.
func child(dir string) (*syscall.SysProcAttr, error) {
	attributes := workers.Child(syscall.SIGQUIT)
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

// start starts a server with a database in a folder, where its socket is too.
func start(ctx context.Context, dir string) (url string, end func(), err error) {
	folder, err := programs()
	if err != nil {
		return "", nil, err
	}
	attributes, err := child(dir)
	if err != nil {
		return "", nil, err
	}
	var said bytes.Buffer
	command := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(folder, program), append(args, "-D", dir)...)
		cmd.Dir, cmd.SysProcAttr, cmd.Stderr = "/", attributes, &said
		return cmd
	}
	if err := command("initdb", "-A", "trust", "-U", "postgres", "--no-sync").Run(); err != nil {
		return "", nil, fmt.Errorf("initdb: %w: %s", err, &said)
	}
	cmd := command("postgres", "-c", "listen_addresses=", "-c", "unix_socket_directories="+dir, "-c", "max_connections=700", "-c", "shared_buffers=16MB")
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	end = func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // end immediately
		<-ended
	}
	url = "postgres://postgres@/postgres?host=" + dir
	for migrate(ctx, url) != nil {
		select {
		case err := <-ended:
			return "", nil, fmt.Errorf("the server has ended: %w: %s", err, &said)
		case <-ctx.Done():
			end()
			return "", nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return url, end, nil
}
