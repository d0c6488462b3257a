package dialects

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/chromium"
)

// A page of another site reads what a rejected fetch was told, if the site allows that, and nothing if it does not. Its requests
// need a preflight, and bring cookies.
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

// A page sends 1,000 preflights and 1,000 requests, of which the limits let few in. No preflight is rejected, and none is charged: as
// many requests are admitted as without them.
func TestPreflights(t *testing.T) {
	t.Parallel()
	var preflights, requests atomic.Int64
	backend := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			preflights.Add(1)
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		requests.Add(1)
	})
	const quota, seconds = 10, 4
	s := serve(t, "http", fmt.Sprintf("shield {\n capacity %d/s\n zone each {\n rate %d/s\n burst %d\n }\n }", 2*quota, quota, quota), backend)
	var all sync.WaitGroup
	const n, at = 1000, 8
	began := time.Now()
	rejected := make([]int, at)
	for worker := range at {
		all.Go(func() {
			for i := range n / at {
				time.Sleep(time.Until(began.Add(time.Duration(i) * seconds * time.Second * at / n)))
				if status := ask(t, s.url, http.MethodOptions); status != http.StatusNoContent {
					rejected[worker]++
				}
				ask(t, s.url, http.MethodGet)
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	for _, r := range rejected {
		if r > 0 {
			t.Errorf("%d preflights were rejected", r)
		}
	}
	admitted, most := float64(requests.Load()), quota+quota*took
	t.Logf("%d preflights and %v requests at the backend in %.1f s, for which the quota is %.1f", preflights.Load(), admitted, took, most)
	if preflights.Load() != n || admitted > most+1 || admitted < 0.9*most {
		t.Errorf("want all %d preflights, and as many requests as the quota", n)
	}

	// A flood of preflights is bounded: those are requests as any.
	preflights.Store(0)
	began = time.Now()
	var sent atomic.Int64
	for range at {
		all.Go(func() {
			for time.Since(began) < 2*time.Second {
				ask(t, s.url, http.MethodOptions)
				sent.Add(1)
			}
		})
	}
	all.Wait()
	most = 1000 + 2*quota*time.Since(began).Seconds() + float64(quota+quota*3)
	t.Logf("of a flood of %d preflights %d passed", sent.Load(), preflights.Load())
	if passed := float64(preflights.Load()); passed > most || sent.Load() < 2*int64(most) {
		t.Errorf("%v of %d preflights passed, want at most %v", passed, sent.Load(), most)
	}
}

var plain = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}

// ask sends a request, a preflight if it is OPTIONS, and returns the status.
func ask(t *testing.T, url, method string) int {
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	r.Header.Set("Origin", "https://shop.example")
	if method == http.MethodOptions {
		r.Header.Set("Access-Control-Request-Method", "PUT")
	}
	resp, err := plain.Do(r)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
