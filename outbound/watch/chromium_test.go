//go:build unix

package watch

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
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
		c.says(cardOf(name), words...)
	}
}

// checkReadOnly looks at a page that may not act.
func checkReadOnly(t *testing.T, c *chromium, address string) {
	c.open(address)
	c.is("document.querySelectorAll('.acts button').length", 0.0, "buttons of a page that may not act")
	c.says("document.querySelector('footer')", "Board.Allow is not set")
}

// cardOf is JavaScript for the card of a limiter.
func cardOf(name string) string {
	return fmt.Sprintf("[...document.querySelectorAll('.card')].find(e => e.querySelector('h2, h3').textContent === %q)", name)
}

// buttonOf is JavaScript for a button on it.
func buttonOf(name, button string) string {
	return fmt.Sprintf("[...%s.querySelectorAll('button')].find(e => e.textContent.startsWith(%q))", cardOf(name), button)
}

// ask presses a button of a limiter, which opens the dialog.
func (c *chromium) ask(name, button string) {
	c.t.Helper()
	c.click(buttonOf(name, button))
	c.until("document.querySelector('dialog').open")
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
			c.is("document.documentElement.scrollWidth", float64(width), "%s: pixels", scheme)
		}
		c.is("getComputedStyle(document.body).backgroundColor === 'rgb(14, 20, 24)'", scheme == "dark", "%s: a dark background", scheme)
		c.is(contrasts, "", "%s", scheme)
	}
	c.is("[every, every = 100][0]", 1000.0, "milliseconds to a poll") // what follows waits for polls
	checkNames(t, c)
	checkHostileNames(t, c)
	checkWords(t, c)
	checkThatPollsDisturbNobody(t, c, s)
	checkActions(t, c, s)
	checkSearch(t, c, s)
	c.meetsNoFault()
	for _, e := range c.events("Log.entryAdded") {
		errorIf(t, !strings.Contains(string(e), "403"), "%s", e) // Allow has refused once
	}
	checkOutage(t, c, s)
	checkPolicy(t, c)

	polls := 0
	for _, e := range c.events("Network.requestWillBeSent") {
		var sent struct{ Request struct{ URL, Method string } }
		check(t, json.Unmarshal(e, &sent))
		switch url := sent.Request.URL; {
		case strings.HasPrefix(url, s.URL+"/board/"), strings.HasPrefix(url, s.URL+"/read-only/"):
		case strings.HasPrefix(url, address+"?") && strings.Contains(url, "theme=none"):
			polls++
		case !strings.HasPrefix(url, "data:") && url != "about:blank" && url != "https://elsewhere.example/x.png": // which checkPolicy asks for
			t.Error("the page asks for", url)
		}
	}
	errorIf(t, polls < 5, "%d requests seen", polls)
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
			errorIf(t, strings.TrimSpace(name) == "", "a %s has no name", role)
		}
	}
	for role, n := range least {
		errorIf(t, n > 0, "%d more of %s are expected", n, role)
	}
}

// Trap 6 again: names are text, and nothing else.
func checkHostileNames(t *testing.T, c *chromium) {
	c.is("window.hit", nil, "a name was carried out")
	c.is("document.querySelectorAll('main img, main script, #wrong img, [onerror]').length", 0.0, "elements made of names")
	text, _ := c.eval("document.querySelector('main').textContent").(string)
	errorIf(t, strings.Count(text, hostileNames[0]) < 5 || strings.Contains(text, strings.Repeat("long", 1000)),
		"names are not shown, or not shortened")
	c.is("document.querySelectorAll('.cards > .card[id]').length", float64(8+len(hostileNames)), "cards")
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
		c.says(cardOf(name), words...)
	}
	c.says("document.getElementById('events')", "more slowly (speed 0.56) (and 3 more before)")
	for d, want := range durations {
		c.is(fmt.Sprintf("dur(%d).replaceAll('\u00a0', ' ')", d), want, "dur(%d)", d)
	}
	// No number is parted from its unit.
	c.says("document.querySelector('#wrong li')", "No call leaves for 12\u00a0s: ", "shopify / snow-devil")
	c.is("document.querySelector('main').textContent.includes('hooli')", false, "a calm key is shown")
	c.says("document.querySelector('main')", "12\u202f338 more are not shown")
	// Trap 18, where nothing counts the calls in the window: of a limit that lets one unit go at a time
	// a level says nothing.
	c.is("[...document.querySelectorAll('#keys .text')].filter(e => e.textContent.includes(' of 1')).length + document.querySelectorAll('#keys .full').length", 0.0,
		"limits that let one unit go at a time and look full")
	// Trap 19: a quiet minute shows no quantiles.
	c.is("/p99|calls\\/s/.test("+cardOf("tenants / umbrella")+".textContent)", false, "what nobody counts is shown")
	// Trap 30: each number of one process is labelled so.
	c.is("[...document.querySelectorAll('dt')].filter(e => e.textContent.startsWith('admitted') && !e.textContent.startsWith('admitted by this process since ')).length", 0.0,
		"counts that do not say whose they are")
	for name, open := range map[string]bool{"shopify / snow-devil": true, "github / acme": false} {
		c.is(cardOf(name)+".querySelector('details').open", open, "the fold of %s is open", name)
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
		c.is(expression, true, "a poll leaves the %s", what)
	}
	c.says(cardOf("redis"), "mean request, last minute200\u00a0ms") // ten slow trips
	c.eval("document.activeElement.blur(); getSelection().removeAllRanges()")
	polled(c)
	c.is(cardOf("llm / batch")+".querySelector('pre').textContent.includes('refused 5 calls in a row')", true,
		"what nobody has selected any more changes")
	// Of the first three, equals have changed places, and one has become like them.
	c.is("['shopify / snow-devil', 'payments', 'github / acme', 'stripe'].map(n => [...document.querySelectorAll('#cards > .card')].findIndex(e => e.querySelector('h2').textContent === n)).join()", "0,1,3,4",
		"places")
	s.turned.Store(false)
	polled(c) // what follows presses buttons, which must not change places
}

// checkActions presses buttons.
func checkActions(t *testing.T, c *chromium, s *site) {
	const name = "shopify / snow-devil"
	s.denies.Store("<i>ask root</i>")
	c.ask(name, "Resume")
	c.is("['in this process only', 'Resume "+name+"?'].every(w => document.querySelector('dialog').innerText.includes(w))", true, "the dialog's words")
	c.click("document.getElementById('yes')")
	c.until("document.getElementById('fault').textContent.includes('<i>ask root</i>')")
	errorIf(t, heldFor(t, s.bucket) == 0, "resumed against Allow")
	s.denies.Store("")
	c.click("document.getElementById('yes')")
	c.until("!document.querySelector('dialog').open && " + cardOf(name) + ".textContent.includes('Calm')")
	d := heldFor(t, s.bucket)
	errorIf(t, d != 0, "held for %v after Resume", d)
	c.ask(name, "Pause")
	c.eval("document.getElementById('long').value = '15m'")
	c.click("document.getElementById('yes')")
	c.until("!document.querySelector('dialog').open && " + cardOf(name) + ".textContent.includes('Stopped')")
	d = heldFor(t, s.bucket)
	errorIf(t, d < 14*time.Minute || d > 15*time.Minute, "held for %v, not for 15 minutes", d)
	c.ask("payments", "Pause")
	c.is("['for every process', 'Pause payments?'].every(w => document.querySelector('dialog').innerText.includes(w))", true, "the dialog's words for a shared bucket")
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
	c.ask("shopify / snow-devil", "Resume")
	c.click("document.getElementById('yes')")
	c.until("!document.querySelector('dialog').open")
	d := heldFor(t, s.bucket)
	errorIf(t, d != 0, "held for %v after Resume", d)
	c.eval("document.getElementById('find').focus()")
	c.call("Input.insertText", args{"text": "hooli"}, nil)
	c.until("document.querySelectorAll('.cards > .card[id]').length === 1 && location.search === '?theme=none&q=hooli'")
	c.meetsNoFault()
}

func checkSearch(t *testing.T, c *chromium, s *site) {
	c.eval("document.getElementById('freeze').click(); document.getElementById('find').focus()") // a search ends the freeze
	c.call("Input.insertText", args{"text": "hooli"}, nil)
	c.until("document.querySelectorAll('.cards > .card[id]').length === 1 && location.search === '?theme=none&q=hooli'")
	c.says("document.querySelector('main')", "tenants / hooli")
	asked := func() Query {
		s.fake.mu.Lock()
		defer s.fake.mu.Unlock()
		return s.fake.asked[len(s.fake.asked)-1]
	}
	equal(t, asked(), Query{Search: "hooli", Rows: 50}, "the search asks for")
	c.eval("document.getElementById('find').value = ''; document.getElementById('find').dispatchEvent(new Event('input'))")
	c.until("document.querySelectorAll('.cards > .card[id]').length > 8")
	c.click("document.querySelector('#more button')")
	c.until("document.querySelector('main').textContent.includes('tenants / hooli')")
	equal(t, asked(), Query{Rows: 200}, "Show more asks for")
	for what, change := range map[string][2]string{
		"frozen": {"document.getElementById('freeze').click()", "document.getElementById('freeze').click()"},
		"hidden": {"Object.defineProperty(document, 'hidden', {value: true, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))",
			"delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))"},
	} {
		c.eval(change[0])
		// The page has one timer, which poll has ended; and poll, which all else calls, asks nothing.
		before := c.eval("performance.getEntriesByType('resource').length")
		c.is("poll().then(() => asking === null && performance.getEntriesByType('resource').length === "+fmt.Sprint(before)+")", true,
			"a page that is %s asks nothing", what)
		c.eval(change[1])
		polled(c)
	}
}

func checkOutage(t *testing.T, c *chromium, s *site) {
	banner := "document.getElementById('old')"
	c.is(banner+".checkVisibility()", false, "a banner while all is well")
	c.eval("window.drawn = fillStore; fillStore = () => { throw new Error('own') }")
	c.until(banner + ".textContent.startsWith('This page cannot show the answer (own). ')")
	c.eval("fillStore = drawn")
	c.until("!" + banner + ".checkVisibility() && fails === 0")
	s.down.Store(true)
	c.until(banner + ".checkVisibility() && " + banner + ".textContent.startsWith('No answer since ') && fails >= 2")
	c.is("document.querySelectorAll('.cards > .card[id]').length > 0", true, "what was known is shown")
	s.down.Store(false)
	c.until("!" + banner + ".checkVisibility() && fails === 0")
	s.Close() // as when the program ends
	c.until(banner + ".checkVisibility()")
	c.is(contrasts, "", "with the banner")
}

// checkPolicy sees that the browser heeds the policy: that there was no error before says something then.
func checkPolicy(t *testing.T, c *chromium) {
	c.is(`new Promise(yes => {
		addEventListener('securitypolicyviolation', e => yes(e.effectiveDirective), {once: true});
		new Image().src = 'https://elsewhere.example/x.png';
	})`, "img-src", "a foreign image violates")
	c.is("try { document.querySelector('footer').innerHTML = '<b>x</b>'; 'taken' } catch { 'refused' }", "refused", "markup from a string is")
}
