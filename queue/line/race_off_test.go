//go:build !race

package line

const raced = false
