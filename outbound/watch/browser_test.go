//go:build unix

package watch

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// chromium is a browser with one tab, driven by the DevTools protocol: JSON that ends with a NUL, to its
// descriptor 3 and from its descriptor 4.
type chromium struct {
	t       *testing.T
	in      *os.File
	session string // of the tab

	mu      sync.Mutex // guards what follows
	replies map[int]chan reply
	heard   []reply // events
	last    int
}

// reply is an answer, or an event.
type reply struct {
	ID     int
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct{ Message string }
}

// newChromium starts a browser, which ends with the test.
func newChromium(t *testing.T) *chromium {
	path, err := exec.LookPath("chromium")
	if err != nil {
		fatalIf(t, os.Getenv("DRIPFEED_REQUIRE_BROWSER") == "1", "DRIPFEED_REQUIRE_BROWSER=1: %v", err)
		t.Skip("there is no chromium: ", err)
	}
	theirIn, in, err := os.Pipe()
	check(t, err)
	out, theirOut, err := os.Pipe()
	check(t, err)
	home := t.TempDir()
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--remote-debugging-pipe", "--user-data-dir="+home, "--no-first-run",
		"--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
		"--disable-breakpad", "--disable-crash-reporter", "--hide-scrollbars", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(t, cmd.Start())
	theirIn.Close()
	theirOut.Close()
	c := &chromium{t: t, in: in, replies: map[int]chan reply{}}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	go c.read(out)
	t.Cleanup(func() {
		c.session = ""
		c.send("Browser.close", nil) // which lets it write what it has to, before its files go
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the group, with all that it has started
		<-ended
		in.Close()
	})
	var target struct{ TargetID, SessionID string }
	c.call("Target.createTarget", args{"url": "about:blank"}, &target)
	c.call("Target.attachToTarget", args{"targetId": target.TargetID, "flatten": true}, &target)
	c.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Accessibility"} {
		c.call(domain+".enable", nil, nil)
	}
	return c
}

// args are those of a call.
type args = map[string]any

// read reads what the browser sends until it ends.
func (c *chromium) read(out *os.File) {
	defer out.Close()
	in := bufio.NewReaderSize(out, 1<<16)
	for {
		text, err := in.ReadBytes(0)
		c.mu.Lock()
		if err != nil {
			for id, waiting := range c.replies {
				close(waiting)
				delete(c.replies, id)
			}
			c.replies = nil
			c.mu.Unlock()
			return
		}
		var r reply
		if json.Unmarshal(text[:len(text)-1], &r) == nil && r.ID == 0 {
			c.heard = append(c.heard, r)
		} else if waiting := c.replies[r.ID]; waiting != nil {
			waiting <- r
			delete(c.replies, r.ID)
		}
		c.mu.Unlock()
	}
}

// send asks for something and returns where the answer comes.
func (c *chromium) send(method string, params args) (chan reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.replies == nil {
		return nil, errors.New("the browser has ended")
	}
	c.last++
	message := args{"id": c.last, "method": method, "params": params}
	if params == nil {
		message["params"] = args{}
	}
	if c.session != "" {
		message["sessionId"] = c.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	waiting := make(chan reply, 1)
	c.replies[c.last] = waiting
	_, err = c.in.Write(append(text, 0))
	return waiting, err
}

// call asks for something and waits for the answer.
func (c *chromium) call(method string, params args, result any) {
	c.t.Helper()
	waiting, err := c.send(method, params)
	fatalIf(c.t, err != nil, "%v: %v", method, err)
	select {
	case r, ok := <-waiting:
		fatalIf(c.t, !ok, "%v: the browser has ended", method)
		fatalIf(c.t, r.Error != nil, "%v: %+v", method, r.Error)
		if result != nil {
			check(c.t, json.Unmarshal(r.Result, result))
		}
	case <-time.After(2 * time.Minute):
		c.t.Fatal(method, ": no answer")
	}
}

// eval returns what a JavaScript expression is in the page, as JSON has it. It waits for a promise.
func (c *chromium) eval(expression string) any {
	c.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	c.call("Runtime.evaluate", args{"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}, &r)
	fatalIf(c.t, r.ExceptionDetails != nil, "%s\n%+v", expression, r.ExceptionDetails)
	return r.Result.Value
}

// is checks what a JavaScript expression is in the page.
func (c *chromium) is(expression string, want any, words string, args ...any) {
	c.t.Helper()
	equal(c.t, c.eval(expression), want, words, args...)
}

// says checks that the text of an element has these parts. A part may be several to choose from, with | between them. Its
// plain spaces stand for others.
func (c *chromium) says(element string, parts ...string) {
	c.t.Helper()
	text, _ := c.eval(element + "?.textContent").(string)
	text += strings.NewReplacer("\u00a0", " ", "\u202f", " ").Replace(text)
	for _, p := range parts {
		errorIf(c.t, !slices.ContainsFunc(strings.Split(p, "|"), func(p string) bool { return strings.Contains(text, p) }),
			"%s does not say %q: %s", element, p, text)
	}
}

// until waits until a JavaScript expression is true in the page.
func (c *chromium) until(expression string) {
	c.t.Helper()
	c.eval(`new Promise((yes, no) => {
		const began = performance.now();
		(function look() {
			if (` + expression + `) yes();
			else if (performance.now() - began > 60000) no(new Error('never true: ' + ` + strconv.Quote(expression) + ` + ' in ' + document.body.innerText));
			else setTimeout(look, 10);
		})();
	})`)
}

// open shows a page that has data.
func (c *chromium) open(url string) {
	c.t.Helper()
	c.call("Page.navigate", args{"url": url}, nil)
	c.until(`location.href.startsWith(` + strconv.Quote(url) + `) && document.readyState === 'complete' && document.querySelector('.card')`)
}

// click presses the mouse where the element is that a JavaScript expression names.
func (c *chromium) click(element string) {
	c.t.Helper()
	at, _ := c.eval(`(() => { const e = ` + element + `; e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()`).([]any)
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		c.call("Input.dispatchMouseEvent", args{"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1}, nil)
	}
}

// view sets the window's width and the colour scheme.
func (c *chromium) view(width int, scheme string) {
	c.t.Helper()
	c.call("Emulation.setDeviceMetricsOverride", args{"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
	c.call("Emulation.setEmulatedMedia", args{"features": []args{{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}}}, nil)
}

// events returns what the browser has sent of a kind until now.
func (c *chromium) events(method string) (all []json.RawMessage) {
	c.eval("0") // what it has sent before it answers this is here then
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.heard {
		if r.Method == method {
			all = append(all, r.Params)
		}
	}
	return all
}

// meetsNoFault checks that the page has met no error: of scripts, of the policy, in the console.
func (c *chromium) meetsNoFault() {
	c.t.Helper()
	for _, method := range []string{"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"} {
		for _, e := range c.events(method) {
			errorIf(c.t, method != "Log.entryAdded" || !strings.Contains(string(e), `"source":"network"`), "%s", e)
		}
	}
}
