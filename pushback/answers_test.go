package pushback

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
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

	// The same, never to come back.
	neverQuota    = Refusal{Policy: 0, Hint: Hint{Never: true}}
	neverOverload = Refusal{Policy: -1, Hint: Hint{Never: true}}
)

func mustNew(tb testing.TB, c AnswerConfig) *Answers {
	tb.Helper()
	a, err := NewAnswers(c, policies)
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
	w := answer(mustNew(t, AnswerConfig{}), request("GET"), overQuota)
	if w.Code != http.StatusTooManyRequests {
		t.Errorf("status %d, want 429", w.Code)
	}
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After":      "6",
		"Retry-After-Ms":   "5250",
		"Ratelimit":        `"api";r=0;t=6`,
		"Ratelimit-Policy": `"api";q=100;w=60`,
		"Cache-Control":    "no-store",
		"Proxy-Status":     `shield; error=http_request_denied; details="quota"`,
		"Content-Type":     "application/problem+json",
	})
}

// A Go map of at most 8 entries is one group of slots. A ninth makes it a table, which is dearer
// to make, to copy and to walk: some 4 % of a refusal, measured as 0.8 to 1.5 us. Caddy adds Server;
// net/http writes Date without the map.
func TestFewHeaders(t *testing.T) {
	for _, f := range []Refusal{overQuota, overload, neverQuota, neverOverload} {
		if h := answer(mustNew(t, AnswerConfig{}), request("GET"), f).Header(); len(h) > 7 {
			t.Errorf("%d headers, want at most 7, as Server is the eighth: %v", len(h), h)
		}
	}
}

// RFC 9110, section 15.6.4: a 503 may say in Retry-After how long to wait. No
// quota of the client's is to blame, so no RateLimit.
func TestEveryHeaderOfA503(t *testing.T) {
	w := answer(mustNew(t, AnswerConfig{}), request("GET"), overload)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", w.Code)
	}
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After":    "6",
		"Retry-After-Ms": "5250",
		"Cache-Control":  "no-store",
		"Proxy-Status":   `shield; error=http_request_denied; details="overload"`,
		"Content-Type":   "application/problem+json",
	})
}

// RFC 9209, section 2.3; the details are a String of RFC 9651.
func TestProxyStatus(t *testing.T) {
	a, err := NewAnswers(AnswerConfig{}, []Policy{{Name: "z", Quota: 1, Window: time.Second}, {Name: "per_client", Quota: 2, Concurrent: true}})
	if err != nil {
		t.Fatal(err)
	}
	for policy, details := range map[int]string{-1: "overload", 0: "quota", 1: "per_client"} {
		want := `shield; error=http_request_denied; details="` + details + `"`
		for _, r := range []*http.Request{request("GET"), request("POST", "Content-Type: application/grpc")} {
			if got := answer(a, r, Refusal{Policy: policy, Hint: Hint{Seconds: 1, Ms: 1000}}).Header()["Proxy-Status"]; len(got) != 1 || got[0] != want {
				t.Errorf("policy %d: %q, want %s", policy, got, want)
			}
		}
	}
}

// Where the caller writes status and body, the headers are the same, without those that
// describe the body.
func TestSetHeader(t *testing.T) {
	a, w := mustNew(t, AnswerConfig{}), httptest.NewRecorder()
	a.SetHeader(w, overQuota)
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After": "6", "Retry-After-Ms": "5250", "Cache-Control": "no-store",
		"Ratelimit": `"api";r=0;t=6`, "Ratelimit-Policy": `"api";q=100;w=60`, "Proxy-Status": `shield; error=http_request_denied; details="quota"`,
	})
	w = httptest.NewRecorder()
	a.SetHeader(w, overload)
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After": "6", "Retry-After-Ms": "5250", "Cache-Control": "no-store", "Proxy-Status": `shield; error=http_request_denied; details="overload"`,
	})
}

// A client that is told never to come back gets no time in any header, and a plain no in
// those that SDKs read: X-Should-Retry those by Stainless, Stripe-Should-Retry Stripe's.
func TestEveryHeaderOfNever(t *testing.T) {
	const html = "text/html; charset=utf-8"
	for _, c := range []struct {
		name   string
		body   Body
		r      *http.Request
		f      Refusal
		status int
		want   map[string]string // in addition to those that all have
	}{
		{"quota", "", request("GET"), neverQuota, 429, map[string]string{
			"Ratelimit": `"api";r=0`, "Ratelimit-Policy": `"api";q=100;w=60`, "Content-Type": "application/problem+json"}},
		{"overload", "", request("GET"), neverOverload, 503, map[string]string{"Content-Type": "application/problem+json"}},
		{"a navigation", "", request("GET", "Sec-Fetch-Mode: navigate"), neverOverload, 503, map[string]string{"Content-Type": html}},
		{"its HEAD", "", request("HEAD", "Sec-Fetch-Mode: navigate"), neverOverload, 503, map[string]string{"Content-Type": html}},
		{"a form", HTML, request("POST"), neverOverload, 503, map[string]string{"Content-Type": html}},
		{"text", Text, request("GET"), neverOverload, 503, map[string]string{"Content-Type": "text/plain; charset=utf-8"}},
		{"none", None, request("GET"), neverOverload, 503, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := answer(mustNew(t, AnswerConfig{Body: c.body}), c.r, c.f)
			if w.Code != c.status {
				t.Errorf("status %d, want %d", w.Code, c.status)
			}
			want := map[string]string{"X-Should-Retry": "false", "Stripe-Should-Retry": "false", "Cache-Control": "no-store", "Proxy-Status": mustNew(t, AnswerConfig{}).wording(c.f).proxyStatus}
			if strings.HasPrefix(c.want["Content-Type"], "text/") {
				want["X-Content-Type-Options"] = "nosniff"
			}
			maps.Copy(want, c.want)
			wantHeader(t, w.Header(), want)

			body := w.Body.String()
			if (body != "") != (c.body != None && c.r.Method != "HEAD") {
				t.Fatalf("body %q", body)
			}
			if body != "" && !strings.Contains(strings.ToLower(body), "do not come back soon.") {
				t.Errorf("%q does not say so", body)
			}
			for _, promise := range []string{"retry-after", "automatically", "again", " s."} {
				if strings.Contains(body, promise) {
					t.Errorf("%q speaks of %q", body, promise)
				}
			}
			if c.want["Content-Type"] == "application/problem+json" && !json.Valid([]byte(body)) {
				t.Errorf("%q is not JSON", body)
			}
			if c.want["Content-Type"] == html && body != "" && !strings.HasSuffix(body, "</p></html>\n") {
				t.Errorf("page %q", body)
			}
		})
	}
}

// Body none keeps every header but those of the body.
func TestEveryHeaderOfNone(t *testing.T) {
	w := answer(mustNew(t, AnswerConfig{Body: None}), request("GET"), overQuota)
	if w.Code != http.StatusTooManyRequests || w.Body.Len() > 0 {
		t.Errorf("status %d, body %q; want 429 and none", w.Code, w.Body)
	}
	wantHeader(t, w.Header(), map[string]string{
		"Retry-After": "6", "Retry-After-Ms": "5250", "Cache-Control": "no-store", "Proxy-Status": `shield; error=http_request_denied; details="quota"`,
		"Ratelimit": `"api";r=0;t=6`, "Ratelimit-Policy": `"api";q=100;w=60`,
	})
}

// RFC 9110, section 10.2.3, and this package's own law: for every wait and
// every client, there is one Retry-After, an integer from 1 to 59, and every
// other header that says a time says the same.
func TestEveryTimeIsTheSame(t *testing.T) {
	one := func(h http.Header, name string) string {
		if len(h[name]) != 1 {
			t.Errorf("%s: %q, want one value", name, h[name])
			return ""
		}
		return h[name][0]
	}
	delaySeconds := regexp.MustCompile(`^[1-9][0-9]?$`)
	a := mustNew(t, AnswerConfig{Max: maxSeconds * time.Second})
	for _, wait := range []time.Duration{-1, 0, 1, ms, 999 * ms, time.Second, 1001 * ms, 9999 * ms, 10 * time.Second, 58_001 * ms, 59 * time.Second, time.Hour} {
		for policy := -1; policy < len(policies); policy++ {
			f := Refusal{Policy: policy, Hint: a.Hint(wait), Ticket: "a"}
			for _, r := range []*http.Request{request("GET"), request("HEAD", "Accept: text/html"), request("POST", "Content-Type: text/plain")} {
				r.Header.Set("Shield-Retry", "yes")
				h := answer(a, r, f).Header()
				seconds, ms := one(h, "Retry-After"), one(h, "Retry-After-Ms")
				if n, err := strconv.Atoi(ms); !delaySeconds.MatchString(seconds) || err != nil || strconv.Itoa((n+999)/1000) != seconds {
					t.Errorf("%v: Retry-After: %s, Retry-After-Ms: %s", wait, seconds, ms)
				}
				if refresh := h["Refresh"]; refresh != nil && one(h, "Refresh") != seconds {
					t.Errorf("%v: Refresh: %s, Retry-After: %s", wait, refresh, seconds)
				}
				if !strings.HasPrefix(one(h, "Shield-Retry"), "after="+string(appendSeconds(nil, int64(f.Hint.Ms)))+", ") {
					t.Errorf("%v: Shield-Retry: %s, Retry-After-Ms: %s", wait, h["Shield-Retry"], ms)
				}
			}
			h := answer(a, request("POST", "Content-Type: application/grpc"), f).Header()
			if got := one(h, "Grpc-Retry-Pushback-Ms"); got != strconv.Itoa(f.Hint.Ms) || h["Retry-After"] != nil {
				t.Errorf("%v: pushback %s, Retry-After: %s; want %d and none", wait, got, h["Retry-After"], f.Hint.Ms)
			}
		}
	}
}

// An Envoy in between does not retry what says X-Envoy-Ratelimited, of whatever
// status; it is the Envoy that passed the request on that would.
func TestEnvoyIsToldNotToRetry(t *testing.T) {
	a := mustNew(t, AnswerConfig{})
	for header, want := range map[string]string{
		"X-Envoy-Attempt-Count: 1":            "true",
		"X-Envoy-Expected-Rq-Timeout-Ms: 250": "true",
		"X-Envoy-Original-Path: /":            "true",
		"X-Envoy-Max-Retries: 3":              "", // a request to an Envoy, not from one
		"Via: 1.1 proxy":                      "",
	} {
		for _, f := range []Refusal{overQuota, overload, neverOverload} {
			for _, kind := range []string{"application/json", "application/grpc"} {
				r := request("POST", "Content-Type: "+kind, header)
				if got := answer(a, r, f).Header().Get("X-Envoy-Ratelimited"); got != want {
					t.Errorf("%s, %s, policy %d: X-Envoy-Ratelimited: %q, want %q", header, kind, f.Policy, got, want)
				}
				w := httptest.NewRecorder()
				if a.SetHeaderFor(w, r, f); w.Header().Get("X-Envoy-Ratelimited") != want {
					t.Errorf("%s, SetHeaderFor: %v, want %q", header, w.Header(), want)
				}
			}
		}
	}
}

// HTTP/1.0 (RFC 9112, appendix C.2) knows no chunks: there is a Content-Length,
// or the end of the connection ends the body.
func TestHTTP10(t *testing.T) {
	a := mustNew(t, AnswerConfig{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.Write(w, r, overQuota, time.Now()) }))
	defer s.Close()
	for _, method := range []string{"GET", "HEAD"} {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, method+" / HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(c) // to the end of the connection
		if err != nil {
			t.Fatal(err)
		}
		w, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), request(method))
		if err != nil {
			t.Fatalf("%v in %q", err, raw)
		}
		body, err := io.ReadAll(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		if w.StatusCode != 429 || w.Header.Get("Retry-After") != "6" || len(w.TransferEncoding) > 0 || json.Valid(body) != (method == "GET") {
			t.Errorf("%s: %q", method, raw)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  AnswerConfig
		want string // "": none
	}{
		{AnswerConfig{Name: "api.example.com/v1:x_-", GiveUp: time.Minute, Backoff: true, NoDither: true}, ""},
		{AnswerConfig{Name: strings.Repeat("x", 64), GiveUp: 24 * time.Hour}, ""},
		{AnswerConfig{Name: strings.Repeat("x", 65)}, "name is"},
		{AnswerConfig{Name: `a"b`}, "name is"},
		{AnswerConfig{Name: "größe"}, "name is"},
		{AnswerConfig{Name: "a\xff"}, "name is"},
		{AnswerConfig{GiveUp: time.Minute - 1}, "give_up is 59.999999999s; want 1m to 24h"},
		{AnswerConfig{GiveUp: 24*time.Hour + 1}, "give_up is"},
		{AnswerConfig{GiveUp: -time.Hour}, "give_up is"},
	} {
		a, err := NewAnswers(c.cfg, policies)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
		if err == nil && (a.config.GiveUp != c.cfg.GiveUp || a.Dither() == c.cfg.NoDither) {
			t.Errorf("%+v: GiveUp %v, Dither %v", c.cfg, a.config.GiveUp, a.Dither())
		}
	}
	a := mustNew(t, AnswerConfig{Min: 2 * time.Second, Max: 7 * time.Second})
	if lo, hi := a.Bounds(); lo != 2*time.Second || hi != 7*time.Second {
		t.Errorf("Bounds: %v and %v, want 2s and 7s", lo, hi)
	}
	a = mustNew(t, AnswerConfig{})
	if lo, hi := a.Bounds(); lo != time.Second || hi != 30*time.Second || a.config.GiveUp != 0 || !a.Dither() {
		t.Errorf("by default: Bounds %v and %v, GiveUp %v, Dither %v; want 1s and 30s, 0, true", lo, hi, a.config.GiveUp, a.Dither())
	}
}

// draft-ietf-httpapi-ratelimit-headers-10, sections 3.1 and 4.1, in the syntax
// of RFC 9651: a List of one String with Integer parameters, w above 0. Section
// 6: Retry-After is not earlier than t, whatever is told. The same sections of
// -11 say no more that would matter here.
func TestRateLimitSyntax(t *testing.T) {
	rateLimit := regexp.MustCompile(`^"[\x20-\x21\x23-\x5b\x5d-\x7e]+";r=0;t=([1-9][0-9]?)$`)
	policy := regexp.MustCompile(`^"[\x20-\x21\x23-\x5b\x5d-\x7e]+";q=[0-9]{1,15};w=[1-9][0-9]{0,14}$`)
	a := mustNew(t, AnswerConfig{Max: maxSeconds * time.Second})
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
	if got := answer(a, request("GET"), Refusal{Policy: 1, Hint: hintOf(1, 1)}).Header().Get("RateLimit-Policy"); got != `"shop/login";q=3;w=2` {
		t.Errorf("a window of 1.5s: %s", got)
	}
}

// RFC 9457, section 3.1: type, title, status and detail; section 3.2: extension
// members. The types are those of draft-ietf-httpapi-ratelimit-headers-10,
// section 5.
func TestProblemDetails(t *testing.T) {
	for _, c := range []struct {
		name     string
		cfg      AnswerConfig
		f        Refusal
		status   int
		title    string
		kind     string
		violated []string
	}{
		{"quota", AnswerConfig{}, overQuota, 429, "Too Many Requests", "quota-exceeded", []string{"api"}},
		{"overload", AnswerConfig{}, overload, 503, "Service Unavailable", "temporary-reduced-capacity", nil},
		{"another zone", AnswerConfig{}, Refusal{Policy: 1, Hint: hintOf(17, 16_001)}, 429, "Too Many Requests", "quota-exceeded", []string{"shop/login"}},
		{"another status", AnswerConfig{Status: 403}, overQuota, 403, "Forbidden", "quota-exceeded", []string{"api"}},
		{"a status without a name", AnswerConfig{OverloadStatus: 529}, overload, 529, "Refused", "temporary-reduced-capacity", nil},
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
			w := answer(mustNew(t, AnswerConfig{Body: c.body}), c.r, overQuota)
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

func overHTTP2(headers ...string) *http.Request {
	r := request("GET", headers...)
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	return r
}

// RFC 9110, section 9.3.2: a HEAD gets the headers of the GET and no content.
func TestHeadIsGetWithoutBody(t *testing.T) {
	for _, body := range []Body{Problem, HTML, Text, None} {
		for _, f := range []Refusal{overQuota, overload, neverQuota} {
			a := mustNew(t, AnswerConfig{Body: body})
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

// RFC 6585, section 4, for 429; and a stored 503 would not say when it was
// true.
func TestNoAnswerMayBeStored(t *testing.T) {
	for _, body := range []Body{Problem, HTML, Text, None} {
		for _, f := range []Refusal{overQuota, overload, neverQuota} {
			for _, r := range []*http.Request{request("GET"), request("GET", "Accept: text/html"), request("POST", "Content-Type: application/grpc")} {
				if got := answer(mustNew(t, AnswerConfig{Body: body}), r, f).Header().Get("Cache-Control"); got != "no-store" {
					t.Errorf("%s, policy %d, %v: Cache-Control: %q", body, f.Policy, r.Header, got)
				}
			}
		}
	}
}

// Handlers around this one may change header values in place. That must not
// reach other answers, nor the next header of the same answer.
func TestHeaderValuesAreNotShared(t *testing.T) {
	a := mustNew(t, AnswerConfig{})
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
	{"never", neverQuota, request("GET"), 1},
	{"envoy", overQuota, request("GET", "X-Envoy-Attempt-Count: 1"), 2},
	{"known", overload, request("GET", "Shield-Retry: yes"), 3},               // and the field
	{"grpc", overload, request("POST", "Content-Type: application/grpc"), 14}, // the details, field by field
}

func BenchmarkWrite(b *testing.B) {
	a, now := mustNew(b, AnswerConfig{}), time.Now()
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
	a, now, w := mustNew(t, AnswerConfig{}), time.Now(), nop{http.Header{}}
	for _, c := range writes {
		if n := testing.AllocsPerRun(1000, func() {
			clear(w.header)
			a.Write(w, c.r, c.f, now)
		}); n > c.allocs {
			t.Errorf("%s: %v allocations, want at most %v", c.name, n, c.allocs)
		}
	}
}
