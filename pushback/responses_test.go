package pushback

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
)

const ms = time.Millisecond

var (
	policies = []Policy{
		{Name: "api", Quota: 100, Window: time.Minute},
		{Name: "shop/login", Quota: 3, Window: 1500 * ms},
		{Name: "in_flight", Quota: 2, Concurrent: true},
	}
	overQuota = Rejection{Policy: 0, Hint: Hint{Seconds: 6, Ms: 5250}}
	overload  = Rejection{Policy: -1, Hint: Hint{Seconds: 6, Ms: 5250}}

	// The same, never to come back.
	neverQuota    = Rejection{Policy: 0, Hint: Hint{Never: true}}
	neverOverload = Rejection{Policy: -1, Hint: Hint{Never: true}}
)

func mustNew(tb testing.TB, c ResponseConfig) *Responses {
	tb.Helper()
	a, err := NewResponses(c, policies)
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

func overHTTP2(headers ...string) *http.Request {
	r := request("GET", headers...)
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	return r
}

func answer(a *Responses, r *http.Request, f Rejection) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	a.Write(w, r, f, time.Now())
	return w
}

// Every header that a client gets, and no other: those of RFC 6585, section 4, of
// draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4, and of RFC 9209, section 2.3. A
// client that is told never to come back gets no time, and a plain no in what SDKs read. gRPC gets
// a Trailers-Only response, with its pushback (gRPC proposal A6). An Envoy on the way must not
// retry.
func TestEveryHeader(t *testing.T) {
	const (
		store   = "Cache-Control: no-store\n"
		problem = "Content-Type: application/problem+json\n"
		page    = "Content-Type: text/html; charset=utf-8\n"
		nosniff = "X-Content-Type-Options: nosniff\n"
		later   = "Retry-After: 6\nRetry-After-Ms: 5250\n"
		never   = "Stripe-Should-Retry: false\nX-Should-Retry: false\n"
		grpc    = "Content-Type: application/grpc\nGrpc-Message: "
		api     = "Ratelimit: \"api\";r=0;t=6\nRatelimit-Policy: \"api\";q=100;w=60\n"
	)
	by := func(what string) string {
		return "Proxy-Status: shield; error=http_request_denied; details=\"" + what + "\"\n"
	}
	call := request("POST", "Content-Type: application/grpc", "Accept: text/html")
	source := request("GET", "Accept: text/event-stream", "Cache-Control: no-cache", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty")
	git := request("GET", "User-Agent: git/2.54.0")
	for _, c := range []struct {
		story  string
		body   Body
		r      *http.Request
		f      Rejection
		status int
		want   string
	}{
		{"quota", "", request("GET"), overQuota, 429, store + problem + by("quota") + api + later},
		{"quota, none", None, request("GET"), overQuota, 429, store + by("quota") + api + later},
		{"a window is rounded up", "", request("GET"), Rejection{Policy: 1, Hint: Hint{Seconds: 1, Ms: 1}}, 429, store + problem + by("quota") +
			"Ratelimit: \"shop/login\";r=0;t=1\nRatelimit-Policy: \"shop/login\";q=3;w=2\nRetry-After: 1\nRetry-After-Ms: 1\n"},
		{"a quota of an hour", "", request("GET"), Rejection{Policy: 0, Hint: Hint{Seconds: 3600, Ms: 3_599_001}}, 429, store + problem + by("quota") +
			"Ratelimit: \"api\";r=0;t=3600\nRatelimit-Policy: \"api\";q=100;w=60\nRetry-After: 3600\nRetry-After-Ms: 3599001\n"},
		{"too many in flight", "", request("GET"), Rejection{Policy: 2, Hint: Hint{Seconds: 6, Ms: 5250}}, 429, store + problem + by("per_client") +
			"Ratelimit: \"in_flight\";r=0;t=6\nRatelimit-Policy: \"in_flight\";q=2;qu=\"concurrent-requests\"\n" + later},
		{"overload", "", request("GET"), overload, 503, store + problem + by("overload") + later},
		{"blocked", "", request("GET"), Rejection{Policy: BlockedPolicy, Hint: Hint{Seconds: 6, Ms: 5250}}, 429, store + problem + by("blocked") + later},
		{"a navigation", "", request("GET", "Sec-Fetch-Mode: navigate"), overload, 503, store + page + by("overload") + "Refresh: 6\n" + later + nosniff},
		{"never, quota", "", request("GET"), neverQuota, 429, store + problem + by("quota") +
			"Ratelimit: \"api\";r=0\nRatelimit-Policy: \"api\";q=100;w=60\n" + never},
		{"never, overload", "", request("GET"), neverOverload, 503, store + problem + by("overload") + never},
		{"never, a navigation", "", request("GET", "Sec-Fetch-Mode: navigate"), neverOverload, 503, store + page + by("overload") + "Stripe-Should-Retry: false\n" + nosniff + "X-Should-Retry: false\n"},
		{"through an Envoy", "", request("GET", "X-Envoy-Attempt-Count: 1"), overload, 503, store + problem + by("overload") + later + "X-Envoy-Ratelimited: true\n"},
		{"to an Envoy", "", request("GET", "X-Envoy-Max-Retries: 3"), overload, 503, store + problem + by("overload") + later},
		{"an EventSource, quota", "", source, overQuota, 200, store + "Content-Type: text/event-stream\n" + by("quota") + api + later},
		{"an EventSource, overload", HTML, source, overload, 200, store + "Content-Type: text/event-stream\n" + by("overload") + later},
		{"never, an EventSource", "", source, neverOverload, 204, store + by("overload") + never},
		{"git, overload", "", git, overload, 429, store + problem + by("overload") + later},
		{"git, quota", "", git, overQuota, 429, store + problem + by("quota") + api + later},
		{"Anthropic's SDK, in text", Text, request("POST", "Anthropic-Version: 1"), overload, 503, store + "Content-Type: text/plain; charset=utf-8\n" + by("overload") + later + nosniff},
		{"Anthropic's SDK", "", request("POST", "Anthropic-Version: 1"), overload, 503, store + "Content-Type: application/json\n" + by("overload") + later + nosniff},
		{"gRPC, quota", HTML, call, overQuota, 200, store + grpc + "This client has used up its quota.\nGrpc-Retry-Pushback-Ms: 5250\nGrpc-Status: 8\nGrpc-Status-Details-Bin: -\n" + by("quota")},
		{"gRPC, overload", "", call, overload, 200, store + grpc + "The service is at its capacity.\nGrpc-Retry-Pushback-Ms: 5250\nGrpc-Status: 14\nGrpc-Status-Details-Bin: -\n" + by("overload")},
		{"gRPC, never, quota", "", call, neverQuota, 200, store + grpc + "This client has used up its quota. Do not come back soon.\nGrpc-Retry-Pushback-Ms: -1\nGrpc-Status: 8\n" + by("quota")},
		{"gRPC, never, overload", "", call, neverOverload, 200, store + grpc + "The service is at its capacity. Do not come back soon.\nGrpc-Retry-Pushback-Ms: -1\nGrpc-Status: 14\n" + by("overload")},
	} {
		a := mustNew(t, ResponseConfig{Body: c.body})
		w := answer(a, c.r, c.f)
		if told := a.Write(httptest.NewRecorder(), c.r, c.f, time.Now()); told != c.status && !IsGRPC(c.r) {
			t.Errorf("%s: Write says %d", c.story, told)
		}
		got := ""
		for _, name := range slices.Sorted(maps.Keys(w.Header())) {
			for _, value := range w.Header()[name] {
				if name == "Grpc-Status-Details-Bin" {
					if s, delay := decode(t, value); strconv.Itoa(int(s.Code)) != w.Header().Get("Grpc-Status") || s.Message != w.Header().Get("Grpc-Message") || delay != 5250*ms {
						t.Errorf("%s: details %v, %v", c.story, s, delay)
					}
					value = "-"
				}
				got += name + ": " + value + "\n"
			}
		}
		if w.Code != c.status || got != c.want {
			t.Errorf("%s: %d\n%s\nwant %d\n%s", c.story, w.Code, got, c.status, c.want)
		}
		if IsGRPC(c.r) && w.Body.Len() > 0 {
			t.Errorf("%s: body %q", c.story, w.Body)
		}
		if w.Header().Get("Content-Type") == "application/problem+json" {
			wantProblem(t, w, c.f)
		}
		// Where the caller writes status and body, the headers are the same, without those of the body.
		set := httptest.NewRecorder()
		a.SetHeader(set, c.r, c.f)
		for name, values := range set.Header() {
			if !IsGRPC(c.r) && !slices.Equal(values, w.Header()[name]) {
				t.Errorf("%s: SetHeader sets %s: %q", c.story, name, values)
			}
		}
		if !IsGRPC(c.r) && (set.Header().Get("Proxy-Status") == "" || set.Header().Get("Retry-After") != w.Header().Get("Retry-After")) {
			t.Errorf("%s: SetHeader sets %v", c.story, set.Header())
		}
	}
}

// wantProblem checks a body: RFC 9457, sections 3.1 and 3.2, with the types of draft-ietf-httpapi-ratelimit-headers-11, section 5.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, f Rejection) {
	t.Helper()
	var got struct {
		Type, Title, Detail string
		Status              int
		RetryAfter          int      `json:"retry-after"`
		Violated            []string `json:"violated-policies"`
	}
	d := json.NewDecoder(w.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil || d.More() {
		t.Fatalf("%v in %s", err, w.Body)
	}
	kind, violated := "temporary-reduced-capacity", []string(nil)
	switch {
	case f.Policy >= 0:
		kind, violated = "quota-exceeded", []string{policies[f.Policy].Name}
	case f.Policy == BlockedPolicy:
		kind = "" // about:blank
	}
	if u, err := url.Parse(got.Type); err != nil || !u.IsAbs() || u.Fragment != kind {
		t.Errorf("type %q, want an absolute URI with #%s", got.Type, kind)
	}
	if title := cmp.Or(http.StatusText(w.Code), "Rejected"); got.Title != title || got.Status != w.Code || got.Detail == "" || !slices.Equal(got.Violated, violated) || got.RetryAfter != f.Hint.Seconds {
		t.Errorf("%+v to %+v, want the title %s, and violated %q", got, f, title, violated)
	}
}

// Whatever is told to whom: a HEAD gets the headers of the GET and no content (RFC 9110, section
// 9.3.2); all that says a time says the same one; no response may be stored; and header values, which
// handlers around this one may change in place, are not shared.
func TestLawsOfAnswers(t *testing.T) {
	for _, body := range []Body{Auto, Problem, HTML, Text, None} {
		a := mustNew(t, ResponseConfig{Body: body, Max: maxSeconds * time.Second})
		for _, wait := range []time.Duration{-1, 0, 1, ms, 999 * ms, time.Second, 1001 * ms, 58_001 * ms, 59 * time.Second, time.Hour} {
			for policy := -1; policy < len(policies); policy++ {
				f := Rejection{Policy: policy, Hint: a.Hint(wait), Ticket: "a"}
				get, head := request("GET"), request("HEAD")
				first, second := answer(a, get, f), answer(a, head, f)
				h := first.Header()
				if second.Body.Len() > 0 || first.Code != second.Code || !maps.EqualFunc(h, second.Header(), slices.Equal) {
					t.Errorf("%s: a HEAD got %q %v, a GET %v", body, second.Body, second.Header(), h)
				}
				seconds, exact := h.Get("Retry-After"), h.Get("Retry-After-Ms")
				n, err := strconv.Atoi(exact)
				if err != nil || strconv.Itoa((n+999)/1000) != seconds || len(h["Retry-After"]) != 1 {
					t.Errorf("%v: Retry-After: %s, Retry-After-Ms: %s", wait, seconds, exact)
				}
				if refresh := h.Get("Refresh"); refresh != "" && refresh != seconds {
					t.Errorf("%v: Refresh: %s, Retry-After: %s", wait, refresh, seconds)
				}
				if limit, err := httpsfv.UnmarshalList(h["Ratelimit"]); policy >= 0 {
					if err != nil || len(limit) != 1 {
						t.Fatalf("%q: %v", h["Ratelimit"], err)
					}
					if left, _ := limit[0].(httpsfv.Item).Params.Get("t"); strconv.Itoa(int(left.(int64))) != seconds {
						t.Errorf("%v: Ratelimit: %s, Retry-After: %s", wait, h["Ratelimit"], seconds)
					}
				}
				if h.Get("Cache-Control") != "no-store" {
					t.Errorf("%s, policy %d: Cache-Control: %q", body, policy, h["Cache-Control"])
				}
				untouched := second.Header().Clone()
				for name, values := range h {
					h[name] = append(values, "appended") // must not land in a neighbour's place
					values[0] = "changed"
				}
				for name, values := range h {
					if len(values) != 2 || values[1] != "appended" {
						t.Errorf("%s of the same response: %q", name, values)
					}
				}
				if !maps.EqualFunc(second.Header(), untouched, slices.Equal) || !maps.EqualFunc(answer(a, get, f).Header(), untouched, slices.Equal) {
					t.Error("another answer changed too")
				}
			}
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  ResponseConfig
		want string // "": none
	}{
		{ResponseConfig{GiveUp: time.Minute}, ""},
		{ResponseConfig{GiveUp: 24 * time.Hour}, ""},
		{ResponseConfig{GiveUp: time.Minute - 1}, "give_up is 59.999999999s; use 1m to 24h"},
		{ResponseConfig{GiveUp: 24*time.Hour + 1}, "give_up is"},
		{ResponseConfig{Min: 60 * time.Second}, "min is 1m0s; use whole seconds from 1s to 59s"},
		{ResponseConfig{Max: 1500 * ms}, "max is 1.5s; use whole seconds from 1s to 59s"},
		{ResponseConfig{Min: 5 * time.Second, Max: 4 * time.Second}, "min is 5s and max is 4s; min must be at most max"},
		{ResponseConfig{Max: 9 * time.Second, QuotaMax: 8 * time.Second}, "quota_max is 8s"},
		{ResponseConfig{Status: 399}, "status is 399; use 400 to 599"},
		{ResponseConfig{OverloadStatus: 600}, "overload_status is 600; use 400 to 599"},
		{ResponseConfig{CORS: []string{"*", "https://a.example:8443", "http://[::1]:8080", "chrome-extension://abc"}}, ""},
		{ResponseConfig{CORS: []string{"https://a.example/"}}, "cors is \"https://a.example/\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"a.example"}}, "cors is \"a.example\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"https://*.example"}}, "cors is \"https://*.example\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"https://a.example:443"}}, "cors is \"https://a.example:443\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"http://a.example:80"}}, "cors is \"http://a.example:80\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"https://A.example"}}, "cors is \"https://A.example\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"https://[::1"}}, "cors is \"https://[::1\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"https://:8443"}}, "cors is \"https://:8443\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"https://a.example:"}}, "cors is \"https://a.example:\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"https://a.example:080"}}, "cors is \"https://a.example:080\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"https://a@a.example"}}, "cors is \"https://a@a.example\"; use * or an origin"},
		{ResponseConfig{CORS: []string{"chrome-extension://a::1"}}, "cors is \"chrome-extension://a::1\"; use * or an origin"},
		{ResponseConfig{Body: "xml"}, "body is \"xml\"; use auto, problem, html, text or none"},
	} {
		if _, err := NewResponses(c.cfg, policies); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	own := mustNew(t, ResponseConfig{Status: 403, OverloadStatus: 529})
	if quota, over := answer(own, request("GET"), overQuota).Code, own.Status(overload); quota != 403 || over != 529 {
		t.Errorf("statuses %d and %d, want those that are set: 403 and 529", quota, over)
	}
	for least, want := range map[time.Duration][2]time.Duration{0: {time.Second, 30 * time.Second}, 45 * time.Second: {45 * time.Second, 45 * time.Second}} {
		if lo, hi := mustNew(t, ResponseConfig{Min: least}).Bounds(); [2]time.Duration{lo, hi} != want {
			t.Errorf("by default, with a min of %v: Bounds %v and %v; want %v", least, lo, hi, want)
		}
	}
	for name, want := range map[string]bool{"api.example.com/v1:x_-": true, strings.Repeat("x", 64): true, strings.Repeat("x", 65): false, `a"b`: false, "größe": false, "": false} {
		if IsPolicyName(name) != want {
			t.Errorf("%q as a name of a policy: %v, want %v", name, !want, want)
		}
	}
}

// The body depends on the client. Only a person who waits before a page is told to reload, and
// only if reloading repeats nothing but a GET.
func TestBodyByClient(t *testing.T) {
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
		{"fetch() of the same site", "", request("GET", "Sec-Fetch-Mode: same-origin", html), problem, ""},
		{"an image", "", request("GET", "Sec-Fetch-Mode: no-cors", html), problem, ""},
		{"HTTP/2: a program acts on the header", "", overHTTP2("Accept: */*"), "", ""},
		{"HTTP/2: no word of what it accepts", Auto, overHTTP2(), "", ""},
		{"HTTP/2: a program that reads JSON", "", overHTTP2("Accept: application/json"), problem, ""},
		{"HTTP/2: one that reads problems", "", overHTTP2("Accept: application/problem+json, */*"), problem, ""},
		{"HTTP/2: a browser's navigation", "", overHTTP2("Sec-Fetch-Mode: navigate", html), page, "6"},
		{"HTTP/2: fetch()", "", overHTTP2("Sec-Fetch-Mode: cors", "Accept: */*"), "", ""},
		{"HTTP/2: problem: always a body", Problem, overHTTP2(), problem, ""},
		{"HTTP/2: text", Text, overHTTP2(), text, ""},
		{"problem for a navigation", Problem, request("GET", html), page, "6"},
		{"html: always a page", HTML, request("GET", "Accept: */*"), page, "6"},
		{"html: a post repeats nothing", HTML, request("POST"), page, ""},
		{"html: nor does a delete", HTML, request("DELETE"), page, ""},
		{"text", Text, request("GET"), text, ""},
		{"text for a navigation too", Text, request("GET", html), text, ""},
		{"none", None, request("GET"), "", ""},
		{"none for a navigation too", None, request("GET", "Sec-Fetch-Mode: navigate", html), "", ""},
	} {
		t.Run(c.story, func(t *testing.T) {
			w := answer(mustNew(t, ResponseConfig{Body: c.body}), c.r, overQuota)
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
				if says := strings.Contains(got, "automatically"); says != (c.refresh != "") {
					t.Errorf("the page says that it reloads itself: %v; it has Refresh: %q", says, c.refresh)
				}
			}
			if c.contentType == text && got != "This client has used up its quota. Come back in 6 s.\n" {
				t.Errorf("text %q", got)
			}
		})
	}
}

// draft-ietf-httpapi-ratelimit-headers-11, section 3.1.
func TestWarn(t *testing.T) {
	for _, c := range []struct {
		story   string
		cfg     ResponseConfig
		backlog time.Duration
		limit   string
	}{
		{"a moment is a second", ResponseConfig{}, 1, `"capacity";r=1;t=1`},
		{"rounded up", ResponseConfig{}, 6001 * ms, `"capacity";r=1;t=7`},
		{"at most max", ResponseConfig{Max: 59 * time.Second}, time.Hour, `"capacity";r=1;t=59`},
		{"min is for those who are rejected", ResponseConfig{Min: 5 * time.Second}, ms, `"capacity";r=1;t=1`},
	} {
		for range 2 { // each response has values of its own
			h := http.Header{}
			if mustNew(t, c.cfg).Warn(h, c.backlog); h.Get("Ratelimit") != c.limit {
				t.Errorf("%s: %v", c.story, h)
			}
			h["Ratelimit"][0] = "changed"
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
	f      Rejection
	r      *http.Request
	allocs float64
}{
	{"quota", overQuota, request("GET"), 2}, // all header values, and the milliseconds as text
	{"overload", overload, request("GET"), 2},
	{"page", overload, request("GET", "Accept: text/html"), 2},
	{"never", neverQuota, request("GET"), 1},
	{"envoy", overQuota, request("GET", "X-Envoy-Attempt-Count: 1"), 2},
	{"grpc", overload, request("POST", "Content-Type: application/grpc"), 14}, // the details, field by field
}

// A rejection costs less than serving; this holds it there.
func TestWriteHardlyAllocates(t *testing.T) {
	a, now, w := mustNew(t, ResponseConfig{}), time.Now(), nop{http.Header{}}
	for _, c := range writes {
		if n := testing.AllocsPerRun(1000, func() {
			clear(w.header)
			a.Write(w, c.r, c.f, now)
		}); n > c.allocs {
			t.Errorf("%s: %v allocations, want at most %v", c.name, n, c.allocs)
		}
	}
	if n := testing.AllocsPerRun(1000, func() { a.Warn(w.header, 7*time.Second) }); n > 1 {
		t.Errorf("a warning: %v allocations, want at most 1", n)
	}
}

func BenchmarkWrite(b *testing.B) {
	a, now := mustNew(b, ResponseConfig{}), time.Now()
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

// A client that waits for "100 Continue" is answered at once, and its connection ends.
func TestUnblockEndsExpect(t *testing.T) {
	w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("body"))
	r.Header.Set("Expect", "100-continue")
	if Unblock(w, r, time.Now()); w.Header().Get("Connection") != "close" {
		t.Errorf("the headers are %v", w.Header())
	}
}

// WebSockets that are closed hold their connections until their clients answer, so there may be only so many at once.
func TestClosingWebSocketsAreBounded(t *testing.T) {
	a := mustNew(t, ResponseConfig{CloseWebSockets: true})
	r := request("GET", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
	if status := a.Write(httptest.NewRecorder(), r, overload, time.Now()); status != 101 || !a.Precise(r) || !a.Alone(r) {
		t.Errorf("a WebSocket is answered with %d", status)
	}
	a.closing.Store(maxClosing)
	if w := answer(a, r, overload); w.Code != 503 || a.closing.Load() != maxClosing {
		t.Errorf("one too many is answered with %d", w.Code)
	}
}

// FuzzHint holds every hint to RFC 9110, section 10.2.3 (delay-seconds =
// 1*DIGIT), and to this package's own law: 1 to 59, rounded up, and the
// milliseconds never contradict the seconds.
func FuzzHint(f *testing.F) {
	for _, wait := range []int64{0, 1, -1, 999_999, 1_000_000, 59e9, 59e9 + 1, math.MaxInt64, math.MinInt64} {
		f.Add(wait, uint8(0), uint8(29))
		f.Add(wait, uint8(4), uint8(4))
	}
	delaySeconds := regexp.MustCompile(`^[1-9][0-9]?$`)
	f.Fuzz(func(t *testing.T, nanoseconds int64, a, b uint8) {
		wait := time.Duration(nanoseconds)
		lo, hi := 1+int(min(a, b))%maxSeconds, 1+int(max(a, b))%maxSeconds
		lo, hi = min(lo, hi), max(lo, hi)
		h := hint(wait, time.Duration(lo)*time.Second, time.Duration(hi)*time.Second)
		told := time.Duration(h.Ms) * ms
		if !delaySeconds.MatchString(strconv.Itoa(h.Seconds)) || h.Seconds > maxSeconds {
			t.Errorf("%v in [%d, %d] is told as %d s", wait, lo, hi, h.Seconds)
		}
		if h.Seconds < lo || h.Seconds > hi {
			t.Errorf("%v is told as %d s, outside [%d, %d]", wait, h.Seconds, lo, hi)
		}
		if h.Ms < 1 || int(math.Ceil(float64(h.Ms)/1000)) != h.Seconds {
			t.Errorf("%v in [%d, %d]: %d ms and %d s are not the same time", wait, lo, hi, h.Ms, h.Seconds)
		}
		if told < wait && h.Ms != hi*1000 {
			t.Errorf("%v in [%d, %d] is told as %v: too early", wait, lo, hi, told)
		}
		if told-wait >= ms && wait > 0 && h.Ms != lo*1000 {
			t.Errorf("%v in [%d, %d] is told as %v: later than it need be", wait, lo, hi, told)
		}
	})
}
