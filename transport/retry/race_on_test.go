//go:build race

package retry

const raced = true
