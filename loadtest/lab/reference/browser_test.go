package reference

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/chromium"
)

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
