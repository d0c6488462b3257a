package pushback

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
)

// draft-ietf-httpapi-ratelimit-headers-10, section 3.1; Kinto's Backoff is a
// number of seconds.
func TestWarn(t *testing.T) {
	for _, c := range []struct {
		story   string
		cfg     AnswerConfig
		backlog time.Duration
		want    map[string]string
	}{
		{"a moment is a second", AnswerConfig{}, 1, map[string]string{"Ratelimit": `"capacity";r=1;t=1`}},
		{"rounded up", AnswerConfig{}, 6001 * ms, map[string]string{"Ratelimit": `"capacity";r=1;t=7`}},
		{"at most max", AnswerConfig{}, time.Hour, map[string]string{"Ratelimit": `"capacity";r=1;t=30`}},
		{"at most another max", AnswerConfig{Max: 59 * time.Second}, time.Hour, map[string]string{"Ratelimit": `"capacity";r=1;t=59`}},
		{"min is for those who are refused", AnswerConfig{Min: 5 * time.Second}, ms, map[string]string{"Ratelimit": `"capacity";r=1;t=1`}},
		{"a name", AnswerConfig{Name: "shop"}, 2 * time.Second, map[string]string{"Ratelimit": `"shop";r=1;t=2`}},
		{"Backoff", AnswerConfig{Backoff: true}, 2 * time.Second, map[string]string{"Ratelimit": `"capacity";r=1;t=2`, "Backoff": "2"}},
	} {
		t.Run(c.story, func(t *testing.T) {
			h := http.Header{}
			mustNew(t, c.cfg).Warn(h, c.backlog)
			wantHeader(t, h, c.want)
		})
	}
}

// The oracle of the syntax is the library.
func TestWarningSyntax(t *testing.T) {
	a := mustNew(t, AnswerConfig{Max: maxSeconds * time.Second})
	for seconds := 1; seconds <= maxSeconds; seconds++ {
		h := http.Header{}
		a.Warn(h, time.Duration(seconds)*time.Second)
		list, err := httpsfv.UnmarshalList(h["Ratelimit"])
		if err != nil || len(list) != 1 {
			t.Fatalf("%q: %v", h, err)
		}
		item := list[0].(httpsfv.Item)
		r, _ := item.Params.Get("r")
		s, _ := item.Params.Get("t")
		if item.Value != "capacity" || r != int64(1) || s != int64(seconds) || len(item.Params.Names()) != 2 {
			t.Errorf("%s after %s", h["Ratelimit"], strconv.Itoa(seconds))
		}
	}
}

// As TestHeaderValuesAreNotShared, for the warning.
func TestWarningsAreNotShared(t *testing.T) {
	a, first, second, third := mustNew(t, AnswerConfig{Backoff: true}), http.Header{}, http.Header{}, http.Header{}
	a.Warn(first, time.Second)
	a.Warn(second, time.Second)
	first["Ratelimit"][0] = "changed"
	first["Ratelimit"] = append(first["Ratelimit"], "appended") // must not land in Backoff's place
	if got := first.Get("Backoff"); got != "1" {
		t.Errorf("Backoff of the same response: %q, want 1", got)
	}
	first["Backoff"][0] = "changed"
	a.Warn(third, time.Second)
	for _, h := range []http.Header{second, third} {
		wantHeader(t, h, map[string]string{"Ratelimit": `"capacity";r=1;t=1`, "Backoff": "1"})
	}
}

func BenchmarkWarn(b *testing.B) {
	a, h := mustNew(b, AnswerConfig{Backoff: true}), http.Header{}
	b.ReportAllocs()
	for b.Loop() {
		clear(h)
		a.Warn(h, 7*time.Second)
	}
}

func TestWarnAllocatesOnce(t *testing.T) {
	a, h := mustNew(t, AnswerConfig{Backoff: true}), http.Header{}
	if n := testing.AllocsPerRun(1000, func() {
		clear(h)
		a.Warn(h, 7*time.Second)
	}); n > 1 {
		t.Errorf("%v allocations, want at most 1", n)
	}
}
