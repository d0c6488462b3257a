package dialects

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/herdshield/shield/loadtest/lab/chromium"
)

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
