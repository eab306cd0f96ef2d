package redisstore

import "github.com/dripfeed/dripfeed/outbound/leak"

// row reads the row of refusals, of which the script packs the counts into one number.
func row(f []float64) leak.Row {
	if f[1] == 0 {
		return leak.Row{}
	}
	counts := int64(f[0])
	return leak.Row{
		Calls: counts >> 20, Refused: counts >> 8 & 4095, Trust: counts&255 - 3,
		Top: f[1], Per: f[2], Fast: f[3], Until: nanos(f[4]),
	}
}
