// Package early has the error by which package retry tells package transport that a request
// never left.
package early

import "errors"

// Err is the error of a Base for a request that the limiter admitted before the API's pause
// was over. The Base did not even dial, so the request costs nothing.
var Err = errors.New("retry: not yet")
