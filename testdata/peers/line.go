package main

import (
	"net"
	"time"
)

// delayed returns the address of a line to target that delays what each side sends by way. stop
// ends the line and its connections.
func delayed(target string, way time.Duration) (address string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			go carry(client, server, way)
			go carry(server, client, way)
		}
	}()
	return listener.Addr().String(), func() { listener.Close() }, nil
}

// carry sends to to what comes from from, later by way. It closes both at the end.
func carry(from, to net.Conn, way time.Duration) {
	type parcel struct {
		due  time.Time
		data []byte
	}
	parcels := make(chan parcel, 4096)
	go func() {
		defer from.Close()
		defer to.Close()
		var err error
		for p := range parcels {
			if err != nil {
				continue // so that the reader does not wait
			}
			time.Sleep(time.Until(p.due))
			_, err = to.Write(p.data)
		}
	}()
	defer close(parcels)
	for {
		data := make([]byte, 16<<10)
		n, err := from.Read(data)
		if n > 0 {
			parcels <- parcel{time.Now().Add(way), data[:n]}
		}
		if err != nil {
			return
		}
	}
}
