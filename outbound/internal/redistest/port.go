package redistest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
)

// removal waits until its input ends, and then removes a directory. The input
// ends with the process that holds the other end, however that process ends. A
// server that is just being killed may still write into the directory, hence
// the second try.
const removal = `cat >/dev/null; rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }`

// root makes the directory for all files of this process's servers.
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
	cmd.Env = []string{"PATH=/usr/bin:/bin"} // a test may have changed PATH
	detach(cmd)
	if _, err := cmd.StdinPipe(); err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("removing %s later: %w", dir, err)
	}
	// This goroutine holds the other end of the pipe. Wait closes it when the
	// shell ends, which happens only if another program ends it.
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

// The servers' ports are below the range from which the kernel gives out ports
// (from 32768 on Linux). So no client's connection is in the way, and a
// cluster's node can have a second port 10 000 above, which is no server's first.
const (
	firstPort = 10_000
	lastPort  = 20_000
	busOffset = 10_000
)

// freePort returns a port that is free, as is the second port of a cluster's node.
// Until the caller closes held, no other test process takes it, even while the
// server is killed: the sentinels of a killed master would make another test's
// server, on the same port, a replica of their new master.
func freePort() (port int, held io.Closer, err error) {
	for range 100 {
		port = firstPort + rand.IntN(lastPort-firstPort)
		if held, err = hold(port); err != nil {
			continue
		}
		if err = errors.Join(isFree(port), isFree(port+busOffset)); err == nil {
			return port, held, nil
		}
		_ = held.Close() // it has carried nothing
	}
	return 0, nil, fmt.Errorf("no free port from %d to %d: %w", firstPort, lastPort, err)
}

// hold takes the port's number in UDP, which no server uses. The kernel gives it
// back when the process ends, however that happens.
func hold(port int) (io.Closer, error) {
	return net.ListenPacket("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

func isFree(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}
