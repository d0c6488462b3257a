package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

const perModel = `"zones": [{"name": "z", "key": "{shield.json.model}", "rate": 1, "per": "1h", "burst": 1}]`

// asks posts a JSON document to /, with more headers, each with a line feed at its end, and returns the status.
func (w *wire) asks(headers, document string) int {
	w.Helper()
	w.send("POST / HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: %d\n%s\n%s", len(document), headers, document)
	return w.answer().StatusCode
}

// TestLimitsByWhatTheBodySays has zones, classes and statuses that depend on a field of the JSON in the body.
func TestLimitsByWhatTheBodySays(t *testing.T) {
	const once = `"rate": 1, "per": "1h", "burst": 1`
	gpt := func(matcher string) string {
		return shed(`"zones": [{"name": "z", "match": [` + matcher + `], ` + once + `}]`)
	}
	for name, handlers := range map[string]string{
		"a key":                         shed(perModel),
		"a key, with a limit in flight": shed(`"concurrency": {"limit": 8}, ` + perModel),
		"vars":                          gpt(`{"vars": {"{shield.json.model}": ["gpt-x"]}}`),
		"an expression":                 gpt(`{"expression": "{shield.json.model} == 'gpt-x' && int({shield.json.max_tokens}) > 10"}`),
		"the second of two shields":     shed(`"zones": [{"name": "user", "key": "{shield.json.user}", "rate": 100}]`) + strings.ReplaceAll(shed(perModel), `"s"`, `"t"`),
		"the second shield, asking for the same": shed(`"zones": [{"name": "y", "key": "{shield.json.model}", "rate": 100}]`) +
			strings.ReplaceAll(shed(perModel), `"s"`, `"t"`),
		"behind the listener's door": shed(perModel),
	} {
		t.Run(name, func(t *testing.T) {
			s := setup{handlers: handlers + respondOK}
			if strings.Contains(name, "door") {
				s.server = withDoor
			}
			w := start(t, s).dial()
			got := ""
			for _, model := range []string{"gpt-x", "gpt-x", "gpt-y", "gpt-x", "gpt-z"} {
				got += fmt.Sprint(w.asks("", `{"messages": [{"model": "no"}], "model": "`+model+`", "max_tokens": 100}`), " ")
			}
			if want := "200 429 200 429 200 "; got != want {
				t.Errorf("gpt-x, gpt-x, gpt-y, gpt-x and gpt-z get %s, want %s", got, want)
			}
		})
	}
	t.Run("a status", func(t *testing.T) {
		r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "capacity": {"rate": 1, "per": "1h", "burst": 1}, "pushback": {"dither": false, "overload_statuses": [{"status": 529, "match": [{"vars": {"{shield.json.model}": ["gpt-x"]}}]}]}},` + respondOK})
		w := r.dial()
		if got := fmt.Sprint(w.asks("", `{"model": "gpt-x"}`), w.asks("", `{"model": "gpt-x"}`), w.asks("", `{"model": "gpt-y"}`)); got != "200 529 503" {
			t.Errorf("got %s, want 200 529 503", got)
		}
	})
}

// TestBodiesThatSayNothing counts all of them as one: what a client cannot be held to is empty.
func TestBodiesThatSayNothing(t *testing.T) {
	for name, c := range map[string][3]string{
		"another type":            {"text/plain", "", `{"model": "a"}`},
		"no type":                 {"", "", `{"model": "a"}`},
		"two types":               {"application/json\nContent-Type: application/json", "", `{"model": "a"}`},
		"compressed":              {"application/json", "Content-Encoding: gzip\n", `{"model": "a"}`},
		"after 64 KiB":            {"application/json", "", `{"x": "` + strings.Repeat("x", 64<<10) + `", "model": "a"}`},
		"wrong after the field":   {"application/json", "", `{"model": "a", }`},
		"something after the end": {"application/json", "", `{"model": "a"} x`},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, setup{handlers: shed(perModel) + respondOK}).dial()
			first := w.asks("", `{}`)
			w.send("POST / HTTP/1.1\nHost: x\nContent-Type: %s\nContent-Length: %d\n%s\n%s", c[0], len(c[2]), c[1], c[2])
			if got := w.answer().StatusCode; first != http.StatusOK || got != http.StatusTooManyRequests {
				t.Errorf("no document gets %d, and this one %d; want 200 and 429", first, got)
			}
		})
	}
}

// TestBackendsGetBodiesAsTheyWereSent has bodies of many sizes looked at, over real sockets.
func TestBackendsGetBodiesAsTheyWereSent(t *testing.T) {
	for _, limits := range []string{perModel, `"concurrency": {"limit": 8}, ` + perModel} {
		limits = strings.ReplaceAll(limits, `"rate": 1, "per": "1h", "burst": 1`, `"rate": 1000`)
		got := make(chan string, 1)
		backend := newHook(t, func(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
			body, err := io.ReadAll(r.Body)
			got <- fmt.Sprint(len(body), r.ContentLength, r.TransferEncoding, r.Trailer, err, string(body))
			return nil
		})
		w := start(t, setup{handlers: shed(limits) + backend}).dial()
		for _, size := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20} {
			body := (`{"model": "a", "x": "` + strings.Repeat("0123456789abcdef", size/16+1))[:size]
			for form, send := range map[string]func() (trailer http.Header){
				"with a length": func() http.Header {
					w.send("POST / HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: %d\n\n%s", size, body)
					return nil
				},
				"chunked": func() http.Header {
					w.send("POST / HTTP/1.1\nHost: x\nContent-Type: application/json\nTransfer-Encoding: chunked\nTrailer: X-Sum\n\n")
					for rest := body; rest != ""; {
						n := min(len(rest), 10_000)
						w.send("%x\n%s\n", n, rest[:n])
						rest = rest[n:]
					}
					w.send("0\nX-Sum: 1\n\n")
					return http.Header{"X-Sum": {"1"}}
				},
				"when it is asked for": func() http.Header {
					w.send("POST / HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: %d\nExpect: 100-continue\n\n", size)
					if size > 0 {
						if a := w.head(); a.StatusCode != http.StatusContinue {
							t.Fatalf("the body is not asked for: %d", a.StatusCode)
						}
					}
					w.send("%s", body)
					return nil
				},
			} {
				trailer, length, encoding := send(), int64(size), []string(nil)
				if trailer != nil {
					length, encoding = -1, []string{"chunked"}
				}
				want := fmt.Sprint(size, length, encoding, trailer, error(nil), body)
				if is := <-got; is != want {
					t.Errorf("%s: %d bytes %s come as %.80s, want %.80s", limits, size, form, is, want)
				}
				if a := w.answer(); a.StatusCode != http.StatusOK {
					t.Errorf("%s: %d bytes %s get %d", limits, size, form, a.StatusCode)
				}
			}
		}
		if n := bodies.Taken.Load(); n != 0 {
			t.Errorf("%d bytes are still taken", n)
		}
	}
}

// TestSlowBodiesDelayNoDecision has clients begin a document and stop. After 50 ms they are decided on as if the rest had no field; the
// backend gets what comes later, and trailers; and one that never comes is answered.
func TestSlowBodiesDelayNoDecision(t *testing.T) {
	for form, c := range map[string][4]string{
		"with a length": {"Content-Length: 24\n\n", `{"x": 1, `, `"model": "abc"}`, "[]"},
		"chunked":       {"Transfer-Encoding: chunked\nTrailer: X-Sum\n\n", "9\n" + `{"x": 1, ` + "\n", "e\n" + `"model": "abc"` + "\n1\n}\n0\nX-Sum: 1\n\n", "[1]"},
	} {
		t.Run(form, func(t *testing.T) {
			begun, got := make(chan bool, 1), make(chan string, 1)
			r := start(t, setup{handlers: shed(perModel) + newHook(t, func(_ http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
				begun <- true
				body, err := io.ReadAll(r.Body)
				got <- fmt.Sprint(string(body), r.Trailer["X-Sum"], err)
				return nil
			})})
			head := "POST / HTTP/1.1\nHost: x\nContent-Type: application/json\n" + c[0] + c[1]
			slow := r.dial()
			slow.send("%s", head)
			<-begun
			slow.send("%s", c[2])
			if is, want := <-got, `{"x": 1, "model": "abc"}`+c[3]+" <nil>"; is != want {
				t.Errorf("the backend gets %s, want %s", is, want)
			}
			if a := slow.answer(); a.StatusCode != http.StatusOK {
				t.Errorf("a slow client gets %d", a.StatusCode)
			}
			if status := slow.asks("", `{"model": "abc"}`); status != http.StatusOK {
				t.Errorf("a field that came late has been counted: %d", status)
			}
			began := shield.Now()
			never := r.dial()
			never.send("%s", head)
			if a := never.answer(); a.StatusCode != http.StatusTooManyRequests || shield.Now()-began > 2*time.Second {
				t.Errorf("one that never comes gets %d after %v, want 429", a.StatusCode, shield.Now()-began)
			}
			eventually(t, "nothing is taken", func() bool { return bodies.Taken.Load() == 0 })
		})
	}
}

// TestSlowBodiesOverHTTP2And3 is the same for the other protocols: the rest comes with trailers, or never.
func TestSlowBodiesOverHTTP2And3(t *testing.T) {
	begun, got := make(chan bool, 1), make(chan string, 1)
	cert := newCertificate(t)
	r := start(t, setup{apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2", "h3"],`, handlers: shed(perModel) + newHook(t, func(_ http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		begun <- true
		body, err := io.ReadAll(r.Body)
		got <- fmt.Sprint(string(body), r.Trailer["X-Sum"], err)
		return nil
	})})
	_, h3 := r.dialHTTP3(cert)
	for i, transport := range []http.RoundTripper{&http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: cert.trust}, h3} {
		post := func(body io.Reader) (int, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+r.addr+"/", body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Trailer = http.Header{"X-Sum": {"1"}}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				return 0, err
			}
			return resp.StatusCode, resp.Body.Close()
		}
		if i == 0 {
			read, write := io.Pipe()
			go func() {
				_, _ = io.WriteString(write, `{"x": 1, `)
				<-begun
				_, _ = io.WriteString(write, `"model": "abc"}`)
				_ = write.Close()
			}()
			if status, err := post(read); status != http.StatusOK || err != nil {
				t.Errorf("a slow client gets %d, %v", status, err)
			}
			if is, want := <-got, `{"x": 1, "model": "abc"}[1] <nil>`; is != want {
				t.Errorf("the backend gets %s, want %s", is, want)
			}
		}
		read, write := io.Pipe()
		go func() { _, _ = io.WriteString(write, `{"x": 1, `) }()
		began := shield.Now()
		if status, err := post(read); status != http.StatusTooManyRequests || err != nil || shield.Now()-began > 2*time.Second {
			t.Errorf("protocol %d: one that never comes gets %d, %v after %v, want 429", i, status, err, shield.Now()-began)
		}
		_ = write.Close()
		eventually(t, "nothing is taken", func() bool { return bodies.Taken.Load() == 0 })
	}
}

// FuzzField compares the scanner with encoding/json.
func FuzzField(f *testing.F) {
	for _, seed := range []string{
		`{"model": "x"}`, `{"a": {"model": 1.50}, "model": {"model": "y"}}`, `{"model": "x", "Model": "y"}`, `{"model": [1, {"model": 2}]}`,
		`{"model":-0.0}`, `{"model":1e400}`, `{"model": "\u006d\ud800"}`, `{"model": 12`, `{"model": true,}`, `[{"model": 1}]`, `{"model": "x"} {}`, `{"model" "x"}`, `{"\u006dodel": "x"}`,
	} {
		f.Add([]byte(seed), uint16(5))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		for _, path := range [][]string{{"model"}, {"model", "model"}, {"a", "model"}} {
			got, want := field(data, true, path), reference(data, path)
			if got != want {
				t.Fatalf("%q at %v is %q, want %q", data, path, got, want)
			}
			// Of a part nothing else is read than of the whole, unless a duplicate has been cut off.
			if part := field(data[:min(int(cut), len(data))], false, path); json.Valid(data) && part != "" && part != want && want != "" {
				t.Fatalf("the first %d bytes of %q have %q at %v, all have %q", cut, data, part, path, want)
			}
		}
	})
}

// reference is field as encoding/json has it, by one map for each object.
func reference(data []byte, path []string) string {
	if !json.Valid(data) {
		return ""
	}
	for i, name := range path {
		var members map[string]json.RawMessage
		if data = bytes.TrimSpace(data); data[0] != '{' || json.Unmarshal(data, &members) != nil {
			return ""
		}
		var found []json.RawMessage
		for d, depth := json.NewDecoder(bytes.NewReader(data)), 0; ; { // the map has one of two
			token, err := d.Token()
			if err != nil {
				break
			}
			if delim, is := token.(json.Delim); is {
				depth += map[json.Delim]int{'{': 1, '[': 1, '}': -1, ']': -1}[delim]
				continue
			}
			if key, is := token.(string); is && depth == 1 && strings.EqualFold(key, name) {
				var v json.RawMessage
				if d.Decode(&v) == nil {
					found = append(found, members[key])
				}
			} else if depth == 1 {
				var v json.RawMessage
				if d.Decode(&v) != nil {
					break
				}
			}
		}
		if len(found) != 1 {
			return ""
		}
		data = found[0]
		if i < len(path)-1 {
			continue
		}
		var v any
		d := json.NewDecoder(bytes.NewReader(data))
		if d.UseNumber(); d.Decode(&v) != nil {
			return ""
		}
		switch v := v.(type) {
		case string:
			return v
		case bool:
			return fmt.Sprint(v)
		case json.Number:
			return scalar(json.RawMessage(v))
		}
	}
	return ""
}

func TestNumbersHaveOneText(t *testing.T) {
	for text, want := range map[string]string{
		"100": "100", "1e2": "100", "100.0": "100", "1.5": "1.5", "-0": "0", "0.0": "0", "1e400": "", "9007199254740993": "9007199254740993", `"1e2"`: "1e2", "null": "", "true": "true",
	} {
		if got := scalar(json.RawMessage(text)); got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}

func BenchmarkField(b *testing.B) {
	body := []byte(`{"model": "gpt-x", "messages": [` + strings.Repeat(`{"role": "user", "content": "0123456789abcdef 0123456789abcdef 0123456789abcdef"},`, 700) + `{}]}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if field(body, true, []string{"model"}) != "gpt-x" {
			b.Fatal("not found")
		}
	}
}
