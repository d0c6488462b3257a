package reference

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A page in Chromium uses the client: the browser itself brings the ticket, which no script can read.
func TestInABrowser(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("SHIELD_BROWSER_REQUIRED") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Parallel()
	api := &script{answers: []answer{says(503, ms, "Set-Cookie: shield_retry=one; Path=/; Max-Age=61; HttpOnly; SameSite=Lax"), says(200)}}
	results := make(chan string, 1)
	mux := http.NewServeMux()
	mux.Handle("POST /api", api)
	mux.HandleFunc("GET /shield-fetch.mjs", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		http.ServeFile(w, r, "../../../clients/javascript/shield-fetch.mjs")
	})
	mux.HandleFunc("POST /result", func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) // what is cut off is not what is wanted
		results <- string(text)
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<!doctype html><script type="module">
			import { keepAppointments } from './shield-fetch.mjs';
			const result = await keepAppointments()('/api', { method: 'POST', body: 'order 7' }).then((r) => r.status, String);
			fetch('/result', { method: 'POST', body: result });
		</script>`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	profile, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(profile) // its last processes may still write as it is killed
	cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--user-data-dir="+profile, "--remote-debugging-port=0", server.URL)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it starts others
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // it was killed
	}()
	select {
	case got := <-results:
		if got != "200" {
			t.Errorf("the page got %s, want 200", got)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the page has sent no result")
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
