package pushback

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	policies = []Policy{
		{Name: "api", Quota: 100, Window: time.Minute},
		{Name: "shop/login", Quota: 3, Window: 1500 * ms},
	}
	overQuota = Refusal{Policy: 0, Hint: Hint{Seconds: 6, Ms: 5250}}
	overload  = Refusal{Policy: -1, Hint: Hint{Seconds: 6, Ms: 5250}}
)

func mustNew(tb testing.TB, c Config) *Answers {
	tb.Helper()
	a, err := New(c, policies)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// request returns a request with headers given as "Name: value".
func request(method string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "/", nil)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func answer(a *Answers, r *http.Request, f Refusal) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	a.Write(w, r, f, time.Now())
	return w
}

// wantHeader compares all headers, so that none appears unasked.
func wantHeader(t *testing.T, got http.Header, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if name != http.CanonicalHeaderKey(name) {
			t.Errorf("%s is not in the canonical form, so others cannot find it", name)
		}
		if v, ok := want[name]; !ok || len(got[name]) != 1 || got[name][0] != v {
			t.Errorf("%s: %q, want %q", name, got[name], v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if len(got[name]) == 0 {
			t.Errorf("no %s; want %q", name, want[name])
		}
	}
}

// RFC 6585, section 4: a 429 says in Retry-After how long to wait and must not
// be stored. draft-ietf-httpapi-ratelimit-headers-10, sections 3 and 4: what
// the quota is and when there is more of it. RFC 9457, section 3: the media type
// of problem details.
func TestEveryHeaderOfA429(t *testing.T) {
	w := answer(mustNew(t, Config{}), request("GET"), overQuota)
	if w.Code != http.StatusTooManyRequests {
		t.Errorf("status %d, want 429", w.Code)
	}
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After":            "6",
		"Retry-After-Ms":         "5250",
		"Ratelimit":              `"api";r=0;t=6`,
		"Ratelimit-Policy":       `"api";q=100;w=60`,
		"Cache-Control":          "no-store",
		"Content-Type":           "application/problem+json",
		"X-Content-Type-Options": "nosniff",
	})
}

// RFC 9110, section 15.6.4: a 503 may say in Retry-After how long to wait. No
// quota of the client's is to blame, so no RateLimit.
func TestEveryHeaderOfA503(t *testing.T) {
	w := answer(mustNew(t, Config{}), request("GET"), overload)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", w.Code)
	}
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After":            "6",
		"Retry-After-Ms":         "5250",
		"Cache-Control":          "no-store",
		"Content-Type":           "application/problem+json",
		"X-Content-Type-Options": "nosniff",
	})
}

// Where somebody else writes status and body, the headers are the same, without
// those that describe the body.
func TestSetHeader(t *testing.T) {
	a, w := mustNew(t, Config{}), httptest.NewRecorder()
	a.SetHeader(w, overQuota)
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After": "6", "Retry-After-Ms": "5250", "Cache-Control": "no-store",
		"Ratelimit": `"api";r=0;t=6`, "Ratelimit-Policy": `"api";q=100;w=60`,
	})
	w = httptest.NewRecorder()
	a.SetHeader(w, overload)
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After": "6", "Retry-After-Ms": "5250", "Cache-Control": "no-store",
	})
}

// draft-ietf-httpapi-ratelimit-headers-10, sections 3.1 and 4.1, in the syntax
// of RFC 9651: a List of one String with Integer parameters, w above 0. Section
// 6: Retry-After is not earlier than t, whatever is told. The same sections of
// -11 say no more that would matter here.
func TestRateLimitSyntax(t *testing.T) {
	rateLimit := regexp.MustCompile(`^"[\x20-\x21\x23-\x5b\x5d-\x7e]+";r=0;t=([1-9][0-9]?)$`)
	policy := regexp.MustCompile(`^"[\x20-\x21\x23-\x5b\x5d-\x7e]+";q=[0-9]{1,15};w=[1-9][0-9]{0,14}$`)
	a := mustNew(t, Config{Max: maxSeconds * time.Second})
	for i := range policies {
		for seconds := 1; seconds <= maxSeconds; seconds++ {
			h := answer(a, request("GET"), Refusal{Policy: i, Hint: Hint{Seconds: seconds, Ms: seconds * 1000}}).Header()
			m := rateLimit.FindStringSubmatch(h.Get("RateLimit"))
			if m == nil || m[1] != h.Get("Retry-After") {
				t.Errorf("RateLimit: %s with Retry-After: %s", h.Get("RateLimit"), h.Get("Retry-After"))
			}
			if !policy.MatchString(h.Get("RateLimit-Policy")) {
				t.Errorf("RateLimit-Policy: %s", h.Get("RateLimit-Policy"))
			}
		}
	}
	// Section 3.1.3: no fractions; a window is rounded up.
	if got := answer(a, request("GET"), Refusal{Policy: 1, Hint: Hint{1, 1}}).Header().Get("RateLimit-Policy"); got != `"shop/login";q=3;w=2` {
		t.Errorf("a window of 1.5s: %s", got)
	}
}

// RFC 9457, section 3.1: type, title, status and detail; section 3.2: extension
// members. The types are those of draft-ietf-httpapi-ratelimit-headers-10,
// section 5.
func TestProblemDetails(t *testing.T) {
	for _, c := range []struct {
		name     string
		cfg      Config
		f        Refusal
		status   int
		title    string
		kind     string
		violated []string
	}{
		{"quota", Config{}, overQuota, 429, "Too Many Requests", "quota-exceeded", []string{"api"}},
		{"overload", Config{}, overload, 503, "Service Unavailable", "temporary-reduced-capacity", nil},
		{"another zone", Config{}, Refusal{1, Hint{17, 16_001}}, 429, "Too Many Requests", "quota-exceeded", []string{"shop/login"}},
		{"another status", Config{Status: 403}, overQuota, 403, "Forbidden", "quota-exceeded", []string{"api"}},
		{"a status without a name", Config{OverloadStatus: 529}, overload, 529, "Refused", "temporary-reduced-capacity", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := mustNew(t, c.cfg)
			w := answer(a, request("POST", "Accept: application/json"), c.f)
			if w.Code != c.status || a.Status(c.f) != c.status {
				t.Errorf("status %d, Status %d; want %d", w.Code, a.Status(c.f), c.status)
			}
			var got struct {
				Type       string
				Title      string
				Status     int
				Detail     string
				RetryAfter int      `json:"retry-after"`
				Violated   []string `json:"violated-policies"`
			}
			d := json.NewDecoder(w.Body)
			d.DisallowUnknownFields()
			if err := d.Decode(&got); err != nil {
				t.Fatalf("%v in %s", err, w.Body)
			}
			if d.More() {
				t.Error("more than one JSON value")
			}
			if u, err := url.Parse(got.Type); err != nil || !u.IsAbs() || u.Fragment != c.kind {
				t.Errorf("type %q, want an absolute URI with #%s", got.Type, c.kind)
			}
			if got.Title != c.title || got.Status != c.status || got.Detail == "" || !slices.Equal(got.Violated, c.violated) {
				t.Errorf("%+v; want title %q, status %d, violated-policies %q", got, c.title, c.status, c.violated)
			}
			if got.RetryAfter != c.f.Hint.Seconds {
				t.Errorf("retry-after %d, want %d", got.RetryAfter, c.f.Hint.Seconds)
			}
		})
	}
}

// Who gets which body, and who is told to reload: only a person who waits
// before a page, and only if reloading repeats nothing but a GET.
func TestWhoGetsWhichBody(t *testing.T) {
	const (
		problem = "application/problem+json"
		page    = "text/html; charset=utf-8"
		text    = "text/plain; charset=utf-8"
		html    = "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"
	)
	for _, c := range []struct {
		story       string
		body        Body
		r           *http.Request
		contentType string
		refresh     string
	}{
		{"no word of what it accepts", "", request("GET"), problem, ""},
		{"curl", "", request("GET", "Accept: */*"), problem, ""},
		{"a browser's navigation", "", request("GET", "Sec-Fetch-Mode: navigate", html), page, "6"},
		{"its HEAD", "", request("HEAD", "Sec-Fetch-Mode: navigate", html), page, "6"},
		{"a form that it posts", "", request("POST", "Sec-Fetch-Mode: navigate", html), page, ""},
		{"an old browser's navigation", "", request("GET", html), page, "6"},
		{"its second Accept", "", request("GET", "Accept: application/xml", html), page, "6"},
		{"fetch()", "", request("GET", "Sec-Fetch-Mode: cors", "Accept: */*"), problem, ""},
		{"fetch() that asks for HTML", "", request("GET", "Sec-Fetch-Mode: cors", html), problem, ""},
		{"fetch() of its own site", "", request("GET", "Sec-Fetch-Mode: same-origin", html), problem, ""},
		{"an image", "", request("GET", "Sec-Fetch-Mode: no-cors", html), problem, ""},
		{"problem is the default", Problem, request("GET", html), page, "6"},
		{"html: always a page", HTML, request("GET", "Accept: */*"), page, "6"},
		{"html: a post repeats nothing", HTML, request("POST"), page, ""},
		{"html: nor does a delete", HTML, request("DELETE"), page, ""},
		{"text", Text, request("GET"), text, ""},
		{"text for a navigation too", Text, request("GET", html), text, ""},
		{"none", None, request("GET"), "", ""},
		{"none for a navigation too", None, request("GET", "Sec-Fetch-Mode: navigate", html), "", ""},
	} {
		t.Run(c.story, func(t *testing.T) {
			w := answer(mustNew(t, Config{Body: c.body}), c.r, overQuota)
			if w.Code != 429 || w.Header().Get("Retry-After") != "6" {
				t.Errorf("%d, Retry-After: %s; want 429, 6", w.Code, w.Header().Get("Retry-After"))
			}
			if got := w.Header().Get("Content-Type"); got != c.contentType {
				t.Errorf("Content-Type: %s, want %s", got, c.contentType)
			}
			if got := w.Header().Get("Refresh"); got != c.refresh {
				t.Errorf("Refresh: %q, want %q", got, c.refresh)
			}
			got := w.Body.String()
			if wantBody := c.contentType != "" && c.r.Method != "HEAD"; (got != "") != wantBody {
				t.Fatalf("body %q; want one: %v", got, wantBody)
			}
			if c.contentType == page && got != "" {
				if !strings.HasPrefix(got, "<!doctype html>") || !strings.Contains(got, "<title>Too Many Requests</title>") || !strings.Contains(got, " 6 s") {
					t.Errorf("page %q", got)
				}
				if says := strings.Contains(got, "by itself"); says != (c.refresh != "") {
					t.Errorf("the page says that it reloads itself: %v; it has Refresh: %q", says, c.refresh)
				}
			}
			if c.contentType == text && got != "This client has used up its quota. Come back in 6 s.\n" {
				t.Errorf("text %q", got)
			}
		})
	}
}

// RFC 9110, section 9.3.2: a HEAD gets the headers of the GET and no content.
func TestHeadIsGetWithoutBody(t *testing.T) {
	for _, body := range []Body{Problem, HTML, Text, None} {
		for _, f := range []Refusal{overQuota, overload} {
			a := mustNew(t, Config{Body: body})
			get, head := answer(a, request("GET"), f), answer(a, request("HEAD"), f)
			if head.Body.Len() > 0 {
				t.Errorf("%s: a HEAD got %q", body, head.Body)
			}
			if head.Code != get.Code || !maps.EqualFunc(get.Header(), head.Header(), slices.Equal) {
				t.Errorf("%s: GET %d %v\nHEAD %d %v", body, get.Code, get.Header(), head.Code, head.Header())
			}
		}
	}
}

// RFC 6585, section 4, for 429; and of a stored 503 nobody would know when it
// was true.
func TestNoAnswerMayBeStored(t *testing.T) {
	for _, body := range []Body{Problem, HTML, Text, None} {
		for _, f := range []Refusal{overQuota, overload} {
			for _, r := range []*http.Request{request("GET"), request("GET", "Accept: text/html"), request("POST", "Content-Type: application/grpc")} {
				if got := answer(mustNew(t, Config{Body: body}), r, f).Header().Get("Cache-Control"); got != "no-store" {
					t.Errorf("%s, policy %d, %v: Cache-Control: %q", body, f.Policy, r.Header, got)
				}
			}
		}
	}
}

// Handlers around this one may change header values in place. That must not
// reach anybody else's answer, nor the next header of the same answer.
func TestHeaderValuesAreNotShared(t *testing.T) {
	a := mustNew(t, Config{})
	for _, r := range []*http.Request{
		request("GET"),
		request("GET", "Sec-Fetch-Mode: navigate"),
		request("POST", "Content-Type: application/grpc"),
	} {
		untouched := answer(a, r, overQuota).Header().Clone()
		first, second := answer(a, r, overQuota), answer(a, r, overQuota)
		for name, values := range first.Header() {
			first.Header()[name] = append(values, "appended") // must not land in a neighbour's place
			values[0] = "changed"
		}
		for name, values := range first.Header() {
			if len(values) != 2 || values[1] != "appended" {
				t.Errorf("%s of the same answer: %q", name, values)
			}
		}
		for _, other := range []http.Header{second.Header(), answer(a, r, overQuota).Header()} {
			if !maps.EqualFunc(other, untouched, slices.Equal) {
				t.Errorf("another answer changed too: %v, want %v", other, untouched)
			}
		}
	}
}

// nop is a ResponseWriter that costs nothing.
type nop struct{ header http.Header }

func (n nop) Header() http.Header             { return n.header }
func (n nop) Write(b []byte) (int, error)     { return len(b), nil }
func (n nop) WriteHeader(int)                 {}
func (n nop) SetReadDeadline(time.Time) error { return nil }

var writes = []struct {
	name   string
	f      Refusal
	r      *http.Request
	allocs float64
}{
	{"quota", overQuota, request("GET"), 2}, // all header values, and the milliseconds as text
	{"overload", overload, request("GET"), 2},
	{"page", overload, request("GET", "Accept: text/html"), 2},
	{"grpc", overload, request("POST", "Content-Type: application/grpc"), 14}, // the details, field by field
}

func BenchmarkWrite(b *testing.B) {
	a, now := mustNew(b, Config{}), time.Now()
	for _, c := range writes {
		b.Run(c.name+"/alone", func(b *testing.B) {
			b.ReportAllocs()
			w := nop{http.Header{}}
			for b.Loop() {
				clear(w.header)
				a.Write(w, c.r, c.f, now)
			}
		})
		b.Run(c.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				w := nop{http.Header{}}
				for pb.Next() {
					clear(w.header)
					a.Write(w, c.r, c.f, now)
				}
			})
		})
	}
}

// A refusal costs less than serving; this holds it there.
func TestWriteHardlyAllocates(t *testing.T) {
	a, now, w := mustNew(t, Config{}), time.Now(), nop{http.Header{}}
	for _, c := range writes {
		if n := testing.AllocsPerRun(1000, func() {
			clear(w.header)
			a.Write(w, c.r, c.f, now)
		}); n > c.allocs {
			t.Errorf("%s: %v allocations, want at most %v", c.name, n, c.allocs)
		}
	}
}
