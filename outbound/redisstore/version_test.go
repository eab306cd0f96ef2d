package redisstore

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The script uses commands, their options, and functions that Redis 6.2 has, and nothing else. Each
// is listed here: look up since when a server has it before another one is added.
func TestScript_NeedsNoMoreThanRedis62(t *testing.T) {
	code := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(script, "")
	require.False(t, strings.HasPrefix(script, "#!"), "since 7.0")
	within := func(pattern, allowed string) {
		t.Helper()
		known := " " + allowed + " "
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(code, -1) {
			require.Contains(t, known, " "+m[1]+" ", "%s", m[0])
		}
	}
	within(`call\(\s*'(\w+)'`, "DEL HDEL HGET HGETALL HLEN HMGET HSET PEXPIRE TIME")
	within(`'([A-Z]{2,})'`, "DEL HDEL HGET HGETALL HLEN HMGET HSET PEXPIRE TIME") // no options: NX, XX, GT, LT of PEXPIRE are of 7.0
	require.NotRegexp(t, `(?:\b|redis\.p)call\(\s*[^'\s]`, code, "a command that this test does not see")
	within(`\b((?:redis|server|string|table|os|struct|cjson|cmsgpack|bit|debug|coroutine)\.\w+)`,
		"redis.call redis.pcall string.format string.gsub string.match string.sub table.insert table.remove table.sort")
	within(`\b(math\.\w+)`, "math.ceil math.exp math.floor math.fmod math.huge math.log math.max math.min")
	within(`\b(lib\.\w+)`, "lib.pack lib.unpack") // cmsgpack
	// Functions: Lua 5.1's, and the script's own.
	names := []string{"function", "rawget", "pcall", "tonumber", "error", "unpack", "and", "or", "not", "if", "elseif", "while", "until", "return", "in", "for"}
	for _, m := range regexp.MustCompile(`(?:local|function)\s+([\w, ]+)`).FindAllStringSubmatch(code, -1) {
		names = append(names, strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	for _, m := range regexp.MustCompile(`([\w.:]+)\s*\(`).FindAllStringSubmatch(code, -1) {
		if !strings.Contains(m[1], ".") {
			require.Contains(t, names, m[1])
		}
	}
	require.NotRegexp(t, `//|<<|>>|\bgoto\b|[^~]~[^=]|[^'<&]&|\|`, code, "operators of Lua 5.3")
}

// The Go code asks the server for the script only, and uses of its client what knows no command.
func TestStore_SendsTheScriptOnly(t *testing.T) {
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	of := map[string]string{
		"redis":  "UniversalClient Client ClusterClient Cmd Cmder Pipeliner NewCmd Error HasErrorPrefix ErrClosed ErrPoolTimeout ErrPoolExhausted",
		"rdb":    "Process Pipeline Options",
		"pipe":   "Process Exec",
		"client": "ReloadState MasterForKey",
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "hasPrefix" { // words of replies
					return false
				}
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "HasErrorPrefix" {
					return false
				}
			case *ast.SelectorExpr:
				x := ""
				switch e := n.X.(type) {
				case *ast.Ident:
					x = e.Name
				case *ast.SelectorExpr:
					x = e.Sel.Name
				}
				if allowed, ok := of[x]; ok {
					require.Contains(t, strings.Fields(allowed), n.Sel.Name, "%s: %s.%s", name, x, n.Sel.Name)
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && regexp.MustCompile(`^[A-Z]{3,}$`).MatchString(text) {
					require.Contains(t, []string{"EVAL", "EVALSHA"}, text, name)
				}
			}
			return true
		})
	}
}
