package budgets

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/herdshield/shield/internal/fakellm"
	"github.com/herdshield/shield/meter"
)

// What SDKs report as used is what was counted, for whole responses and streams, compressed and not.
func TestSDKs(t *testing.T) {
	node, err := exec.LookPath("node")
	if err == nil {
		_, err = os.Stat("npm/node_modules/openai")
	}
	if err != nil {
		if os.Getenv("SHIELD_BROWSER_REQUIRED") != "" {
			t.Fatalf("%v: want node, and npm ci --ignore-scripts in the folder npm", err)
		}
		t.Skipf("needs node, and npm ci --ignore-scripts in the folder npm: %v", err)
	}
	backend := new(fakellm.Server)
	var zipped atomic.Int64
	base, settled := count(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if backend.ServeHTTP(w, r); w.Header().Get("Content-Encoding") == "gzip" {
			zipped.Add(1)
		}
	}))
	cmd := exec.CommandContext(t.Context(), node, "ask.mjs", base)
	cmd.Dir = "npm"
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	requests, all := 0, 0.
	for line := range strings.Lines(string(out)) {
		var sdk struct {
			Request string
			Tokens  float64
		}
		if err := json.Unmarshal([]byte(line), &sdk); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		got := settled(sdk.Request)
		t.Logf("%s: the SDK reports %v, %v were counted", sdk.Request, sdk.Tokens, got)
		if got != sdk.Tokens {
			t.Errorf("%s: the SDK reports %v, %v were counted", sdk.Request, sdk.Tokens, got)
		}
		requests++
		all += got
	}
	w := httptest.NewRecorder()
	backend.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/stats", nil))
	var stats struct{ Tokens, Requests float64 }
	if err := json.Unmarshal(w.Body.Bytes(), &stats); err != nil {
		t.Fatal(err)
	}
	if n := zipped.Load(); requests != 12 || n != 6 || stats.Requests != 12 || stats.Tokens != all {
		t.Errorf("%d requests, %d of them compressed, %v tokens were counted; the server has %+v; want 12 requests, 6 compressed", requests, n, all, stats)
	}
}

// count serves the backend behind a proxy that counts what each request uses. It returns the proxy's URL, and
// settled, which returns what the request with this X-Request has used: -1 if that is unknown.
func count(t *testing.T, backend http.Handler) (base string, settled func(request string) float64) {
	behind := httptest.NewServer(backend)
	t.Cleanup(behind.Close)
	to, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	source, err := meter.Parse("usage")
	if err != nil {
		t.Fatal(err)
	}
	type cost struct {
		request string
		tokens  float64
	}
	costs := make(chan cost, 100)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m := &metered{ResponseWriter: w, source: source}
		proxy.ServeHTTP(m, r)
		tokens, ok := m.meter.Cost(meter.End{Status: m.status, Header: w.Header(), Complete: true})
		if !ok {
			tokens = -1
		}
		costs <- cost{r.Header.Get("X-Request"), tokens}
	}))
	t.Cleanup(front.Close)
	known := map[string]float64{}
	return front.URL, func(request string) float64 {
		for {
			if tokens, ok := known[request]; ok {
				return tokens
			}
			select {
			case c := <-costs:
				known[c.request] = c.tokens
			case <-t.Context().Done():
				return -1
			}
		}
	}
}

// A metered is a ResponseWriter with a Meter.
type metered struct {
	http.ResponseWriter
	source meter.Source
	status int
	meter  *meter.Meter
}

func (m *metered) WriteHeader(status int) {
	if status >= 200 {
		m.status, m.meter = status, m.source.Begin(status, m.Header())
	}
	m.ResponseWriter.WriteHeader(status)
}

func (m *metered) Write(p []byte) (int, error) {
	n, err := m.ResponseWriter.Write(p)
	m.meter.Write(p[:n]) // the proxy has written the header
	return n, err
}

func (m *metered) Unwrap() http.ResponseWriter { return m.ResponseWriter }
