package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

const perModel = `"zones": [{"name": "z", "key": "{shield.json.model}", "rate": 1, "per": "1h", "burst": 1}]`

// asks posts a JSON document to /, with more headers, each with a line feed at its end, and returns the status.
func (w *wire) asks(headers, document string) int {
	w.Helper()
	w.send("POST / HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: %d\n%s\n%s", len(document), headers, document)
	return w.answer().StatusCode
}

// TestLimitsByWhatTheBodySays has zones and classes that depend on a field of the JSON in the body.
func TestLimitsByWhatTheBodySays(t *testing.T) {
	gpt := func(matcher string) string {
		return shed(`"zones": [{"name": "z", "match": [` + matcher + `], "rate": 1, "per": "1h", "burst": 1}]`)
	}
	second := strings.ReplaceAll(shed(perModel), `"s"`, `"t"`)
	for name, c := range map[string]struct{ handlers, want string }{
		"a key":                                  {shed(perModel), "200 429 200 429 200 "},
		"a key, with a limit in flight":          {shed(`"concurrency": {"limit": 8}, ` + perModel), "200 429 200 429 200 "},
		"vars":                                   {gpt(`{"vars": {"{shield.json.model}": ["gpt-x"]}}`), "200 429 200 429 200 "},
		"an expression":                          {gpt(`{"expression": "{shield.json.model} == 'gpt-x' && int({shield.json.max_tokens}) > 10"}`), "200 429 200 429 200 "},
		"the second of two shields":              {shed(`"zones": [{"name": "user", "key": "{shield.json.user}", "rate": 100}]`) + second, "200 429 200 429 200 "},
		"the second shield, asking for the same": {shed(`"zones": [{"name": "y", "key": "{shield.json.model}", "rate": 100}]`) + second, "200 429 200 429 200 "},
	} {
		t.Run(name, func(t *testing.T) {
			w, got := start(t, setup{server: withDoor, handlers: c.handlers + respondOK}).dial(), ""
			for _, model := range []string{"gpt-x", "gpt-x", "gpt-y", "gpt-x", "gpt-z"} {
				got += fmt.Sprint(w.asks("", `{"messages": [{"model": "no"}], "model": "`+model+`", "max_tokens": 100}`), " ")
			}
			if got != c.want {
				t.Errorf("gpt-x, gpt-x, gpt-y, gpt-x and gpt-z get %s, want %s", got, c.want)
			}
		})
	}
}

// TestBodiesThatSayNothing counts all of them as one: what a client cannot be held to is empty.
func TestBodiesThatSayNothing(t *testing.T) {
	w := start(t, setup{handlers: shed(perModel) + respondOK}).dial()
	if first := w.asks("", `{}`); first != http.StatusOK {
		t.Errorf("no document gets %d", first)
	}
	for name, c := range map[string][3]string{
		"another type":            {"text/plain", "", `{"model": "a"}`},
		"no type":                 {"", "", `{"model": "a"}`},
		"two types":               {"application/json\nContent-Type: application/json", "", `{"model": "a"}`},
		"compressed":              {"application/json", "Content-Encoding: gzip\n", `{"model": "a"}`},
		"after 64 KiB":            {"application/json", "", `{"x": "` + strings.Repeat("x", 64<<10) + `", "model": "a"}`},
		"wrong after the field":   {"application/json", "", `{"model": "a", }`},
		"something after the end": {"application/json", "", `{"model": "a"} x`},
	} {
		w.send("POST / HTTP/1.1\nHost: x\nContent-Type: %s\nContent-Length: %d\n%s\n%s", c[0], len(c[2]), c[1], c[2])
		if got := w.answer().StatusCode; got != http.StatusTooManyRequests {
			t.Errorf("%s: %d, want 429", name, got)
		}
	}
}

// TestBackendsGetBodiesAsTheyWereSent has bodies of many sizes looked at, over real sockets.
func TestBackendsGetBodiesAsTheyWereSent(t *testing.T) {
	const post = "POST / HTTP/1.1\nHost: x\nContent-Type: application/json\n"
	for _, limits := range []string{"", `"concurrency": {"limit": 8}, `} {
		got := make(chan string, 1)
		backend := newHook(t, func(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
			body, err := io.ReadAll(r.Body)
			got <- fmt.Sprint(len(body), r.ContentLength, r.TransferEncoding, r.Trailer, err, string(body))
			return nil
		})
		w := start(t, setup{handlers: shed(limits+`"zones": [{"name": "z", "key": "{shield.json.model}", "rate": 1000}]`) + backend}).dial()
		for _, size := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20} {
			body := (`{"model": "a", "x": "` + strings.Repeat("0123456789abcdef", size/16+1))[:size]
			for _, form := range []string{"with a length", "chunked", "when it is asked for"} {
				length, encoding, trailer := int64(size), []string(nil), http.Header(nil)
				switch form {
				case "with a length":
					w.send(post+"Content-Length: %d\n\n%s", size, body)
				case "chunked":
					length, encoding, trailer = -1, []string{"chunked"}, http.Header{"X-Sum": {"1"}}
					w.send(post + "Transfer-Encoding: chunked\nTrailer: X-Sum\n\n")
					for chunk := range slices.Chunk([]byte(body), 10_000) {
						w.send("%x\n%s\n", len(chunk), chunk)
					}
					w.send("0\nX-Sum: 1\n\n")
				default:
					w.send(post+"Content-Length: %d\nExpect: 100-continue\n\n", size)
					if size > 0 {
						if a := w.head(); a.StatusCode != http.StatusContinue {
							t.Fatalf("the body is not asked for: %d", a.StatusCode)
						}
					}
					w.send("%s", body)
				}
				if is, want := <-got, fmt.Sprint(size, length, encoding, trailer, error(nil), body); is != want {
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

// A client that waits for a response before it sends more gets one as soon as its first object is whole. Messages of gRPC and Connect
// are no JSON, and in observe mode no body is refused.
func TestWhatIsNotWaitedFor(t *testing.T) {
	cert := newCertificate(t)
	r := start(t, setup{apps: cert.apps, server: cert.server + `"protocols": ["h2"],`, handlers: shed(perModel) + respondOK})
	for kind, begin := range map[string]string{
		"application/json": `{"messages": [{}], "model": "a}b"}`, "application/grpc+json": "\x00\x00\x00\x00\x05{}", "application/connect+json": "\x00\x00\x00\x00\x05{}",
	} {
		read, write := io.Pipe()
		go func() { _, _ = io.WriteString(write, begin) }()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+r.addr+"/", read)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		resp, err := (&http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: cert.trust}).RoundTrip(req)
		if err != nil || resp.StatusCode == http.StatusRequestTimeout {
			t.Errorf("%s: %v (%v), want a decision before the body ends", kind, resp, err)
		}
		_ = write.Close()
		cancel()
	}
	_ = caddy.Stop()
	r = start(t, setup{handlers: shed(`"mode": "observe", `+perModel) + respondOK})
	w := r.dial()
	w.send("%s", "POST / HTTP/1.1\nHost: x\nContent-Type: application/json\nTransfer-Encoding: chunked\n\nno size\n")
	if a := w.answer(); a.StatusCode != http.StatusOK {
		t.Errorf("in observe mode a broken body gets %d, want 200", a.StatusCode)
	}
}

// A body that no zone or class asks for is not looked at: a stream of JSON in both directions is answered while it goes on.
func TestBodiesThatNoZoneAsksFor(t *testing.T) {
	zone := `"zones": [{"name": "z", "match": [{"path": ["/chat"]}], "key": "{shield.json.user}", "rate": 1, "per": "1h", "burst": 1}]`
	r := start(t, setup{server: `"protocols": ["h1", "h2c"],`, handlers: shed(zone) + newHook(t, func(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		err := http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
		return err
	})})
	r.h2c()
	read, write := io.Pipe()
	call, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.addr+"/other", read)
	call.ContentLength, call.Header = -1, http.Header{"Content-Type": {"application/json"}}
	go func() { _, _ = io.WriteString(write, "[{\"n\": 1},\n") }()
	resp, err := r.client.Do(call)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	_ = write.Close()
	_ = resp.Body.Close()
}

// TestSlowBodiesAreWaitedFor has a client begin a document and send the rest later. It is decided on by the field that comes last, and the
// backend gets all of it, and trailers.
func TestSlowBodiesAreWaitedFor(t *testing.T) {
	for form, sum := range map[string]string{"HTTP/1.1 with a length": "[]", "HTTP/1.1": "[1]", "HTTP/2.0": "[1]", "HTTP/3.0": "[]"} { // quic-go reads no trailers
		got := make(chan string, 1)
		cert := newCertificate(t)
		r := start(t, setup{apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2", "h3"],`, handlers: shed(perModel) + newHook(t, func(_ http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
			body, err := io.ReadAll(r.Body)
			got <- fmt.Sprint(r.Proto, string(body), r.Trailer["X-Sum"], err)
			return nil
		})})
		var transport http.RoundTripper = &http.Transport{ForceAttemptHTTP2: form == "HTTP/2.0", TLSClientConfig: cert.trust}
		if form == "HTTP/3.0" {
			_, transport = r.dialHTTP3(cert)
		}
		post := func(body io.Reader) int {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+r.addr+"/", body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if req.Trailer = (http.Header{"X-Sum": {"1"}}); strings.Contains(form, "length") {
				req.Trailer, req.ContentLength = nil, 24
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			_ = resp.Body.Close()
			return resp.StatusCode
		}
		read, write := io.Pipe()
		go func() {
			_, _ = io.WriteString(write, `{"x": 1, `)
			pass(100 * time.Millisecond)
			_, _ = io.WriteString(write, `"model": "abc"}`)
			_ = write.Close()
		}()
		if status := post(read); status != http.StatusOK {
			t.Errorf("%s: a slow client gets %d", form, status)
		}
		if is, want := <-got, form[:8]+`{"x": 1, "model": "abc"}`+sum+" <nil>"; is != want {
			t.Errorf("%s: the backend gets %s, want %s", form, is, want)
		}
		if status := post(strings.NewReader(`{"x": 1, "model": "abc"}`)); status != http.StatusTooManyRequests {
			t.Errorf("%s: another request with the same field gets %d, want 429", form, status)
		}
		eventually(t, "nothing is taken", func() bool { return bodies.Taken.Load() == 0 })
		_ = caddy.Stop()
	}
}

// FuzzField compares the scanner with encoding/json.
func FuzzField(f *testing.F) {
	for _, seed := range []string{
		`{"model": "x"}`, `{"a": {"model": 1.50}, "model": {"model": "y"}}`, `{"model": "x", "Model": "y"}`, `{"model": [1, {"model": 2}]}`,
		`{"model":-0.0}`, `{"model":1e400}`, `{"model": "\u006d\ud800"}`, `{"model": 12`, `{"model": true,}`, `[{"model": 1}]`, `{"model": "x"} {}`, `{"model" "x"}`, `{"\u006dodel": "x"}`, `{"model": 0}"`,
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

// reference is field as encoding/json has it.
func reference(data []byte, path []string) string {
	if !json.Valid(data) {
		return ""
	}
	for _, name := range path {
		d := json.NewDecoder(bytes.NewReader(data))
		if open, _ := d.Token(); open != json.Delim('{') {
			return ""
		}
		var found []json.RawMessage
		for d.More() {
			var value json.RawMessage
			key, _ := d.Token()
			_ = d.Decode(&value)
			if strings.EqualFold(key.(string), name) {
				found = append(found, value)
			}
		}
		if len(found) != 1 {
			return ""
		}
		data = found[0]
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	_ = d.Decode(&v)
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return fmt.Sprint(v)
	case json.Number:
		return scalar(json.RawMessage(v))
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
