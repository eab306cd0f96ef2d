package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
)

const (
	maxWait = key.Forever
	never   = key.Never
)

var start = key.Start

func now() time.Duration                     { return key.Now() }
func later(t, d time.Duration) time.Duration { return key.Later(t, d) }
