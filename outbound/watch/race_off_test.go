//go:build !race

package watch

const raced = false
