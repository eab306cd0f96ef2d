package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
)

// removal waits until its input ends, which it does with the process that holds
// the other end, however that ends, and then removes a directory. A server that
// is just being killed may still write into it, hence the second try.
const removal = `cat >/dev/null; rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }`

// root is the directory for all files of this process's servers.
var root = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return "", err
	}
	if len(dir) > 80 { // the path of a unix socket has 107 bytes at most
		if err := os.Remove(dir); err != nil {
			return "", err
		}
		if dir, err = os.MkdirTemp("/tmp", "redistest"); err != nil {
			return "", err
		}
	}
	cmd := exec.Command("/bin/sh", "-c", removal, "sh", dir)
	cmd.Env = []string{"PATH=/usr/bin:/bin"} // a test may have changed it
	detach(cmd)
	if _, err := cmd.StdinPipe(); err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("removing %s later: %w", dir, err)
	}
	// This goroutine holds the other end of the pipe, to close it after a Wait
	// that ends only if somebody else ends the shell.
	go func() { _ = cmd.Wait() }()
	return dir, nil
})

// room makes a directory for one server.
func room() (string, error) {
	dir, err := root()
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(dir, "")
}

// Ports are taken from below the range of which the kernel gives out (from
// 32768 on Linux), so that no client's connection is in the way, and so that
// there is one 10 000 above for a cluster's own talk.
const (
	firstPort = 10_000
	lastPort  = 22_000
	busOffset = 10_000
)

// freePort returns a port that is free at this moment, as is the one for a
// cluster's own talk. Who uses it must cope with having been overtaken.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if err = isFree(port); err != nil {
			continue
		}
		if err = isFree(port + busOffset); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port from %d to %d: %w", firstPort, lastPort, err)
}

func isFree(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}
