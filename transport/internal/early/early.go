// Package early has what package retry tells package transport.
package early

import "errors"

// Err is what a Base returns for a request that was admitted before its time: nothing
// has gone out, not even to dial, so that the request costs nothing.
var Err = errors.New("retry: not yet")
