package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// maxLength is the length of the longest string, and of the longest list, that
// Redis takes.
const maxLength = 512 << 20

// readReply reads one whole value of RESP2 or RESP3, including nested ones, and
// returns its bytes unchanged.
func readReply(r *bufio.Reader) ([]byte, error) {
	var raw bytes.Buffer
	for values := 1; values > 0; values-- {
		line, err := r.ReadBytes('\n')
		raw.Write(line)
		if err != nil {
			return raw.Bytes(), err
		}
		if len(line) < 3 || line[len(line)-2] != '\r' {
			return raw.Bytes(), fmt.Errorf("a line without its end: %q", line)
		}
		switch line[0] {
		case '+', '-', ':', '_', '#', ',', '(':
			continue
		case '$', '!', '=', '*', '~', '>', '%', '|':
		default:
			return raw.Bytes(), fmt.Errorf("no type that RESP has: %q", line)
		}
		n, err := strconv.Atoi(string(line[1 : len(line)-2]))
		if err != nil || n > maxLength {
			return raw.Bytes(), fmt.Errorf("no length: %q", line)
		}
		if n < 0 { // null in RESP2
			continue
		}
		switch line[0] {
		case '$', '!', '=':
			// Allocate no memory for a length before the bytes arrive.
			if _, err := io.CopyN(&raw, r, int64(n)+2); err != nil {
				return raw.Bytes(), err
			}
		case '*', '~', '>':
			values += n
		case '%':
			values += 2 * n
		case '|': // attributes come before their value
			values += 2*n + 1
		}
	}
	return raw.Bytes(), nil
}

// readRequest reads one command, as clients send it or as a line of words. It
// returns the bytes unchanged, and the words of a command sent as a list.
func readRequest(r *bufio.Reader) (raw []byte, words []string, err error) {
	first, err := r.Peek(1)
	if err != nil {
		return nil, nil, err
	}
	if first[0] != '*' {
		raw, err = r.ReadBytes('\n')
		for _, w := range bytes.Fields(raw) {
			words = append(words, string(w))
		}
		return raw, words, err
	}
	if raw, err = readReply(r); err != nil {
		return raw, nil, err
	}
	return raw, wordsOf(raw), nil
}

// wordsOf returns the strings of a list of strings.
func wordsOf(raw []byte) []string {
	var words []string
	_, rest, _ := bytes.Cut(raw, []byte("\r\n"))
	for len(rest) > 0 && rest[0] == '$' {
		length, after, _ := bytes.Cut(rest[1:], []byte("\r\n"))
		n, err := strconv.Atoi(string(length))
		if err != nil || n < 0 || n+2 > len(after) {
			break
		}
		words = append(words, string(after[:n]))
		rest = after[n+2:]
	}
	return words
}
