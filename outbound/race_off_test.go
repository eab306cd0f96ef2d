//go:build !race

package outbound

const underRace = false
