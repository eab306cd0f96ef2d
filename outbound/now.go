package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
)

const never = key.Never

var start = key.Start

func now() time.Duration { return key.Now() }
