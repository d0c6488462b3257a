package livetest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Ingresses as users of ingress-nginx write them do what they do there.
func TestFilters(t *testing.T) {
	s, ns := shop(t, "filters")
	s.Serve(t, service(ns, "web"), "red", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Host, r.URL.RequestURI(), r.Header.Get("X-User"))
	})
	auth := pod(t, "auth", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-User", "ann")
		if !strings.HasPrefix(r.Header.Get("X-Original-Url"), "http://members.filters.test/in") {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	s.Create(t, service(ns, "empty"))
	const nginx = "nginx.ingress.kubernetes.io/"
	for name, in := range map[string]struct{ paths, annotations []string }{
		"groups":  {[]string{"/api(/|$)(.*)", "web", "/other", "web"}, []string{nginx + "rewrite-target", "/$2"}},
		"root":    {[]string{"/", "web"}, []string{nginx + "rewrite-target", "/", nginx + "app-root", "/app", nginx + "proxy-body-size", "8m"}},
		"regex":   {[]string{"/v[0-9]+/", "web"}, []string{nginx + "use-regex", "true", nginx + "upstream-vhost", "inside"}},
		"moved":   {[]string{"/", "none"}, []string{nginx + "permanent-redirect", "https://b.test$request_uri", nginx + "from-to-www-redirect", "true"}},
		"cors":    {[]string{"/", "web"}, []string{nginx + "enable-cors", "true", nginx + "limit-rpm", "1", nginx + "limit-burst-multiplier", "1"}},
		"sorry":   {[]string{"/", "empty"}, []string{nginx + "default-backend", "web"}},
		"members": {[]string{"/", "web"}, []string{nginx + "auth-url", "http://" + auth.Address + ":8080/", nginx + "auth-response-headers", "X-User", nginx + "auth-signin", "https://$host/start"}},
		"ahead":   {[]string{"/a(?!b)", "web"}, []string{nginx + "use-regex", "true"}},
	} {
		i := webIngress(ns, name, name+".filters.test", in.paths...)
		i.Annotations = pairs(in.annotations)
		s.Create(t, i)
	}
	p := begin(t, s.AdminKubeconfig(t), "one", "--nginx-annotations")
	p.Serves("sorry.filters.test", "/", 200, 10*time.Second)
	for _, c := range []struct {
		host, path, body string
		status           int
	}{
		{"groups", "/api/a/b?c=d", "groups.filters.test/a/b?c=d", 200}, {"groups", "/API", "groups.filters.test/", 200},
		{"groups", "/other/x", "groups.filters.test/", 200}, {"groups", "/apix", "", 404}, {"root", "/x?y", "root.filters.test/x?y", 200},
		{"root", "/", "/app", 302}, {"regex", "/V12/x", "inside/V12/x", 200}, {"regex", "/vx/", "", 404},
		{"moved", "/x?y", "https://b.test/x?y", 301}, {"www.moved", "/x?y", "http://moved.filters.test/x?y", 308},
		{"cors", "/", "cors.filters.test/", 200}, {"members", "/in?a", "members.filters.test/in?aann", 200}, {"members", "/out", "sign in", 302},
		{"ahead", "/ac", "", 404},
	} {
		if status, body := p.Get(c.host+".filters.test", c.path); status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s%s is answered %d %q, want %d %q", c.host, c.path, status, body, c.status, c.body)
		}
	}
	s.Told(t, ns, "ahead", "PathInvalid", "RE2") // which does not know the pattern
}
