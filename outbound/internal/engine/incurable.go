package engine

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
)

// Incurable reports whether a client failed to connect, and needs another configuration. A side
// rejects the other's certificate or TLS, or the system denies access to a socket.
func Incurable(err error) bool {
	var (
		unverified *tls.CertificateVerificationError
		invalid    x509.CertificateInvalidError
		unknown    x509.UnknownAuthorityError
		host       x509.HostnameError
		noTLS      tls.RecordHeaderError
		alert      *net.OpError
	)
	return errors.As(err, &unverified) || errors.As(err, &invalid) || errors.As(err, &unknown) || errors.As(err, &host) ||
		errors.As(err, &noTLS) || errors.Is(err, fs.ErrPermission) ||
		// The alert of a server in trouble is another: crypto/tls names none of them.
		errors.As(err, &alert) && alert.Op == "remote error" && alert.Err.Error() != "tls: internal error"
}
