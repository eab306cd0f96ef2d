//go:build unix

package watch

import (
	"bytes"
	"flag"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	pictures = flag.String("pictures", "", "a directory: draw page.png and page-dark.png anew in it")
	states   = flag.String("states", "", "a directory: draw in it why no call leaves, at each width and in both schemes")
	width    = flag.Int("width", 1200, "of the pictures, in pixels")
	height   = flag.Int("height", 1168, "of the pictures, in pixels")
)

// The README shows testdata/page.png and page-dark.png. They are drawn so:
//
//	go test ./outbound/watch -run Picture -pictures testdata
func TestPage_Picture(t *testing.T) {
	if *pictures == "" {
		t.Skip("-pictures is not set")
	}
	began := time.Now()
	f := &fake{show: func(Query) Snapshot { return office(began) }}
	site := httptest.NewServer(allowed(f))
	defer site.Close()
	c := newChromium(t)
	for name, scheme := range map[string]string{"page.png": "light", "page-dark.png": "dark"} {
		c.view(*width, scheme)
		c.open(site.URL + "/")
		c.draw(filepath.Join(*pictures, name), *width, *height)
	}
	c.meetsNoFault()
}

// draw writes a picture of the page.
func (c *chromium) draw(path string, width, height int) {
	var shot struct{ Data []byte } // which comes in base64
	c.call("Page.captureScreenshot", args{"captureBeyondViewport": true, "clip": args{"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}, &shot)
	data, err := smaller(shot.Data)
	if err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	check(c.t, err)
	c.t.Log(path, len(data), "bytes")
}

// At each width and in both schemes the first thing on the page says why no call leaves, and the keyboard alone gets
// from there to the limiter. With -states DIR each page is drawn at all of them, else it has one width and scheme.
func TestPage_SaysWhyNothingLeaves(t *testing.T) {
	f := new(fake)
	site := httptest.NewServer(allowed(f))
	defer site.Close()
	c := newChromium(t)
	press := func(key string) {
		for _, kind := range []string{"rawKeyDown", "keyUp"} {
			c.call("Input.dispatchKeyEvent", args{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": map[string]int{"Tab": 9, "Enter": 13}[key]}, nil)
		}
	}
	for i := range standstills {
		is, s := &standstills[i], stoppedBy(t, i)
		f.show = func(Query) Snapshot { return s }
		for k, width := range []int{360, 800, 1400} {
			for j, scheme := range []string{"light", "dark"} {
				if *states == "" && (i%3 != k || i/3%2 != j) {
					continue
				}
				c.view(width, scheme)
				c.open(site.URL + "/")
				at := is.name + " at " + strconv.Itoa(width) + " pixels, " + scheme + ": "
				words, _ := c.eval(`document.querySelector('#wrong li .bdi:last-child').innerText`).(string)
				words = strings.ReplaceAll(words, "\u00a0", " ")
				errorIf(t, !strings.HasPrefix(words, is.words), "%s%q", at, words)
				c.is(`document.querySelector('#wrong li').getBoundingClientRect().bottom < innerHeight`, true, "%swithout scrolling", at)
				c.is(`document.documentElement.scrollWidth > innerWidth`, false, "%sit is wider than the window", at)
				bad, _ := c.eval(contrasts).(string)
				errorIf(t, bad != "" && !strings.HasPrefix(bad, "only "), "%s%s", at, bad)
				for tabs := 0; c.eval(`document.activeElement.closest('#wrong') !== null`) != true; tabs++ {
					press("Tab")
					fatalIf(t, tabs > 5, "%sthe keyboard does not reach it", at)
				}
				press("Enter")
				c.until(`location.hash === '#' + document.querySelector('.card').id && document.querySelector('.card').getBoundingClientRect().top < innerHeight`)
				if *states != "" {
					c.open(site.URL + "/?")
					c.draw(filepath.Join(*states, strings.ReplaceAll(is.name, " ", "-")+"-"+strconv.Itoa(width)+"-"+scheme+".png"), width, 720)
				}
			}
		}
	}
	c.meetsNoFault()
}

// smaller returns a PNG with the colours that it has most, 256 at most.
func smaller(text []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	times := map[color.RGBA]int{}
	var all color.Palette
	for y := range from.Bounds().Dy() {
		for x := range from.Bounds().Dx() {
			c := color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)
			if times[c]++; times[c] == 1 {
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(a, b color.Color) int { return times[b.(color.RGBA)] - times[a.(color.RGBA)] })
	to := image.NewPaletted(from.Bounds(), all[:min(len(all), 256)])
	draw.Draw(to, to.Bounds(), from, image.Point{}, draw.Src)
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to)
	return out.Bytes(), err
}
