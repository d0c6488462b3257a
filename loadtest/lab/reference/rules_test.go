// Package reference has nothing but tests, of the clients in clients/: each keeps the rules of
// docs/guides/write-a-client.md against a server that counts and measures, and a herd of each is served
// by a real shield in about the least time:
//
//	go -C loadtest/lab test ./reference # half a minute; LONG=1 has herds of 1,000
package reference

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/clients/go/shieldclient"
	"github.com/herdshield/shield/loadtest/lab/chromium"
	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
)

// slow is how much later than told a client may come on a busy machine, and still be seen to obey.
// All rules that it could hide differ by more.
const slow = 1500 * time.Millisecond

// An answer is what the server says: a status and headers, as "Name: value".
type answer struct {
	status  int
	headers []string
}

func says(status int, headers ...string) answer { return answer{status, headers} }

// A script is a server that gives its answers in turn, and the last again and again. The body of
// each is its number.
type script struct {
	answers []answer

	mu     sync.Mutex
	visits []visit
}

// A visit is a request, when it came, and when its answer was sent.
type visit struct {
	*http.Request
	body          string
	arrived, sent time.Time
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := visit{Request: r, arrived: time.Now()}
	body, _ := io.ReadAll(r.Body) // a body that is cut off is not what is wanted
	v.body = string(body)
	s.mu.Lock()
	n := min(len(s.visits), len(s.answers)-1)
	v.sent = time.Now()
	s.visits = append(s.visits, v)
	s.mu.Unlock()
	for _, h := range s.answers[n].headers {
		name, value, _ := strings.Cut(h, ": ")
		w.Header().Add(name, value)
	}
	w.WriteHeader(s.answers[n].status)
	_, _ = io.WriteString(w, "answer "+string(rune('1'+n)))
}

const (
	date = "Date: Sun, 06 Nov 1994 08:49:37 GMT" // a server whose clock is wrong
	ms   = "Retry-After-Ms: 200"
	also = "Retry-After: 1"
)

var rules = []struct {
	name    string
	call    call
	answers []answer
	visits  int
	status  int // 0: any
	wait    time.Duration
	skip    string   // the clients that have no such thing
	cookies []string // of each visit
}{
	{name: "milliseconds go before seconds", answers: []answer{says(503, "Retry-After: 3", "Retry-After-Ms: 300"), says(200)}, visits: 2, status: 200, wait: 300 * time.Millisecond},
	{name: "seconds", answers: []answer{says(429, also), says(200)}, visits: 2, status: 200, wait: time.Second},
	{name: "a date by the server's clock", answers: []answer{says(503, date, "Retry-After: Sun, 06 Nov 1994 08:49:39 GMT"), says(200)}, visits: 2, status: 200, wait: 2 * time.Second},
	{name: "a date as of 1989", answers: []answer{says(503, date, "Retry-After: Sun Nov  6 08:49:39 1994"), says(200)}, visits: 2, status: 200, wait: 2 * time.Second},
	{name: "a date as of 1985", answers: []answer{says(503, date, "Retry-After: Sunday, 06-Nov-94 08:49:39 GMT"), says(200)}, visits: 2, status: 200, wait: 2 * time.Second},
	{name: "a date that is over", answers: []answer{says(503, "Retry-After: Sun, 06 Nov 1994 08:49:39 GMT"), says(200)}, visits: 2, status: 200},
	{name: "milliseconds that are none", answers: []answer{says(503, "Retry-After-Ms: soon", also), says(200)}, visits: 2, status: 200, wait: time.Second},
	{name: "503 without a time", answers: []answer{says(503), says(200)}, visits: 1, status: 503},
	{name: "429 without a time", answers: []answer{says(429), says(200)}, visits: 1, status: 429},
	{name: "a negative time", answers: []answer{says(503, "Retry-After: -1"), says(200)}, visits: 1, status: 503},
	{name: "a fraction", answers: []answer{says(503, "Retry-After: 0.5"), says(200)}, visits: 1, status: 503},
	{name: "a time that is none", answers: []answer{says(503, "Retry-After: soon"), says(200)}, visits: 1, status: 503},
	{name: "a time that fits no number", answers: []answer{says(503, "Retry-After: 99999999999999999999999"), says(200)}, visits: 1, status: 503},
	{name: "never", answers: []answer{says(429, "X-Should-Retry: false"), says(200)}, visits: 1, status: 429},
	{name: "never goes before a time", answers: []answer{says(503, "X-Should-Retry: False", ms, also), says(200)}, visits: 1, status: 503},
	{name: "500", answers: []answer{says(500, ms), says(200)}, visits: 1, status: 500},
	{name: "504", answers: []answer{says(504, ms), says(200)}, visits: 1, status: 504},
	{name: "200 with a time", answers: []answer{says(200, ms)}, visits: 1, status: 200},

	{name: "attempts", call: call{Attempts: 3}, answers: []answer{says(503, ms), says(429, ms), says(503, ms), says(200)}, visits: 3, status: 503, wait: 200 * time.Millisecond},
	{name: "one attempt", call: call{Attempts: 1}, answers: []answer{says(503, ms), says(200)}, visits: 1, status: 503},
	{name: "attempts by default", answers: []answer{says(503, "Retry-After-Ms: 1")}, visits: 5, status: 503},
	{name: "a time beyond the total", call: call{Total: 2000}, answers: []answer{says(503, "Retry-After: 30"), says(200)}, visits: 1, status: 503},
	{name: "a time beyond the deadline", call: call{Total: 2000, deadline: true}, answers: []answer{says(503, "Retry-After: 30"), says(200)}, visits: 1, status: 503},
	{name: "a time beyond the total by default", answers: []answer{says(429, "Retry-After: 121"), says(200)}, visits: 1, status: 429},
	{name: "times that add up to more than the total", call: call{Total: 2500}, answers: []answer{says(503, also), says(503, "Retry-After: 2"), says(200)}, visits: 2, status: 503, wait: time.Second},
	{name: "cancelled", call: call{Abort: 1000}, answers: []answer{says(503, "Retry-After: 30"), says(200)}, visits: 1, skip: "python"},

	{name: "a body", call: call{Method: "POST", Body: "order 7"}, answers: []answer{says(503, ms), says(503, ms), says(200)}, visits: 3, status: 200, wait: 200 * time.Millisecond},
	{name: "a body that can be read once", call: call{Method: "POST", Body: "order 7", Stream: true}, answers: []answer{says(503, ms), says(200)}, visits: 1, status: 503},
	{name: "a body in a Request", call: call{Method: "POST", Body: "order 7", Request: true}, answers: []answer{says(503, ms), says(200)}, visits: 1, status: 503, skip: "go, python"},
	{name: "a Request without a body", call: call{Method: "DELETE", Request: true}, answers: []answer{says(503, ms), says(204)}, visits: 2, status: 204, wait: 200 * time.Millisecond},
	{name: "no body", call: call{Method: "DELETE"}, answers: []answer{says(503, ms), says(204)}, visits: 2, status: 204, wait: 200 * time.Millisecond},

	{name: "a ticket", answers: []answer{says(503, ms, "Set-Cookie: a=b", "Set-Cookie: shield_retry=one; Path=/; Max-Age=61; HttpOnly"), says(503, ms, "Set-Cookie: shield_retry=two; Path=/"), says(200)},
		visits: 3, status: 200, wait: 200 * time.Millisecond, cookies: []string{"", "shield_retry=one", "shield_retry=two"}},
	{name: "a ticket among cookies", call: call{Cookie: "session=1; shield_retry=zero; b=c"}, answers: []answer{says(503, ms, "Set-Cookie: shield_retry=one; Path=/"), says(503, ms), says(200)},
		visits: 3, status: 200, wait: 200 * time.Millisecond, cookies: []string{"session=1; shield_retry=zero; b=c", "session=1; b=c; shield_retry=one", "session=1; b=c; shield_retry=one"}},
	{name: "a ticket where cookies are kept", call: call{Jar: true}, answers: []answer{says(503, ms, "Set-Cookie: shield_retry=one; Path=/"), says(503, ms, "Set-Cookie: shield_retry=two; Path=/"), says(200)},
		visits: 3, status: 200, wait: 200 * time.Millisecond, cookies: []string{"", "shield_retry=one", "shield_retry=two"}},
}

// The same table for each language: what the server says, and what the client does.
func TestRules(t *testing.T) {
	for _, client := range clients {
		for _, c := range rules {
			t.Run(client.name+"/"+c.name, func(t *testing.T) {
				if strings.Contains(c.skip, client.name) {
					t.Skip("it cannot")
				}
				t.Parallel()
				s := &script{answers: c.answers}
				server := httptest.NewServer(s)
				defer server.Close()
				c.call.URL = server.URL + "/path?query"
				if c.call.Method == "" {
					c.call.Method = http.MethodGet
				}
				got := client.call(t, c.call)

				s.mu.Lock()
				defer s.mu.Unlock()
				if len(s.visits) != c.visits {
					t.Fatalf("%d requests, want %d; %+v", len(s.visits), c.visits, got)
				}
				switch last := "answer " + string(rune('0'+min(c.visits, len(c.answers)))); {
				case c.call.Abort > 0:
					if got.Error == "" {
						t.Errorf("%+v, want an error", got)
					}
				case got.Error != "" || got.Status != c.status || got.Status != http.StatusNoContent && got.Body != last:
					t.Errorf("%+v, want %d and %q", got, c.status, last)
				}
				for i, v := range s.visits {
					if v.Method != c.call.Method || v.URL.String() != "/path?query" || v.body != c.call.Body || v.Header.Get("Shield-Retry") == "" {
						t.Errorf("request %d is %s %s %v with %q, want %s /path?query with %q and Shield-Retry", i+1, v.Method, v.URL, v.Header, v.body, c.call.Method, c.call.Body)
					}
					if got := v.Header["Cookie"]; c.cookies != nil && strings.Join(got, "|") != c.cookies[i] {
						t.Errorf("request %d has cookies %q, want %q", i+1, got, c.cookies[i])
					}
					if i == 0 {
						continue
					}
					if waited := v.arrived.Sub(s.visits[i-1].sent); waited < c.wait || waited > c.wait+slow {
						t.Errorf("came after %v, want %v", waited, c.wait)
					}
				}
				if waited := time.UnixMilli(got.Returned).Sub(s.visits[c.visits-1].sent); waited > time.Duration(c.call.Abort)*time.Millisecond+slow {
					t.Errorf("returned after %v", waited)
				}
			})
		}
	}
}

// Where a POST has arrived and leads to a page that is rejected, it is not sent again.
func TestPostArrivesOnce(t *testing.T) {
	for _, client := range clients {
		t.Run(client.name, func(t *testing.T) {
			t.Parallel()
			s := &script{answers: []answer{says(303, "Location: /done"), says(503, ms), says(200)}}
			server := httptest.NewServer(s)
			defer server.Close()
			got := client.call(t, call{URL: server.URL + "/order", Method: http.MethodPost, Body: "order 7"})
			s.mu.Lock()
			defer s.mu.Unlock()
			var asked []string
			for _, v := range s.visits {
				asked = append(asked, v.Method+" "+v.URL.Path)
			}
			t.Logf("%q: %+v", asked, got)
			want := []string{"POST /order", "GET /done"}
			if len(asked) < 2 || !slices.Equal(asked[:2], want) || slices.Contains(asked[2:], want[0]) {
				t.Errorf("%q, want %q, and no further POST", asked, want)
			}
		})
	}
}

// The samples of the page do what it says. That in Go is an Example of shieldclient, as TestGoInDocs of caddymodule has it.
func TestSamplesOfThePage(t *testing.T) {
	page := must.Read(t, "../../../docs/guides/write-a-client.md")
	for _, sample := range []struct {
		language, folder, program string
		args                      []string
	}{
		{"js", "javascript", "node", []string{"--input-type=module", "--eval"}},
		{"python", "python", "python3", []string{"-c"}},
	} {
		t.Run(sample.language, func(t *testing.T) {
			t.Parallel()
			blocks := regexp.MustCompile("(?ms)^```"+sample.language+"\n(.*?)^```").FindAllStringSubmatch(page, -1)
			if len(blocks) != 1 {
				t.Fatalf("%d samples, want 1", len(blocks))
			}
			s := &script{answers: []answer{says(503, ms), says(200)}}
			server := httptest.NewServer(s)
			defer server.Close()
			code := strings.ReplaceAll(blocks[0][1], "http://localhost:8080", server.URL)
			out := output(t, filepath.Join("../../../clients", sample.folder), sample.program, append(sample.args, code)...)
			s.mu.Lock()
			defer s.mu.Unlock()
			if string(out) != "200\n" || len(s.visits) != 2 || s.visits[1].body == "" {
				t.Errorf("it prints %q after %d requests, want 200 after 2 with a body", out, len(s.visits))
			}
		})
	}
}

// A page in Chromium uses the client: the browser itself brings the ticket, which no script can read.
func TestInABrowser(t *testing.T) {
	t.Parallel()
	api := &script{answers: []answer{says(503, ms, "Set-Cookie: shield_retry=one; Path=/; Max-Age=61; HttpOnly; SameSite=Lax"), says(200)}}
	mux := http.NewServeMux()
	mux.Handle("POST /api", api)
	mux.HandleFunc("GET /shield-fetch.mjs", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		http.ServeFile(w, r, "../../../clients/javascript/shield-fetch.mjs")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/html") })
	server := httptest.NewServer(mux)
	defer server.Close()

	if got := chromium.Open(t, server.URL).Told(`
		const { keepAppointments } = await import('./shield-fetch.mjs');
		tell((await keepAppointments()('/api', { method: 'POST', body: 'order 7' })).status);`); got != "200" {
		t.Errorf("the page got %s, want 200", got)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	for i, want := range []string{"[]", "[shield_retry=one]"} {
		if v := api.visits[i]; fmt.Sprint(v.Header["Cookie"]) != want || v.body != "order 7" || v.Header.Get("Shield-Retry") == "" {
			t.Errorf("request %d has %q and %v, want cookies %s", i+1, v.body, v.Header, want)
		}
	}
	if waited := api.visits[1].arrived.Sub(api.visits[0].sent); waited < 200*time.Millisecond {
		t.Errorf("came after %v, want 200ms", waited)
	}
}

// program is shield, which TestMain builds.
var program string

// The tests wait for most of their time.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(process.Main(m, &program))
}

// A call is one request that a client is to make.
type call struct {
	URL      string `json:"url"`
	Method   string `json:"method"`
	Body     string `json:"body,omitempty"`
	Stream   bool   `json:"stream,omitempty"`  // the body can be read once only
	Request  bool   `json:"request,omitempty"` // in JavaScript, it is a Request
	Cookie   string `json:"cookie,omitempty"`  // that the program sets itself
	Jar      bool   `json:"jar,omitempty"`     // the client keeps cookies; that of JavaScript does so in browsers only
	Attempts int    `json:"attempts,omitempty"`
	Total    int    `json:"total,omitempty"` // in milliseconds, as all times here
	Abort    int    `json:"abort,omitempty"` // when it is cancelled; that of Python cannot be

	deadline bool // in Go, Total is the deadline of the context
}

// A result is what a call has returned: a response or an error.
type result struct {
	Status int    `json:"status"`
	Body   string `json:"body"`
	Error  string `json:"error"`

	Returned int64 `json:"returned"` // when, in milliseconds since 1970
}

// crowd is what became of a herd.
type crowd struct {
	Served   int   `json:"served"`
	Requests int   `json:"requests"`
	Began    int64 `json:"began"` // when the first client set out, in milliseconds since 1970
}

type client struct {
	name string
	call func(*testing.T, call) result
	herd func(t *testing.T, url string, n int) crowd
}

var clients = []client{
	{"go", callGo, herdGo},
	{"javascript", callOf("node", "testdata/driver.mjs"), herdOf("node", "testdata/driver.mjs")},
	{"python", callOf("python3", "testdata/driver.py"), herdOf("python3", "testdata/driver.py")},
}

func callGo(t *testing.T, c call) result {
	transport := &shieldclient.Transport{Attempts: c.Attempts}
	client := &http.Client{Transport: transport}
	switch total := time.Duration(c.Total) * time.Millisecond; {
	case c.deadline:
		client.Timeout = total // which sets the deadline of the context
	default:
		transport.Total = total
	}
	if c.Jar {
		client.Jar, _ = cookiejar.New(nil) // without options it does not fail
	}
	var body io.Reader = strings.NewReader(c.Body)
	if c.Stream {
		body = io.MultiReader(body) // net/http does not know how to read this a second time
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if c.Abort > 0 {
		time.AfterFunc(time.Duration(c.Abort)*time.Millisecond, cancel)
	}
	req := must.Get(http.NewRequestWithContext(ctx, c.Method, c.URL, body))(t)
	if c.Cookie != "" {
		req.Header.Set("Cookie", c.Cookie)
	}
	resp, err := client.Do(req)
	returned := time.Now().UnixMilli()
	if err != nil {
		return result{Error: err.Error(), Returned: returned}
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return result{Status: resp.StatusCode, Body: string(read), Returned: returned}
}

// counted counts the requests that a Transport sends.
type counted struct{ n atomic.Int64 }

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return http.DefaultTransport.RoundTrip(r)
}

func herdGo(t *testing.T, url string, n int) crowd {
	base := new(counted)
	client := &http.Client{Transport: &shieldclient.Transport{Base: base}}
	var served atomic.Int64
	var all sync.WaitGroup
	began := time.Now().UnixMilli()
	for i := range n {
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("X-Client", "go-"+strconv.Itoa(i))
			resp, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				served.Add(1)
			}
		})
	}
	all.Wait()
	return crowd{Served: int(served.Load()), Requests: int(base.n.Load()), Began: began}
}

func callOf(program, driver string) func(*testing.T, call) result {
	return func(t *testing.T, c call) (out result) {
		about := must.Get(json.Marshal(c))(t)
		run(t, &out, program, driver, "call", string(about))
		return out
	}
}

func herdOf(program, driver string) func(*testing.T, string, int) crowd {
	return func(t *testing.T, url string, n int) (out crowd) {
		run(t, &out, program, driver, "herd", url, strconv.Itoa(n))
		return out
	}
}

// run reads into out the JSON that a program prints.
func run(t *testing.T, out any, program string, args ...string) {
	t.Helper()
	must.Do(t, json.Unmarshal(output(t, "", program, args...), out))
}

// output runs a program in a folder, and returns what it prints.
func output(t *testing.T, folder, program string, args ...string) []byte {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if testing.Short() {
			t.Skip(err)
		}
		t.Fatalf("%v; install it, or leave its client out with go test -short", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = folder
	// In another zone, dates without a zone show whether they are read as GMT.
	cmd.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*", "TZ=America/New_York", "PYTHONDONTWRITEBYTECODE=1")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w\n%s%s", program, err, out, complaints.Bytes()))
	}
	return out
}

const (
	rate, burst = 100, 10 // of the capacity; the burst is the default

	// The most that a herd takes, of the least time, in which the rate is used up to the last request. shield
	// promises 98% of it.
	mostTime     = 1.03
	mostRequests = 2.02 // of one client
)

// A herd of each client before the real program: all are served, one after another, without a gap.
// A busy machine can make them late, so one attempt of three is enough.
func TestHerd(t *testing.T) {
	const n = 1000 // of fewer a process that starts late is more than 3%
	for _, client := range clients {
		t.Run(client.name, func(t *testing.T) {
			for range 3 {
				ratio, each := play(t, client, n)
				if t.Failed() || ratio <= mostTime && each <= mostRequests {
					return
				}
			}
			t.Errorf("want at most %v of the least time with %v requests each, at least once", mostTime, mostRequests)
		})
	}
}

// play has a herd of n served, and returns how long that took, of the least time, and the requests of each.
func play(t *testing.T, client client, n int) (ratio, each float64) {
	var mu sync.Mutex
	var last time.Time
	served := 0
	backend, stop, err := process.Serve(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		last = time.Now()
		served++
		_, _ = io.WriteString(w, "hello")
	}))
	must.Do(t, err)
	defer stop()
	const limits = "shield {\n capacity 100/s\n retries {\n key {http.request.header.X-Client}\n }\n }"
	url, stop, err := process.Shield(t.Context(), program, t.TempDir(), limits, "reverse_proxy "+backend)
	must.Do(t, err)
	defer stop()

	got := client.herd(t, url, n)
	mu.Lock()
	defer mu.Unlock()
	least := time.Duration(n-burst) * time.Second / rate
	took := last.Sub(time.UnixMilli(got.Began))
	ratio, each = took.Seconds()/least.Seconds(), float64(got.Requests)/float64(n)
	t.Logf("%d clients of %d served in %v, %.3f of the least time, with %.3f requests each", got.Served, n, took, ratio, each)
	if got.Served != n || served != n {
		t.Errorf("%d clients served, %d requests at the backend; want %d", got.Served, served, n)
	}
	return ratio, each
}
