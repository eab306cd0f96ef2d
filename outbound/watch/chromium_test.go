//go:build unix

package watch

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// site is a page on a server: what an office shows, and rows with hostile names. Its first limiter is a real bucket.
type site struct {
	*httptest.Server
	fake   *fake
	bucket *outbound.Bucket
	down   atomic.Bool  // it breaks connections off
	turned atomic.Bool  // the limiters come in another order
	denies atomic.Value // why nobody may act; "": everybody may
	now    time.Time
}

func newSite(t *testing.T) *site {
	s := &site{bucket: heldBucket(t), now: time.Now()}
	s.denies.Store("")
	s.fake = &fake{buckets: map[[2]string]*outbound.Bucket{{"shopify", "snow-devil"}: s.bucket}, show: func(q Query) Snapshot {
		all := office(s.now)
		first := &all.Limiters[0]
		if e, err := s.bucket.Explain(t.Context(), outbound.Cost{1}); err == nil && e.States[0].HeldFor == 0 {
			first.HeldFor, first.Severity, first.Trouble = 0, Calm, nil
		}
		for _, name := range hostileNames {
			all.Limiters = append(all.Limiters, hostileRow(name))
			all.Stores = append(all.Stores, Store{Name: name, Err: name, Unavailable: true, Trouble: []string{name}})
			all.Events = append(all.Events, Event{Name: name, Kind: name, Words: name})
		}
		if s.turned.Load() {
			all.Limiters[0], all.Limiters[1] = all.Limiters[1], all.Limiters[0] // equals, as whose levels have changed
			all.Limiters[4].Severity = Stopped
			all.Limiters[3].Explain.Refusals = 5
			all.Stores[0].Stats.Requests.Count, all.Stores[0].Stats.Requests.Time = all.Stores[0].Stats.Requests.Count+10, all.Stores[0].Stats.Requests.Time+2*time.Second
		}
		if q.Search != "" {
			all.Limiters = all.Limiters[8:9]
		}
		return all
	}}
	page := &server{source: s.fake, allow: func(*http.Request, Action) error {
		if why := s.denies.Load().(string); why != "" {
			return fmt.Errorf("%s", why)
		}
		return nil
	}}
	mux := http.NewServeMux()
	mux.Handle("/debug/dripfeed", page)
	mux.Handle("/read-only/", &server{source: s.fake})
	mux.Handle("/board/", boardAtWork(t))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.down.Load() {
			panic(http.ErrAbortHandler)
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// boardAtWork is a real Board of limiters that have done something.
func boardAtWork(t *testing.T) *Board {
	b, bucket := boardOf(t)
	b.Add("calm", outbound.Must(outbound.NewBucket("k", outbound.PerSecond(1e6)))).Acquire(t.Context(), outbound.Cost{1})
	b.Add("github", bucket).Acquire(t.Context(), outbound.Cost{1})
	of := AddKeyed(b, "tenants", tenants(10, outbound.PerHour(1)), func(k string) string { return k })
	for range 2 {
		of("acme").Acquire(t.Context(), outbound.Cost{1})
	}
	return b
}

// checkBoard looks at what a real Board shows.
func checkBoard(t *testing.T, c *chromium, address string) {
	c.open(address)
	for name, words := range map[string][]string{
		"github":         {"Stopped: held for 1 h|Stopped: held for 59 min", "10 per 1s", "refused by us", "A call could leave in 1 h|A call could leave in 59 min"},
		"calm":           {"Calm", " of 1 000 000 in the last second", "admitted by this process since", "A call could leave now"},
		"tenants":        {"1 key · this process", "1 refused by us", "Busy"},
		"tenants / acme": {"Busy", "capacity in 1 h1/h in the long run|capacity in 59 min", "capacity for 1 in ", "A call could leave in 1 h|A call could leave in 59 min"},
	} {
		text, _ := c.eval(cardOf(name) + "?.textContent").(string)
		text = strings.NewReplacer("\u00a0", " ", "\u202f", " ").Replace(text)
		for _, w := range words {
			if !slices.ContainsFunc(strings.Split(w, "|"), func(w string) bool { return strings.Contains(text, w) }) {
				t.Errorf("%s does not say %q: %s", name, w, text)
			}
		}
	}
}

// checkReadOnly looks at a page that may not act.
func checkReadOnly(t *testing.T, c *chromium, address string) {
	c.open(address)
	if n := c.eval("document.querySelectorAll('.acts button').length"); n != 0.0 {
		t.Errorf("a page that may not act has %v buttons", n)
	}
	if text, _ := c.eval("document.querySelector('footer').textContent").(string); !strings.Contains(text, "Board.Allow is not set") {
		t.Errorf("it does not say why: %s", text)
	}
}

// cardOf is JavaScript for the card of a limiter.
func cardOf(name string) string {
	return fmt.Sprintf("[...document.querySelectorAll('.card')].find(e => e.querySelector('h2, h3').textContent === %q)", name)
}

// buttonOf is JavaScript for a button on it.
func buttonOf(name, button string) string {
	return fmt.Sprintf("[...%s.querySelectorAll('button')].find(e => e.textContent.startsWith(%q))", cardOf(name), button)
}

// The page shows and does in a browser what the board says.
func TestPage_InChromium(t *testing.T) {
	c, s := newChromium(t), newSite(t)
	address := s.URL + "/debug/dripfeed"
	c.view(1400, "light")
	checkBoard(t, c, s.URL+"/board/")
	checkReadOnly(t, c, s.URL+"/read-only/")
	c.open(address + "?theme=none")

	c.eval("document.querySelectorAll('.card > details:last-child').forEach(e => e.open = true)") // the ledgers
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{360, 800, 1400} {
			c.view(width, scheme)
			if got := c.eval("document.documentElement.scrollWidth"); got != float64(width) {
				t.Errorf("%s, %d px wide: the page is %v px wide", scheme, width, got)
			}
		}
		if got := c.eval("getComputedStyle(document.body).backgroundColor"); (got == "rgb(14, 20, 24)") != (scheme == "dark") {
			t.Errorf("%s: the background is %v", scheme, got)
		}
		if bad := c.eval(contrasts); bad != "" {
			t.Errorf("%s: %v", scheme, bad)
		}
	}
	if got := c.eval("[every, every = 100][0]"); got != 1000.0 { // what follows waits for polls
		t.Errorf("a poll each %v ms", got)
	}
	checkNames(t, c)
	checkHostileNames(t, c)
	checkWords(t, c)
	checkThatPollsDisturbNobody(t, c, s)
	checkActions(t, c, s)
	checkSearch(t, c, s)
	for _, fault := range c.faults() {
		t.Error("an error in the page:", fault)
	}
	for _, e := range c.events("Log.entryAdded") {
		if !strings.Contains(string(e), "403") { // Allow has refused once
			t.Errorf("%s", e)
		}
	}
	checkOutage(t, c, s)
	checkPolicy(t, c)

	polls := 0
	for _, e := range c.events("Network.requestWillBeSent") {
		var sent struct{ Request struct{ URL, Method string } }
		if err := json.Unmarshal(e, &sent); err != nil {
			t.Fatal(err)
		}
		switch url := sent.Request.URL; {
		case strings.HasPrefix(url, s.URL+"/board/"), strings.HasPrefix(url, s.URL+"/read-only/"):
		case strings.HasPrefix(url, address+"?") && strings.Contains(url, "theme=none"):
			polls++
		case !strings.HasPrefix(url, "data:") && url != "about:blank" && url != "https://elsewhere.example/x.png": // which checkPolicy asks for
			t.Error("the page asks for", url)
		}
	}
	if polls < 5 {
		t.Errorf("%d requests seen", polls)
	}
}

// contrasts is JavaScript for what is hard to read; "": nothing is.
const contrasts = `(() => {
	const rgb = s => s.match(/[\d.]+/g).map(Number);
	const light = c => c.slice(0, 3).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
	const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
	const back = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } };
	const bad = [], look = (what, a, b, least) => { const n = ratio(a, b); if (!(n >= least)) bad.push(what + ' ' + n.toFixed(2)); };
	let texts = 0, bars = 0;
	const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (all.nextNode()) {
		const e = all.currentNode.parentElement;
		if (!all.currentNode.data.trim() || !e.checkVisibility() || e.tagName === 'SCRIPT') continue;
		texts++;
		look(all.currentNode.data.slice(0, 40), rgb(getComputedStyle(e).color), back(e), 4.8);
	}
	const find = document.getElementById('find');
	look('placeholder', rgb(getComputedStyle(find, '::placeholder').color), back(find), 4.8);
	for (const e of document.querySelectorAll('.bar div')) { bars++; look('bar', back(e), back(e.parentElement), 4.2); }
	for (const e of document.querySelectorAll('path')) { bars++; look('chart', rgb(getComputedStyle(e).fill), back(e.closest('.card')), 4.2); }
	if (texts < 100 || bars < 20) bad.push('only ' + texts + ' texts and ' + bars + ' bars were seen');
	return [...new Set(bad)].join('; ');
})()`

// checkNames asks the browser for the names that a screen reader gets.
func checkNames(t *testing.T, c *chromium) {
	type value struct{ Value any }
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name value
		}
	}
	c.call("Accessibility.getFullAXTree", nil, &tree)
	least := map[string]int{"meter": 10, "button": 10, "image": 7, "searchbox": 1, "link": 5, "heading": 10, "article": 8, "main": 1, "banner": 1, "search": 1, "contentinfo": 1, "status": 1, "alert": 0}
	for _, n := range tree.Nodes {
		role, _ := n.Role.Value.(string)
		if _, ok := least[role]; !ok || n.Ignored {
			continue
		}
		least[role]--
		name, _ := n.Name.Value.(string)
		switch role {
		case "banner", "contentinfo", "search", "status", "alert":
		default:
			if strings.TrimSpace(name) == "" {
				t.Errorf("a %s has no name", role)
			}
		}
	}
	for role, n := range least {
		if n > 0 {
			t.Errorf("%d more of %s are expected", n, role)
		}
	}
}

// Trap 6 again: names are text, and nothing else.
func checkHostileNames(t *testing.T, c *chromium) {
	if got := c.eval("window.hit"); got != nil {
		t.Error("a name was carried out")
	}
	if n := c.eval("document.querySelectorAll('main img, main script, #wrong img, [onerror]').length"); n != 0.0 {
		t.Errorf("names became %v elements", n)
	}
	if text, _ := c.eval("document.querySelector('main').textContent").(string); strings.Count(text, hostileNames[0]) < 5 || strings.Contains(text, strings.Repeat("long", 1000)) {
		t.Error("names are not shown, or not shortened")
	}
	if n := c.eval("document.querySelectorAll('.cards > .card[id]').length"); n != float64(8+len(hostileNames)) {
		t.Errorf("%v cards", n)
	}
}

// checkWords looks for what a Board knows.
func checkWords(t *testing.T, c *chromium) {
	for name, words := range map[string][]string{
		"shopify / snow-devil": {"Stopped: held for 12 s (rate)", "this process", "39 of 40", "48 refused by us", "1 refused by the API", "limit 2/s", "0 calls/s now",
			"A call could leave in 12 s", "would wait 11.8s for the hold to end", "the API has refused the latest call", "slowed to 90 %", `limit "leaky": level 39 of 40, capacity for 1 now`},
		"payments": {"shared by all processes, state of 14 s ago", "connection refused", "0 of 100 in the last second", "200 ms / 1.4 s", "131 204", "by this process since",
			"By the state of 14 s ago, a call could leave in 1.5 s."},
		"llm / batch": {"8 205 of 8 000, bookings included", "5 of 24 in flight", "16", "6.4 s", "350 ms", "2 791 300", "units for tokens",
			"A call could leave in at least 6.7 s", `would wait at least 6.7s for limit "tokens"`, "16 ahead in the queue", "calls are booked for the next 6s", "capacity for 400 in 445ms", "5 of 24 in flight",
			"Who used most, in this process: \u2068nightly report\u2069 62 % of tokens, \u2068search index\u2069 55 % of calls, \u2068acme/eu\u2069 9 % of calls",
			"1 223 calls used, 1 730 610 tokens used · 1 190 calls waited · price 1.73", "12 calls refused · 2 804 calls waited"},
		"github / acme": {"11 of 12 in the last second", "other clients use 9 %", "as of 300 ms ago", "reset in 26 min", "345 of 5 000", "A call could leave now"},
		"tenants":       {"12 340 keys", "2 204 118"},
		"redis":         {"Unavailable for 14 s"},
	} {
		text, _ := c.eval(cardOf(name) + ".textContent").(string)
		text = strings.NewReplacer("\u00a0", " ", "\u202f", " ").Replace(text)
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q: %s", name, w, text)
			}
		}
	}
	if text, _ := c.eval("document.getElementById('events').textContent").(string); !strings.Contains(text, "more slowly (speed 0.56) (and 3 more before)") {
		t.Errorf("an event does not say how often it was: %s", text)
	}
	for d, want := range durations {
		if got, _ := c.eval(fmt.Sprintf("dur(%d)", d)).(string); strings.ReplaceAll(got, "\u00a0", " ") != want {
			t.Errorf("dur(%d) is %q, want %q", d, got, want)
		}
	}
	if got := c.eval("document.querySelector('#wrong li').textContent"); !strings.Contains(got.(string), "No call leaves for 12\u00a0s: ") {
		t.Errorf("a number may be parted from its unit: %q", got)
	}
	if text, _ := c.eval("document.querySelector('main').textContent").(string); strings.Contains(text, "hooli") || !strings.Contains(text, "12\u202f338 more are not shown") {
		t.Error("a calm key is shown")
	}
	// Trap 18, where nothing counts the calls in the window: of a limit that lets one unit go at a time
	// a level says nothing.
	if got := c.eval("[...document.querySelectorAll('#keys .text')].filter(e => e.textContent.includes(' of 1')).length + document.querySelectorAll('#keys .full').length"); got != 0.0 {
		t.Errorf("%v limits that let one unit go at a time look full", got)
	}
	// Trap 19: a quiet minute shows no quantiles.
	if text, _ := c.eval(cardOf("tenants / umbrella") + ".textContent").(string); strings.Contains(text, "p99") || strings.Contains(text, "calls/s") {
		t.Error("what nobody counts is shown:", text)
	}
	// Trap 30: each number of one process is labelled so.
	if got := c.eval("[...document.querySelectorAll('dt')].filter(e => e.textContent.startsWith('admitted') && !e.textContent.startsWith('admitted by this process since ')).length"); got != 0.0 {
		t.Errorf("%v counts do not say whose they are", got)
	}
	if got := c.eval("document.querySelector('#wrong li').textContent"); !strings.Contains(got.(string), "shopify / snow-devil") {
		t.Errorf("at the top: %v", got)
	}
	for name, open := range map[string]bool{"shopify / snow-devil": true, "github / acme": false} {
		if got := c.eval(cardOf(name) + ".querySelector('details').open"); got != open {
			t.Errorf("the fold of %s is open: %v", name, got)
		}
	}
}

// polled waits until the page has asked twice more by itself, so once with what a test has done before.
func polled(c *chromium) {
	c.eval("window.already = performance.getEntriesByType('resource').length")
	c.until("performance.getEntriesByType('resource').length >= already + 2")
}

func checkThatPollsDisturbNobody(t *testing.T, c *chromium, s *site) {
	c.eval(cardOf("llm / batch") + ".querySelector('summary').click()")
	c.eval(`(() => {
		const card = ` + cardOf("llm / batch") + `;
		` + buttonOf("github / acme", "Pause") + `.focus();
		const words = card.querySelector('pre').firstChild;
		getSelection().setBaseAndExtent(words, 0, words, 12);
		scrollTo(0, 300);
		window.was = [...document.querySelectorAll('.cards > .card[id]')];
		window.moved = 0;
		new MutationObserver(all => moved += all.length).observe(document.body, {childList: true, subtree: true});
	})()`)
	s.turned.Store(true)
	polled(c)
	for what, expression := range map[string]string{
		"focus":     "document.activeElement === " + buttonOf("github / acme", "Pause"),
		"fold":      cardOf("llm / batch") + ".querySelector('details').open",
		"selection": `getSelection().toString() === '"llm batch":'`,
		"scroll":    "scrollY === 300",
		"nodes":     "was.every((e, i) => e === document.querySelectorAll('.cards > .card[id]')[i])",
		"moves":     "moved === 0",
	} {
		if c.eval(expression) != true {
			t.Errorf("a poll has disturbed: %s", what)
		}
	}
	if text, _ := c.eval(cardOf("redis") + ".textContent").(string); !strings.Contains(text, "mean request, last minute200\u00a0ms") {
		t.Errorf("ten slow trips are not seen: %s", text)
	}
	c.eval("document.activeElement.blur(); getSelection().removeAllRanges()")
	polled(c)
	if c.eval(cardOf("llm / batch")+".querySelector('pre').textContent.includes('refused 5 calls in a row')") != true {
		t.Error("what nobody has selected any more does not change")
	}
	if at := c.eval("['shopify / snow-devil', 'payments', 'github / acme', 'stripe'].map(n => [...document.querySelectorAll('#cards > .card')].findIndex(e => e.querySelector('h2').textContent === n)).join()"); at != "0,1,3,4" {
		t.Errorf("of the first three, equals that change places and one that has become like them, and the fourth the places are %v", at)
	}
	s.turned.Store(false)
	polled(c) // what follows presses buttons, which must not change places
}

// checkActions presses buttons.
func checkActions(t *testing.T, c *chromium, s *site) {
	const name = "shopify / snow-devil"
	s.denies.Store("<i>ask root</i>")
	c.click(buttonOf(name, "Resume"))
	c.until("document.querySelector('dialog').open")
	if text, _ := c.eval("document.querySelector('dialog').innerText").(string); !strings.Contains(text, "in this process only") || !strings.Contains(text, "Resume "+name+"?") {
		t.Error("the dialog says", text)
	}
	c.click("document.getElementById('yes')")
	c.until("document.getElementById('fault').textContent.includes('<i>ask root</i>')")
	if heldFor(t, s.bucket) == 0 {
		t.Error("resumed against Allow")
	}
	s.denies.Store("")
	c.click("document.getElementById('yes')")
	c.until("!document.querySelector('dialog').open && " + cardOf(name) + ".textContent.includes('Calm')")
	if d := heldFor(t, s.bucket); d != 0 {
		t.Errorf("held for %v after Resume", d)
	}
	c.click(buttonOf(name, "Pause"))
	c.until("document.querySelector('dialog').open")
	c.eval("document.getElementById('long').value = '15m'")
	c.click("document.getElementById('yes')")
	c.until("!document.querySelector('dialog').open && " + cardOf(name) + ".textContent.includes('Stopped')")
	if d := heldFor(t, s.bucket); d < 14*time.Minute || d > 15*time.Minute {
		t.Errorf("held for %v, not for 15 minutes", d)
	}
	c.click(buttonOf("payments", "Pause"))
	c.until("document.querySelector('dialog').open")
	if text, _ := c.eval("document.querySelector('dialog').innerText").(string); !strings.Contains(text, "for every process") || !strings.Contains(text, "Pause payments?") {
		t.Error("of a shared bucket the dialog says", text)
	}
	c.click("document.getElementById('no')")
	c.until("!document.querySelector('dialog').open")
}

// A page whose address has a user and a password, as in http://user:password@host/, loads, searches and acts.
func TestPage_LoadsFromAnAddressWithPassword(t *testing.T) {
	c, s := newChromium(t), newSite(t)
	closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ops" || password != "secret" {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who is it?", http.StatusUnauthorized)
			return
		}
		s.Config.Handler.ServeHTTP(w, r)
	}))
	defer closed.Close()
	c.view(1400, "light")
	c.call("Page.navigate", args{"url": strings.Replace(closed.URL, "http://", "http://ops:secret@", 1) + "/debug/dripfeed?theme=none"}, nil)
	c.until("location.pathname === '/debug/dripfeed' && document.readyState === 'complete' && document.querySelector('.card')")
	c.click(buttonOf("shopify / snow-devil", "Resume"))
	c.until("document.querySelector('dialog').open")
	c.click("document.getElementById('yes')")
	c.until("!document.querySelector('dialog').open")
	if d := heldFor(t, s.bucket); d != 0 {
		t.Errorf("held for %v after Resume", d)
	}
	c.eval("document.getElementById('find').focus()")
	c.call("Input.insertText", args{"text": "hooli"}, nil)
	c.until("document.querySelectorAll('.cards > .card[id]').length === 1 && location.search === '?theme=none&q=hooli'")
	for _, fault := range c.faults() {
		t.Error("an error in the page:", fault)
	}
}

func checkSearch(t *testing.T, c *chromium, s *site) {
	c.eval("document.getElementById('freeze').click(); document.getElementById('find').focus()") // a search ends the freeze
	c.call("Input.insertText", args{"text": "hooli"}, nil)
	c.until("document.querySelectorAll('.cards > .card[id]').length === 1 && location.search === '?theme=none&q=hooli'")
	if text, _ := c.eval("document.querySelector('main').textContent").(string); !strings.Contains(text, "tenants / hooli") {
		t.Error("a key that is searched is not shown:", text)
	}
	s.fake.mu.Lock()
	if q := s.fake.asked[len(s.fake.asked)-1]; q.Search != "hooli" || q.Rows != 50 {
		t.Errorf("asked for %+v", q)
	}
	s.fake.mu.Unlock()
	c.eval("document.getElementById('find').value = ''; document.getElementById('find').dispatchEvent(new Event('input'))")
	c.until("document.querySelectorAll('.cards > .card[id]').length > 8")
	c.click("document.querySelector('#more button')")
	c.until("document.querySelector('main').textContent.includes('tenants / hooli')")
	s.fake.mu.Lock()
	if q := s.fake.asked[len(s.fake.asked)-1]; q.Search != "" || q.Rows != 200 {
		t.Errorf("asked for %+v after Show more", q)
	}
	s.fake.mu.Unlock()
	for what, change := range map[string][2]string{
		"frozen": {"document.getElementById('freeze').click()", "document.getElementById('freeze').click()"},
		"hidden": {"Object.defineProperty(document, 'hidden', {value: true, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))",
			"delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"},
	} {
		c.eval(change[0])
		// The page has one timer, which poll has ended; and poll, which all else calls, asks nothing.
		before := c.eval("performance.getEntriesByType('resource').length")
		if got := c.eval("poll().then(() => asking === null && performance.getEntriesByType('resource').length === " + fmt.Sprint(before) + ")"); got != true {
			t.Errorf("a page that is %s goes on asking", what)
		}
		c.eval(change[1])
		polled(c)
	}
}

func checkOutage(t *testing.T, c *chromium, s *site) {
	banner := "document.getElementById('old')"
	if c.eval(banner+".checkVisibility()") != false {
		t.Error("there is a banner while all is well")
	}
	c.eval("window.drawn = fillStore; fillStore = () => { throw new Error('own') }")
	c.until(banner + ".textContent.startsWith('This page cannot show the answer (own). ')")
	c.eval("fillStore = drawn")
	c.until("!" + banner + ".checkVisibility() && fails === 0")
	s.down.Store(true)
	c.until(banner + ".checkVisibility() && " + banner + ".textContent.startsWith('No answer since ') && fails >= 2")
	if n := c.eval("document.querySelectorAll('.cards > .card[id]').length"); n == 0.0 {
		t.Error("what was known is gone")
	}
	s.down.Store(false)
	c.until("!" + banner + ".checkVisibility() && fails === 0")
	s.Close() // as when the program ends
	c.until(banner + ".checkVisibility()")
	if bad := c.eval(contrasts); bad != "" {
		t.Errorf("with the banner: %v", bad)
	}
}

// checkPolicy sees that the browser heeds the policy: that there was no error before says something then.
func checkPolicy(t *testing.T, c *chromium) {
	got := c.eval(`new Promise(yes => {
		addEventListener('securitypolicyviolation', e => yes(e.effectiveDirective), {once: true});
		new Image().src = 'https://elsewhere.example/x.png';
	})`)
	if got != "img-src" {
		t.Errorf("a foreign image: %v", got)
	}
	if got := c.eval("try { document.querySelector('footer').innerHTML = '<b>x</b>'; 'taken' } catch { 'refused' }"); got != "refused" {
		t.Errorf("markup from a string is %v", got)
	}
}
