package redistest

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"strings"
)

// readValue reads one whole value of RESP2 or RESP3, a command or a reply, including nested ones.
// It returns the bytes unchanged.
func readValue(r *bufio.Reader) ([]byte, error) {
	var raw bytes.Buffer
	for values := 1; values > 0; values-- {
		line, err := r.ReadBytes('\n')
		raw.Write(line)
		if err != nil {
			return raw.Bytes(), err
		}
		if !strings.ContainsRune("$!=*~>%|", rune(line[0])) { // it has no length
			continue
		}
		n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
		if err != nil {
			return raw.Bytes(), err
		}
		if n < 0 { // null in RESP2
			continue
		}
		switch line[0] {
		case '$', '!', '=':
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

// commandOf returns the first word of a command in capitals.
func commandOf(raw []byte) string {
	if parts := bytes.SplitN(raw, []byte("\r\n"), 4); len(parts) == 4 { // "*2", "$3", "GET", the rest
		return strings.ToUpper(string(parts[2]))
	}
	return ""
}
