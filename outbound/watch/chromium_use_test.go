//go:build unix

package watch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

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
