package route

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/must"
)

func TestRewrite(t *testing.T) {
	pattern := func(p, to string) *model.Rewrite {
		return &model.Rewrite{Pattern: regexp.MustCompile("(?i)^(?:" + p + ")"), To: to}
	}
	prefix := func(p, to string) *model.Rewrite { return &model.Rewrite{Prefix: p, To: to} }
	for _, c := range []struct {
		rewrite *model.Rewrite
		path    string
		want    string // "" is a rejection
	}{
		{&model.Rewrite{To: "/"}, "/a/b?c=d", "/?c=d"}, {&model.Rewrite{To: "/x y$1"}, "/a", "/x%20y"},
		{pattern("/api(/|$)(.*)", "/$2"), "/api/users/42?x=%2F", "/users/42?x=%2F"}, {pattern("/api(/|$)(.*)", "/$2"), "/api", "/"},
		{pattern("/api(/|$)(.*)", "/v2/$2"), "/API/Users", "/v2/Users"}, {pattern("/(a)/(.*)", "/$2/$1$3"), "/a/b/c", "/b/c/a"},
		{pattern("/a/(.*)", "$1"), "/a/b", "/b"}, {pattern("/a/(.*)", "/$1"), "/a/x%20y%3Fz%23%25", "/x%20y%3Fz%23%25"},
		{pattern("/a/(.*)", "/$1"), "/a/x%20y%3Fz%23é", "/x%20y%3Fz%23%C3%A9"}, {pattern("/a/(.*)", "/$1"), "/a/b%2Fc", "/b/c"},
		{pattern("/a/(.*)", "/$1"), "/a//evil.example", "/evil.example"}, {pattern("/a/(.*)/(.*)", "/$1$2"), "/a/./.", ""},
		{pattern("/([^/]*)/?(.*)", "/$1/../$2"), "/a/b", ""}, {pattern("/([^/]*)/?(.*)", "/$2$1"), "/a/%5c..", ""}, {pattern("/([^/]*)/?(.*)", "/$2$1"), "/a/%252e%252e/", ""},
		{pattern("/(.)x(.)/(.*)", "/$1$2/$3"), "/.x./etc", ""}, {pattern("/(.)x(.)/(.*)", "/$1%2e/$3"), "/.x./etc", ""},
		{pattern("/a/(.*)", "/$1"), "/a/x%0d%0ay", ""}, {pattern("/(.*)", "/"+strings.Repeat("$1", 200)), "/" + strings.Repeat("x", 4000), ""},
		{prefix("/api", "/v2"), "/api", "/v2"}, {prefix("/api", "/v2"), "/API/Users", "/v2/Users"}, {prefix("/api", "/v2"), "/api/", "/v2/"}, {prefix("/api", "/v2/"), "/api/x", "/v2/x"},
		{prefix("/api", "/"), "/api", "/"}, {prefix("/api", "/"), "/api/x?y", "/x?y"}, {prefix("/", "/v2"), "/x", "/v2/x"},
		{prefix("/", "/v2"), "/", "/v2/"}, {prefix("/api", "/v 2"), "/api/a%2Fb", "/v%202/a%2Fb"},
		{prefix("/a b", "/v2"), "/a%20b/c%2Fd", "/v2/c%2Fd"}, {prefix("/api", "/"), "/api//evil.example", "/evil.example"},
		{prefix("/t", "/tenant"), "/t2/x", "/tenant/2/x"}, {prefix("/t", "/tenant"), "/T%20x%2Fy", "/tenant/%20x%2Fy"}, {prefix("/t", "/tenant"), "/t../x", ""},
		{&model.Rewrite{Pattern: regexp.MustCompile("^/v[0-9]+"), Prefix: "/v[0-9]+", To: "/new"}, "/v12/x", "/new/x"},
	} {
		u := must.Get(url.ParseRequestURI(c.path))(t)
		got := ""
		if to, ok := Rewrite(c.rewrite, u); ok {
			got = to.RequestURI()
			// A server reads what was meant: a path without elements of dots, and not the name of a host.
			if read, ok := Read(parse(t, got)); !ok || read != to.Path || strings.HasPrefix(got, "//") {
				t.Errorf("%+v of %s is sent as %s, which is read as %q", *c.rewrite, c.path, got, read)
			}
		}
		if got != c.want {
			t.Errorf("%+v of %s is %q, want %q", *c.rewrite, c.path, got, c.want)
		}
	}
}

// Exact paths come first, then the longest, be it a prefix or a pattern.
func TestPatterns(t *testing.T) {
	var rs []model.Rule
	for _, text := range []string{"h/", "=h/api/v1/x", "h/api/v1/users/all", "h/api", "~h/api/v[0-9]+", "~h/(.*)[.]php", "~h/api/v1.*users"} {
		pattern, is := strings.CutPrefix(text, "~h")
		r := rule(text)
		if is {
			r = rule("h" + pattern)
			r.Pattern = regexp.MustCompile("(?i)^(?:" + pattern + ")")
		}
		rs = append(rs, r)
	}
	table := New(rs, nil)
	for path, want := range map[string]string{
		"/": "h/", "/x": "h/", "/X/INDEX.PHP": "h/(.*)[.]php", "/api": "h/api", "/api/v": "h/api", "/API/V12/x": "h/api/v[0-9]+",
		"/api/v1/x": "=h/api/v1/x", "/api/v1/users/all/of": "h/api/v1/users/all", "/api/v1/users": "h/api/v1.*users",
	} {
		if got := which(table.Find("h", path)); got != want {
			t.Errorf("%s goes to %s, want %s", path, got, want)
		}
		if n := testing.AllocsPerRun(20, func() { table.Find("h", path) }); n != 0 {
			t.Errorf("%s allocates %v times", path, n)
		}
	}
	for path, ok := range map[string]bool{
		"/api%2Fv1/x":                         false, // a prefix, or exact
		"/y%2Fz":                              true,
		"//api/v1/x":                          false,
		"/" + strings.Repeat("x", maxOdd+100): false, // it would take long
	} {
		u, _ := url.ParseRequestURI(path)
		if _, err := table.Resolve("h", u); (err == nil) != ok {
			t.Errorf("%.20s: error is %v, want success %v", path, err, ok)
		}
	}
}
