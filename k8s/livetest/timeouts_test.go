package livetest

import (
	"net/http"
	"testing"
	"time"
)

// Requests that a backend never answers end in 504 and free their places, by the time-out that
// is in force at that moment: the flag's, ingress-nginx's, or shield's own.
func TestTimeouts(t *testing.T) {
	s, ns := shop(t, "timeouts")
	s.Serve(t, service(ns, "web", annotation+"endpoint-concurrency", "2"), "red", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
	})
	i := webIngress(ns, "web", "a.timeouts.test", "/", "web")
	s.Create(t, i)
	p := begin(t, s.AdminKubeconfig(t), "one", "--nginx-annotations", "--response-timeout", "2s")
	p.Serves("a.timeouts.test", "/", 200, 10*time.Second)
	hang := func() (took time.Duration) {
		began, statuses := time.Now(), make(chan int)
		for range 2 {
			go func() {
				status, _ := p.Get("a.timeouts.test", "/hang")
				statuses <- status
			}()
		}
		for range 2 {
			if status := <-statuses; status != http.StatusGatewayTimeout {
				t.Errorf("status %d, want 504", status)
			}
		}
		took = time.Since(began)
		p.Expect("200", "a.timeouts.test", "/", "a healthy request afterwards")
		return took
	}
	if took := hang(); took < 2*time.Second || took > onThisMachine(3*time.Second) {
		t.Errorf("by the flag it took %v, want 2s", took)
	}
	s.Patch(t, i, "", `metadata: {annotations: {nginx.ingress.kubernetes.io/proxy-read-timeout: "1"}}`)
	eventually(t, 10*time.Second, "ingress-nginx's time-out", func() bool { return hang() < 1800*time.Millisecond })
	s.Patch(t, i, "", `metadata: {annotations: {`+annotation+`response-timeout: 300ms}}`)
	eventually(t, 10*time.Second, "shield's own time-out", func() bool { return hang() < 900*time.Millisecond })

	s.Patch(t, i, "", `metadata: {annotations: {`+annotation+`response-timeout: soon}}`)
	s.Told(t, ns, "web", "PolicyInvalid", "response-timeout")
	if took := hang(); took > 900*time.Millisecond {
		t.Errorf("after a bad value it took %v, want 300ms as before", took)
	}
}
