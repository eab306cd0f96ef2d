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
	"testing"
	"time"
)

var (
	pictures = flag.String("pictures", "", "a directory: draw page.png and page-dark.png anew in it")
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
		var shot struct{ Data []byte } // which comes in base64
		c.call("Page.captureScreenshot", args{"captureBeyondViewport": true, "clip": args{"x": 0, "y": 0, "width": *width, "height": *height, "scale": 1}}, &shot)
		data, err := smaller(shot.Data)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*pictures, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Log(name, len(data), "bytes")
	}
	for _, fault := range c.faults() {
		t.Error(fault)
	}
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
