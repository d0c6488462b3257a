package dialects

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/herdshield/shield/loadtest/lab/chromium"
	"github.com/herdshield/shield/loadtest/lab/must"
)

const burst = 5

func limits(capacity int, pushback string) string {
	return fmt.Sprintf("shield {\n capacity %d/s burst %d\n pushback {\n cors *\n %s\n }\n }", capacity, burst, pushback)
}

// A page opens 200 EventSources at once. Each is told a time of its own, and comes back then. A busy machine can make them late, so
// one attempt of three is enough. Over HTTP/2 Chromium itself is late with so many, on two slow processors by 0.5 s, so another page
// has as many at the same time, of a server that only says when to return, and what those are late by is allowed.
func TestEventSources(t *testing.T) {
	t.Parallel()
	const n, capacity = 200, 20
	for range 3 {
		var seen visits
		s := serve(t, "https", limits(capacity, ""), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen.note(r)
			event(w, "data: hello")
			<-r.Context().Done()
		}))
		others := make(chan time.Duration, 1)
		go func() {
			late := time.Duration(0)
			defer func() { others <- late }() // also if it fails
			late = lateness(t, n, 10*time.Second)
		}()
		opens(t, s.url, n)
		late := <-others
		t.Logf("before a server that only says when to return, the worst came %v late", late)
		if seen.check(t, s, n, capacity, slack+late) || t.Failed() {
			return
		}
	}
	t.Error("none of three times did all come when they were told, and no more in a second than may")
}

// opens has a page open n EventSources of a server, and waits until it has all.
func opens(t *testing.T, url string, n int) {
	got := chromium.Open(t, elsewhere(t)).Told(fmt.Sprintf(`
		const n = %d, sources = [];
		let open = 0, closed = 0;
		const look = () => open + closed === n && tell({ open, closed });
		for (let i = 0; i < n; i++) {
			const source = new EventSource('%s/events?' + i);
			source.onmessage = () => { open++; look(); };
			source.onerror = () => { if (source.readyState === EventSource.CLOSED) { closed++; look(); } };
			sources.push(source);
		}`, n, url))
	if want := fmt.Sprintf(`{"open":%d,"closed":0}`, n); got != want {
		t.Errorf("the page has %s, want %s", got, want)
	}
}

// lateness returns how late the last of n EventSources comes back that were told times between one second and within.
func lateness(t *testing.T, n int, within time.Duration) (worst time.Duration) {
	var mu sync.Mutex
	due := map[string]time.Time{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		at, told := due[r.URL.RawQuery]
		wait := time.Second + (within-time.Second)*time.Duration(len(due))/time.Duration(n)
		if told {
			worst = max(worst, time.Since(at))
		} else {
			due[r.URL.RawQuery] = time.Now().Add(wait)
		}
		mu.Unlock()
		if !told {
			event(w, fmt.Sprintf("retry: %d", wait.Milliseconds()))
			return
		}
		event(w, "data: hello")
		<-r.Context().Done()
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	defer server.CloseClientConnections()
	opens(t, server.URL, n)
	mu.Lock()
	defer mu.Unlock()
	return worst
}

// event begins a response with the line of an event.
func event(w http.ResponseWriter, line string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Access-Control-Allow-Origin", "*")
	_, _ = fmt.Fprintf(w, "%s\n\n", line)
	_ = http.NewResponseController(w).Flush()
}

// A page opens 50 WebSockets with the lines that the docs have for it.
func TestWebSockets(t *testing.T) {
	t.Parallel()
	const n, capacity = 50, 4
	docs := must.Read(t, "../../../docs/guides/write-a-client.md")
	file := must.Read(t, "../../../clients/javascript/shield-websocket.mjs")
	_, lines, found := strings.Cut(strings.Replace(file, "export ", "", 1), "\n\n")
	if !found || !strings.Contains(docs, "```javascript\n"+lines+"```\n") {
		t.Error("the docs have other lines than the client")
	}
	var seen visits
	s := serve(t, "http", limits(capacity, "websocket close"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.note(r)
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: []string{"chat"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		_ = c.Write(r.Context(), websocket.MessageText, []byte("hello"))
		_, _, _ = c.Read(r.Context()) // until the client goes
	}))
	got := chromium.Open(t, elsewhere(t)).Told(lines + fmt.Sprintf(`
		const n = %d, closes = [];
		let open = 0;
		const Socket = WebSocket; // the one that the lines open is watched
		globalThis.WebSocket = class extends Socket {
			constructor(url) {
				super(url, ['chat', 'other']);
				this.addEventListener('close', (e) => closes.push([e.code, e.reason]));
			}
		};
		for (let i = 0; i < n; i++) connect('%s/socket?' + i, () => { if (++open === n) tell(closes); });`,
		n, strings.Replace(s.url, "http", "ws", 1)))
	var closes [][]any
	must.Do(t, json.Unmarshal([]byte(got), &closes))
	if len(closes) < n/2 {
		t.Errorf("%d were closed, want most", len(closes))
	}
	for _, c := range closes {
		if reason := fmt.Sprint(c[1]); c[0] != 1013.0 || !strings.HasPrefix(reason, "retry-after-ms=") {
			t.Errorf("closed with %v", c)
		}
	}
	if _, statuses := s.rejections(t); len(statuses) != 1 || statuses[http.StatusSwitchingProtocols] != len(closes) {
		t.Errorf("the log has %v", statuses)
	}
	// Of those that Chromium opens at once it delays all after the first sixteen by 1 to 5 s (services/network/websocket_throttler.cc),
	// those that return meanwhile as well.
	if !seen.check(t, s, n, capacity, 5*time.Second+slack) {
		t.Error("some came at another time than they were told, or too many in a second")
	}
}

// A page of another site reads what a rejected fetch was told, if the site allows that, and nothing if it does not. Its requests
// need a preflight, which takes none of the capacity, and bring cookies.
func TestFetchFromAnotherSite(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		t.Run(map[bool]string{true: "allowed", false: "not allowed"}[allowed], func(t *testing.T) {
			t.Parallel()
			origin, origins := elsewhere(t), "https://shop.example"
			if allowed {
				origins += " " + origin
			}
			s := serve(t, "http", "shield {\n capacity 1/m burst 1\n pushback {\n cors "+origins+"\n }\n }", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h := w.Header()
				h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
				h.Set("Access-Control-Allow-Headers", "X-Page")
				h.Set("Access-Control-Allow-Credentials", "true")
				_, _ = io.WriteString(w, "hello")
			}))
			got := chromium.Open(t, origin).Told(fmt.Sprintf(`
				const get = () => fetch('%s/', { headers: { 'X-Page': '1' }, credentials: 'include' });
				const first = await (await get()).text();
				await get().then(
					async (r) => tell([first, r.status, Number(r.headers.get('Retry-After-Ms')) > 500, r.headers.get('Proxy-Status'), (await r.json()).title]),
					(e) => tell([first, e.name]));`, s.url))
			want := `["hello","TypeError"]`
			if allowed {
				want = `["hello",503,true,"shield; error=http_request_denied; details=\"overload\"","Service Unavailable"]`
			}
			if got != want {
				t.Errorf("the page has read %s, want %s", got, want)
			}
		})
	}
}
