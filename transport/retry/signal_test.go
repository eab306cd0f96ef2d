package retry

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAResponseSaysWhetherAndForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // at 2000-01-01T00:00:00Z
		const date = "Sat, 01 Jan 2000 00:00:00 GMT"
		for _, c := range []struct {
			status int
			header []string
			want   signal
		}{
			{200, []string{"Retry-After", "5"}, signal{}},
			{301, []string{"Retry-After", "5"}, signal{}},
			{403, []string{"Retry-After", "5"}, signal{}},
			{500, []string{"Retry-After", "5"}, signal{}},
			{503, nil, signal{}},
			{503, []string{"Retry-After", "0"}, signal{}},
			{503, []string{"Retry-After", "soon"}, signal{}},
			{503, []string{"Retry-After", "5"}, signal{true, false, 5 * time.Second}},
			{429, nil, signal{true, true, 0}},
			{429, []string{"Retry-After", "5"}, signal{true, true, 5 * time.Second}},
			{429, []string{"Retry-After", " 5\t"}, signal{true, true, 5 * time.Second}},
			{429, []string{"Retry-After", "5", "Age", "0"}, signal{true, true, 5 * time.Second}},
			{429, []string{"Retry-After", "5", "Age", "1"}, signal{}},
			{429, []string{"Retry-After", "5", "X-From-Cache", "1"}, signal{}},
			{429, []string{"Retry-After", "2.5"}, signal{true, true, 2500 * time.Millisecond}},
			{429, []string{"Retry-After", "0.0000000001"}, signal{true, true, 1}},
			{429, []string{"Retry-After", "5", "Retry-After", "7", "Retry-After", "6"}, signal{true, true, 7 * time.Second}},
			{429, []string{"Retry-After", "Sat, 01 Jan 2000 00:00:09 GMT"}, signal{true, true, 10 * time.Second}},
			{429, []string{"Retry-After", "Saturday, 01-Jan-00 00:00:09 GMT"}, signal{true, true, 10 * time.Second}},
			{429, []string{"Retry-After", "Sat Jan  1 00:00:09 2000"}, signal{true, true, 10 * time.Second}},
			{429, []string{"Retry-After", "2000-01-01T00:00:09Z"}, signal{true, true, 10 * time.Second}},
			{429, []string{"Retry-After", "Sat, 01 Jan 2000 00:01:09 GMT", "Date", "Sat, 01 Jan 2000 00:01:00 GMT"}, signal{true, true, 10 * time.Second}},
			{429, []string{"Retry-After", date}, signal{true, true, 0}},
			{429, []string{"Retry-After", strings.Repeat("9", 129)}, signal{true, true, 0}},
			{429, []string{"Retry-After", strings.Repeat("9", 128)}, signal{true, true, forever}},
			{429, []string{"Retry-After", "5."}, signal{true, true, 0}},
			{429, []string{"Retry-After", ".5"}, signal{true, true, 0}},
			{429, []string{"Retry-After", "5, 6"}, signal{true, true, 0}},
		} {
			h := status(c.status, c.header...).header
			require.Equal(t, c.want, classify(&http.Response{StatusCode: c.status, Header: h}), "%d %v", c.status, c.header)
		}
		flood := http.Header{"Retry-After": make([]string, 10_000)}
		flood["Retry-After"][maxLines] = "3600"
		require.Zero(t, retryAfter(flood))
	})
}

func FuzzRetryAfterIsNeverNegative(f *testing.F) {
	for _, v := range []string{"5", "5.5", "-1", "NaN", "1e10", "9223372037", "Sat, 01 Jan 2000 00:00:09 GMT", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"} {
		f.Add(v, "Thu, 01 Jan 1970 00:00:00 GMT")
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		if d := retryAfter(http.Header{"Retry-After": {value}, "Date": {date}}); d < 0 {
			t.Errorf("%q at %q: %v", value, date, d)
		}
	})
}
