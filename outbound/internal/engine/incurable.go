package engine

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"regexp"
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
		errors.As(err, &alert) && alert.Op == "remote error" && rejected.MatchString(alert.Err.Error())
}

// rejected matches the alerts with which a server ends a handshake, as crypto/tls names them. With
// TLS 1.3 they may come with the first answer. Others come later, too, when a request was sent.
var rejected = regexp.MustCompile("certificate|authority|handshake|denied|version|security|fallback|extension|name|PSK|protocol|hello")
