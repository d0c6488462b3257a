package dialects

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A client that obeys 429 alone, as git 2.54 does with http.maxRetries, comes in a herd. If it
// is not known as git it gives up at the first 503, unless the config says what it obeys.
func TestGit(t *testing.T) {
	const n = 300
	for _, c := range []struct{ agent, pushback string }{
		{"git/2.54.0", ""},
		{"hg/6.9", "pushback {\n overload_status 429 {\n match header User-Agent hg/*\n }\n }"},
		{"other/1.0", ""},
	} {
		t.Run(c.agent, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "http", "shield {\n capacity 100/s\n retries {\n key {http.request.header.X-Client}\n }\n "+c.pushback+"\n }",
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			var all sync.WaitGroup
			var served atomic.Int64
			for i := range n {
				all.Go(func() {
					for range 6 { // http.maxRetries=5
						r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/repo.git/info/refs?service=git-upload-pack", nil)
						r.Header.Set("User-Agent", c.agent)
						r.Header.Set("X-Client", fmt.Sprint(i))
						resp, err := plain.Do(r)
						if err != nil {
							t.Error(err)
							return
						}
						resp.Body.Close()
						if resp.StatusCode == http.StatusOK {
							served.Add(1)
							return
						}
						wait, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s")
						if resp.StatusCode != http.StatusTooManyRequests || err != nil {
							return
						}
						time.Sleep(wait)
					}
				})
			}
			all.Wait()
			known := !strings.HasPrefix(c.agent, "other")
			t.Logf("%d of %d were served", served.Load(), n)
			if known != (served.Load() == n) {
				t.Errorf("%d of %d were served", served.Load(), n)
			}
		})
	}
}
