package redistest

import (
	"fmt"
	"strings"
)

// online reports whether so many replicas have everything that a server has
// written so far. A link may be "up" before the master has sent anything. If the
// master is killed then, the replica is empty.
func online(master *Server, replicas int) error {
	info, err := master.do("INFO", "replication")
	if err != nil {
		return err
	}
	if n := strings.Count(fmt.Sprint(info), "state=online"); n != replicas {
		return fmt.Errorf("the master on port %d has %d replicas online, not %d", master.Port(), n, replicas)
	}
	n, err := master.do("WAIT", replicas, 1000)
	if err != nil {
		return err
	}
	if n != int64(replicas) {
		return fmt.Errorf("%v of %d replicas of port %d have all that it has written", n, replicas, master.Port())
	}
	return nil
}
