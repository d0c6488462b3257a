package dialect

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// request returns a request with headers given as "Name: value".
func request(method, path string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func TestOf(t *testing.T) {
	const events, nocache, cors, empty, chromium = "Accept: text/event-stream", "Cache-Control: no-cache", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty", "User-Agent: Mozilla/5.0 (X11; Linux x86_64)"
	socket := []string{"Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}
	over2 := request("GET", "/", socket...)
	over2.ProtoMajor = 2
	for _, c := range []struct {
		story string
		r     *http.Request
		want  Dialect
	}{
		{"curl", request("GET", "/", "User-Agent: curl/8.0", "Accept: */*"), Plain},
		{"nothing at all", request("GET", "/"), Plain},
		{"Chromium's EventSource", request("GET", "/", events, nocache, cors, empty, chromium), EventSource},
		{"over plain HTTP from another machine", request("GET", "/", events, nocache, chromium), EventSource},
		{"one that reconnects", request("GET", "/", events, nocache, cors, empty, "Last-Event-ID: 7"), EventSource},
		{"a program that reads events", request("GET", "/", events, nocache, "User-Agent: okhttp/4.9"), Plain},
		{"@microsoft/fetch-event-source", request("GET", "/", events, cors, empty, chromium), Plain},
		{"an MCP client's listener, in a page", request("GET", "/", events, nocache, cors, empty, chromium, "Mcp-Session-Id: 1"), Plain},
		{"fetch with a token", request("GET", "/", events, nocache, cors, empty, chromium, "Authorization: Bearer x"), Plain},
		{"fetch with POST", request("POST", "/", events, nocache, cors, empty, chromium), Plain},
		{"fetch that accepts more", request("GET", "/", "Accept: text/event-stream, */*", nocache, cors, empty, chromium), Plain},
		{"a navigation", request("GET", "/", events, nocache, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document", chromium), Plain},
		{"a WebSocket", request("GET", "/", socket...), WebSocket},
		{"an upgrade to something else", request("GET", "/", "Connection: Upgrade", "Upgrade: h2c"), Plain},
		{"half a handshake", request("GET", "/", socket[:3]...), Plain},
		{"a key that is none", request("GET", "/", append(slices.Clone(socket[:3]), "Sec-WebSocket-Key: eA==")...), Plain},
		{"over HTTP/2", over2, Plain},
		{"git", request("GET", "/r.git/info/refs", "User-Agent: git/2.54.0"), Git},
		{"git-lfs", request("POST", "/r.git/info/lfs/objects/batch", "User-Agent: git-lfs/3.6.0 (GitHub; linux amd64; go 1.23)"), Git},
		{"github", request("GET", "/", "User-Agent: github-camo"), Plain},
		{"openai-node", request("POST", "/v1/responses", "User-Agent: OpenAI/JS 6.1.0"), OpenAI},
		{"openai-python, asynchronous, Azure", request("POST", "/x", "User-Agent: AsyncAzureOpenAI/Python 2.0"), OpenAI},
		{"another client of the path", request("POST", "/llm/v1/chat/completions"), OpenAI},
		{"Anthropic", request("POST", "/v1/messages", "Anthropic-Version: 2023-06-01"), Anthropic},
		{"MCP", request("POST", "/mcp", "Mcp-Protocol-Version: 2025-06-18", "Accept: application/json, text/event-stream"), JSONRPC},
		{"MCP of 2026", request("POST", "/mcp", "Mcp-Method: tools/call"), JSONRPC},
		{"JSON-RPC", request("POST", "/rpc", "Content-Type: application/json-rpc; charset=utf-8"), JSONRPC},
		{"GraphQL", request("POST", "/graphql", "Accept: application/graphql-response+json, application/json;q=0.9"), GraphQL},
	} {
		if is := Of(c.r); is != c.want {
			t.Errorf("%s: %d, want %d", c.story, is, c.want)
		}
		if n := testing.AllocsPerRun(10, func() { Of(c.r) }); n > 0 {
			t.Errorf("%s: %v allocations", c.story, n)
		}
	}
}

// Every object is JSON, has the wait once, and none if there is none.
func TestObjects(t *testing.T) {
	for d := range Dialects {
		for _, overload := range []bool{true, false} {
			contentType, text := d.Object("It is \"full\".", overload, "")
			_, never := d.Object("It is full.", overload, "Stay away.")
			if contentType == "" {
				if want := slices.Contains([]Dialect{OpenAI, Anthropic, JSONRPC, GraphQL}, d); want {
					t.Errorf("%d has no object", d)
				}
				continue
			}
			var got, last any
			told := strings.Replace(text, "{seconds}", "17", 1)
			load := strings.Contains(told, "server_error") || strings.Contains(told, "overloaded_error") || strings.Contains(told, "SERVICE_UNAVAILABLE")
			if err := json.Unmarshal([]byte(told), &got); err != nil || strings.Count(told, `It is \"full\". Please try again in 17s."`) != 1 || d != JSONRPC && load != overload {
				t.Errorf("%d: %s, %v", d, told, err)
			}
			if err := json.Unmarshal([]byte(never), &last); err != nil || !strings.Contains(never, `"It is full. Stay away."`) {
				t.Errorf("%d: %q, %v", d, never, err)
			}
		}
	}
}

func TestCORS(t *testing.T) {
	const shop = "Origin: https://shop.example"
	for _, c := range []struct {
		story  string
		cors   CORS
		r      *http.Request
		before []string // set by the site
		allow  string   // Access-Control-Allow-Origin
		reads  bool     // the headers of a rejection
	}{
		{"none", nil, request("GET", "/", shop), nil, "", false},
		{"listed", CORS{"https://a.example", "https://shop.example"}, request("GET", "/", shop), nil, "https://shop.example", true},
		{"not listed", CORS{"https://a.example"}, request("GET", "/", shop), nil, "", false},
		{"all", CORS{"*"}, request("GET", "/", shop), nil, "*", true},
		{"of the same site", CORS{"*"}, request("GET", "/"), nil, "", false},
		{"the site has set it", CORS{"https://a.example"}, request("GET", "/", shop), []string{"https://other.example"}, "https://other.example", true},
	} {
		h := http.Header{}
		if c.before != nil {
			h["Access-Control-Allow-Origin"] = c.before
		}
		c.cors.SetHeader(h, c.r)
		allow := strings.Join(h["Access-Control-Allow-Origin"], "; ")
		credentials := h.Get("Access-Control-Allow-Credentials") == "true"
		if allow != c.allow || strings.Contains(h.Get("Access-Control-Expose-Headers"), "Retry-After-Ms") != c.reads ||
			credentials != (c.story == "listed") || (h.Get("Vary") == "Origin") != (c.cors != nil) {
			t.Errorf("%s: %v", c.story, h)
		}
	}
}

// The stream of an EventSource begins with the usual time, and no other response is touched.
func TestRestore(t *testing.T) {
	if rec := httptest.NewRecorder(); Restore(rec, request("GET", "/", "Accept: text/event-stream")) != http.ResponseWriter(rec) {
		t.Error("another client's response is changed")
	}
	for _, c := range []struct {
		story   string
		status  int
		headers []string
		want    string
	}{
		{"a stream", 200, []string{"Content-Type: text/event-stream; charset=utf-8"}, "retry: 3000\n\ndata: 1\n\n"},
		{"a compressed one", 200, []string{"Content-Type: text/event-stream", "Content-Encoding: br"}, "data: 1\n\n"},
		{"one of known length", 200, []string{"Content-Type: text/event-stream", "Content-Length: 9"}, "retry: 3000\n\ndata: 1\n\n"},
		{"an error", 500, []string{"Content-Type: text/event-stream"}, "data: 1\n\n"},
		{"a page", 200, []string{"Content-Type: text/html"}, "data: 1\n\n"},
	} {
		for how, send := range map[string]func(w http.ResponseWriter){
			"Write":   func(w http.ResponseWriter) { io.WriteString(w, "data: 1\n\n") },
			"io.Copy": func(w http.ResponseWriter) { io.Copy(w, strings.NewReader("data: 1\n\n")) },
			"Flush": func(w http.ResponseWriter) {
				w.(http.Flusher).Flush()
				io.WriteString(w, "data: 1\n\n")
			},
		} {
			rec := httptest.NewRecorder()
			w := Restore(rec, request("GET", "/", "Accept: text/event-stream", "Cache-Control: no-cache", "User-Agent: Mozilla/5.0"))
			for _, h := range c.headers {
				name, value, _ := strings.Cut(h, ": ")
				w.Header().Set(name, value)
			}
			if c.status != 200 {
				w.WriteHeader(c.status)
			}
			send(w)
			if rec.Code != c.status || rec.Body.String() != c.want || rec.Result().Header.Get("Content-Length") != "" {
				t.Errorf("%s, by %s: %d %v %q", c.story, how, rec.Code, rec.Result().Header, rec.Body)
			}
		}
	}
}

// A client reads in the close when to come back, or that it is not to, whatever subprotocols it offers.
func TestCloseWebSocket(t *testing.T) {
	for ms, want := range map[int]websocket.CloseError{
		6420: {Code: websocket.StatusTryAgainLater, Reason: "retry-after-ms=6420"},
		0:    {Code: websocket.StatusPolicyViolation, Reason: "do not come back soon"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !IsWebSocket(r) {
				t.Error("it is not known")
			}
			if err := CloseWebSocket(w, r, ms, time.Now().Add(5*time.Second)); err != nil {
				t.Error(err)
			}
		}))
		for _, offers := range [][]string{nil, {"chat", "other"}} {
			c, _, err := websocket.Dial(t.Context(), s.URL, &websocket.DialOptions{Subprotocols: offers})
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = c.Read(t.Context())
			if got, _ := errors.AsType[websocket.CloseError](err); got != want || len(offers) > 0 && c.Subprotocol() != "chat" {
				t.Errorf("closed with %v and subprotocol %q, want %v", err, c.Subprotocol(), want)
			}
		}
		s.Close()
	}
}

// A client that answers the close with the beginning of a frame, and then with nothing, is waited for no longer than the deadline.
func TestClosedWebSocketEnds(t *testing.T) {
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = CloseWebSocket(w, r, 1000, time.Now().Add(200*time.Millisecond))
		close(ended)
	}))
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"+
		"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00")
	select {
	case <-ended:
	case <-time.After(4 * time.Second): // the library's own bound, for the beginning of a frame, is 5 s
		t.Error("it is waited for longer")
	}
}
