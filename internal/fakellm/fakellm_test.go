package fakellm_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/herdshield/shield/internal/fakellm"
	"github.com/herdshield/shield/meter"
)

// ask posts to an API, and returns the body as it was sent, what a Meter finds in it, -1 for nothing, and whether it was cut off.
func ask(t *testing.T, url, body string, header ...string) (text string, tokens float64, cut bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept-Encoding", "gzip") // so that the client does not decode it
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", -1, true
	}
	defer w.Body.Close()
	if w.StatusCode != http.StatusOK {
		t.Fatal(w.Status)
	}
	if zipped := w.Header.Get("Content-Encoding") == "gzip"; zipped != (r.Header.Get("X-Fake-Gzip") == "1") {
		t.Errorf("compressed: %t", zipped)
	}
	source, err := meter.Parse("usage")
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(w.Body)
	m := source.Begin(w.StatusCode, w.Header)
	m.Write(all)
	tokens, ok := m.Cost(meter.End{Status: w.StatusCode})
	if !ok {
		tokens = -1
	}
	return string(all), tokens, err != nil
}

func stats(t *testing.T, s *fakellm.Server) (tokens, requests int) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/stats", nil))
	if _, err := fmt.Sscanf(w.Body.String(), `{"tokens": %d, "requests": %d}`, &tokens, &requests); err != nil {
		t.Fatal(err)
	}
	return tokens, requests
}

// What responses say is what /stats says, in every API.
func TestStats(t *testing.T) {
	s := new(fakellm.Server)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	sum, n := 0, 0
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"say \"usage\":{\"total_tokens\":1}"}],"max_tokens":100,"stream":%t,"stream_options":{"include_usage":true}}`,
		"/v1/responses":        `{"input":"say \"usage\":{\"total_tokens\":1}","max_output_tokens":100,"stream":%t}`,
		"/v1/messages":         `{"messages":[{"role":"user","content":[{"type":"text","text":"say it"}]}],"max_tokens":100,"stream":%t}`,
	} {
		for _, stream := range []bool{false, true} {
			for _, zip := range []string{"0", "1"} {
				_, tokens, cut := ask(t, server.URL+path, fmt.Sprintf(body, stream), "X-Fake-Gzip", zip)
				if tokens < 4 || cut {
					t.Errorf("%s, stream %t, gzip %s: %v tokens, cut off %t", path, stream, zip, tokens, cut)
				}
				sum, n = sum+int(tokens), n+1
				if tokens, requests := stats(t, s); tokens != sum || requests != n {
					t.Fatalf("%s, stream %t, gzip %s: %d tokens, %d requests; want %d, %d", path, stream, zip, tokens, requests, sum, n)
				}
			}
		}
	}
}

func TestSeedAndCut(t *testing.T) {
	s := new(fakellm.Server)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	const body = `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1000,"stream":true}`
	one, _, _ := ask(t, server.URL+"/v1/messages", body, "X-Fake-Seed", "7")
	two, _, _ := ask(t, server.URL+"/v1/messages", body, "X-Fake-Seed", "7")
	other, _, _ := ask(t, server.URL+"/v1/messages", body, "X-Fake-Seed", "8")
	if one != two || one == other {
		t.Errorf("with a seed, %d bytes, then %d; with another one %d", len(one), len(two), len(other))
	}
	// Of what was cut off, the server knows more than the client: 5 of the prompt and those 20.
	before, _ := stats(t, s)
	text, tokens, cut := ask(t, server.URL+"/v1/messages", body, "X-Fake-Seed", "7", "X-Fake-Cut", "20")
	after, _ := stats(t, s)
	if prompt := after - before - 20; !cut || strings.Count(text, "content_block_delta") != 2*20 || int(tokens) != prompt+1 {
		t.Errorf("cut off %t, %v tokens known of %d, in %q", cut, tokens, after-before, text)
	}
	// Without include_usage, nobody knows.
	if _, tokens, _ := ask(t, server.URL+"/v1/chat/completions", body); tokens != -1 {
		t.Errorf("a stream without include_usage says %v tokens", tokens)
	}
	for _, bad := range [][2]string{{"/v1/other", "{}"}, {"/v1/messages", "{"}} {
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, bad[0], strings.NewReader(bad[1]))); w.Code != http.StatusBadRequest {
			t.Errorf("%v: %d", bad, w.Code)
		}
	}
}
