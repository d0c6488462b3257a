package route

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// rule returns the rule that s describes: "host/path", with "=" before it if it is exact and "?" if it
// is a fallback. Its Target is recognised by the port of its Backend, which is s.
func rule(s string) model.Rule {
	r := model.Rule{Target: model.Target{Backend: &model.Backend{Port: s}}}
	s, r.Exact = strings.CutPrefix(s, "=")
	s, r.Fallback = strings.CutPrefix(s, "?")
	i := strings.IndexByte(s, '/')
	r.Host, r.Path = s[:i], s[i:]
	return r
}

func rules(all ...string) []model.Rule {
	var rs []model.Rule
	for _, s := range all {
		rs = append(rs, rule(s))
	}
	return rs
}

// which returns what rule makes of its description.
func which(t *model.Target) string {
	if t == nil {
		return ""
	}
	return t.Backend.Port
}

var catchAll = &model.Target{Backend: &model.Backend{Port: "default"}}

// The rows of the documentation are the table "Examples" of Kubernetes' concepts/services-networking/ingress, with all of
// its paths and requests. Others go to the default backend.
func TestFind(t *testing.T) {
	stories := []struct {
		name     string
		rules    string
		fallback bool
		find     string // host/path > rule, ...
	}{
		{"documentation: all paths", "/", true, "a/ > /, a/foo > /, a/foo/ > /, a/aaa/bbb/ccc > /, a/..foo > /, a/%20 > /"},
		{"documentation: exact", "=/foo", true, "a/foo > =/foo, a/bar > default, a/foo/ > default"},
		{"documentation: exact, with a slash", "=/foo/", true, "a/foo > default"},
		{"documentation: prefix", "/foo", true, "a/foo > /foo, a/foo/ > /foo"},
		{"documentation: prefix, with a slash", "/foo/", true, "a/foo > /foo/, a/foo/ > /foo/"},
		{"documentation: prefix of an element", "/aaa/bb", true, "a/aaa/bbb > default"},
		{"documentation: prefix of elements", "/aaa/bbb", true, "a/aaa/bbb > /aaa/bbb, a/aaa/bbb/ > /aaa/bbb, a/aaa/bbb/ccc > /aaa/bbb, a/aaa/bbbxyz > default"},
		{"documentation: ignores a trailing slash", "/aaa/bbb/", true, "a/aaa/bbb > /aaa/bbb/"},
		{"documentation: two prefixes", "/ /aaa", true, "a/aaa/ccc > /aaa"},
		{"documentation: three prefixes", "/aaa / /aaa/bbb", true, "a/aaa/bbb > /aaa/bbb, a/ccc > /"},
		{"documentation: the default", "/aaa", true, "a/ccc > default"},
		{"documentation: exact before prefix", "/foo =/foo", true, "a/foo > =/foo"},
		{"a host before its wildcard before no host", "/ *.example.com/ a.example.com/", false, "a.example.com/x > a.example.com/, b.example.com/x > *.example.com/, a.b.example.com/x > /, example.com/x > /, .example.com/x > /, /x > /"},
		{"a host that has rules is looked at alone", "a.example.com/only *.example.com/wild /", true, "a.example.com/only/x > a.example.com/only, a.example.com/wild > default, b.example.com/wild > *.example.com/wild, " +
			"b.example.com/only > default, other.org/only > /"},
		{"no default", "a.example.com/only", false, "a.example.com/x > , other.org/only > "},
		{"a rule with precedence stands first", "a/x a/x/ =a/y =a/y a/x", false, "a/x/1 > a/x, a/y > =a/y"},
		{"longest first, whatever the order", "a/ a/x/y/z a/x =a/x/y a/x/y", false, "a/ > a/, a/q > a/, a/x > a/x, a/x/yy > a/x, a/x/y > =a/x/y, a/x/y/ > a/x/y, a/x/y/zz > a/x/y, a/x/y/z/1/2/3 > a/x/y/z"},
		{"an exact path with a slash at its end", "=a/x/ a/x", false, "a/x/ > =a/x/, a/x > a/x, a/x/1 > a/x"},
		{"the exact root", "=a/", true, "a/ > =a/, a/x > default"},
		{"a fallback comes last, but before the default", "?a/ a/x", true, "a/x > a/x, a/y > ?a/, b/y > default"},
		{"a fallback is no match for a longer path of its own", "?a/x/y a/x", true, "a/x/y > a/x, a/y > default"},
		{"a host with nothing but a fallback", "?a.example.com/ *.example.com/x", true, "a.example.com/x > ?a.example.com/"},
		{"case counts in paths only", "a.example.com/Foo", false, "A.ExAmPlE.CoM/Foo > a.example.com/Foo, a.example.com/foo > "},
		{"paths of rules are decoded already", "a/café a/login a/%6cogin a/100% a/50%25", false, "a/café/x > a/café, a/login > a/login, a/%6cogin > a/%6cogin, a/100% > a/100%, a/50%25 > a/50%25, a/50% > "},
		{"elements that begin alike", "a/ab/cd/ef a/ab/ce =a/a/b/c a/abc =a/ab/cd/ef/", false, "a/ab/cd/ef/g > a/ab/cd/ef, a/ab/cd/ef/ > =a/ab/cd/ef/, a/ab/cd/e > , a/ab/cd/eff > , a/ab/cd > , a/ab/ce/x > a/ab/ce, a/a/b/c > =a/a/b/c, " +
			"a/a/b > , a/a/b/c/ > , a/abc/d > a/abc, a/ab > "},
		{"empty elements are elements", "a/x//y a/x", false, "a/x//y > a/x//y, a/x/y > a/x, a/x// > a/x"},
	}
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			var fallback *model.Target
			if s.fallback {
				fallback = catchAll
			}
			table := New(rules(strings.Fields(s.rules)...), fallback)
			for story := range strings.SplitSeq(s.find, ", ") {
				asked, want, ok := strings.Cut(story, " > ")
				slash := strings.IndexByte(asked, '/')
				if got := which(table.Find(asked[:slash], asked[slash:])); !ok || got != want {
					t.Errorf("%s goes to %q, want %q", asked, got, want)
				}
			}
		})
	}
}

func TestHostHeaders(t *testing.T) {
	table := New(rules("a.example.com/", "::1/"), nil)
	for header, want := range map[string]bool{
		"a.example.com": true, "a.example.com:80": true, "a.example.com:": true, "a.example.com.": true, "a.example.com.:8443": true,
		"A.EXAMPLE.COM.:8443": true, "a.example.com..": false, "a.example.com.:80:80": false, "a.example.com ": false, "a.example.comx": false,
		":80": false, "": false, ".": false, "[::1]": true, "[::1]:80": true, "[::1": false, "::1": true, "[::2]:80": false, "127.0.0.1:80": false,
	} {
		if got := table.Find(header, "/") != nil; got != want {
			t.Errorf("Host: %s: found %v, want %v", header, got, want)
		}
	}
}

// parse returns what net/http makes of a request's target.
func parse(t *testing.T, target string) *url.URL {
	t.Helper()
	return must.Get(url.ParseRequestURI(target))(t)
}

func TestRead(t *testing.T) {
	reads := map[string]string{ // "": rejected
		"/":                      "/",
		"/a/b/":                  "/a/b/",
		"/a%20b/%C3%A9":          "/a b/é",
		"/a?x=/../":              "/a",
		"http://example.com":     "/",
		"http://example.com/a":   "/a",
		"/100%25":                "/100%",
		"/a%2Fb":                 "/a/b",
		"/a//b":                  "/a//b",
		`/a\b`:                   `/a\b`,
		"/..a/.b/...":            "/..a/.b/...",
		"/.well-known/x":         "/.well-known/x",
		"/a;b/;..":               "/a;b/;..",
		"/%E0%A4%85/%C0%B0":      "/अ/\xc0\xb0",
		"/x/%252F":               "/x/%2F",
		"/x/%25252F":             "/x/%252F",
		"/%2525252525252e":       "", // encoded too often to be looked into
		"/" + long:               "/" + long,
		"/" + long + "//":        "",
		"/" + long + "%25":       "",
		"/" + long + "%2F":       "",
		"/" + long + "%C3%A9":    "/" + long + "é",
		"/" + long + `%5Cadmin`:  "",
		"/" + long + "/../admin": "",
	}
	for target := range strings.FieldsSeq(`
		/. /.. /a/./b /a/../b /a/b/.. /%2e /%2E%2e/b /.%2e/b /a/..%2fb /a%2F.. /a%2f%2e%2E%2fb /a/..\b /a/..%5cb
		/a%5C..%5Cb /%252e%252e/b /%25252e./b /%25%32e./b /..%252fb /..%255cb /..;/b /a/.;x=1/b /..%3bx/b /..%3Fx
		/..%253Fx /..%2523x /%c0%ae%c0%ae/b /%c0%ae./b /..%c0%afb /..%c1%9cb /%e0%80%ae%e0%80%ae/b /..%e0%80%afb
		/%25c0%25ae./b /a%00b /a%0d%0ab /a%09b /a%7Fb * http:a/b mailto:x`) {
		reads[target] = ""
	}
	for target, want := range reads {
		got, ok := Read(parse(t, target))
		if ok != (want != "") || ok && got != want {
			t.Errorf("%.40s is read as %.40q, %v; want %.40q", target, got, ok, want)
		}
	}
	if _, ok := Read(&url.URL{Path: "a"}); ok {
		t.Error("a path without a slash is read")
	}
	// A RawPath that is not of the Path is not what is forwarded.
	if got, ok := Read(&url.URL{Path: "/a", RawPath: "/b%2F"}); got != "/a" || !ok {
		t.Errorf("read as %q, %v", got, ok)
	}
}

var long = strings.Repeat("x", maxOdd)

// Resolve rejects a path only if another reading of it has another Target. For usual paths it allocates nothing.
func TestResolve(t *testing.T) {
	table := New(rules("a/", "a/admin", "=a/admin/exact", "a/admin/deep", "b/admin", "c/"), nil)
	const rejected = "rejected"
	for target, want := range map[string]string{
		"a /x%2Fadmin":              "a/", // whatever %2F is
		"a /admin%2Fx":              rejected,
		"a /admin/x%2Fy":            "a/admin",
		"a /admin/x%2fdeep":         "a/admin",
		"a /admin/deep%2fx":         rejected,
		"a /admin/exact%2F":         "a/admin", // whatever %2F is, it is not exact
		"a /%2Fadmin":               rejected,
		"a //admin":                 rejected,
		"a ///x":                    "a/",
		"a /x//admin":               "a/",
		"a /admin//deep":            rejected,
		"a /admin//x":               "a/admin",
		"a /admin/x//":              "a/admin",
		`a /admin\x`:                rejected,
		`a /admin%5Cx`:              rejected,
		`a /\admin`:                 rejected,
		`a /x\admin`:                "a/",
		`a /admin\/x`:               rejected,
		"a /admin%252Fx":            rejected,
		"a /x%252Fadmin":            "a/",
		"a /%2561dmin":              rejected,
		"a /%252561dmin":            rejected,
		"a /%2561dmin/%25252564eep": rejected,
		"a /admi%C3%AE":             "a/",
		"a /%61dmin":                "a/admin",
		"a /100%25":                 "a/",
		"a /admin/exact":            "=a/admin/exact",
		"a /admin/exac%2574":        rejected,
		"a /admin/%c0%afexact":      rejected,
		"b /":                       "",
		"b //admin":                 rejected, // not 404: a backend might be reached
		"b //x":                     "",
		"c /a%2Fb//c%255C\\":        "c/",
		"d /a%2Fb//c%255C\\":        "",
		"c /..%2Fx":                 rejected,
		"d /../x":                   rejected,
	} {
		host, path, _ := strings.Cut(target, " ")
		got, err := table.Resolve(host, parse(t, path))
		if (err != nil) != (want == rejected) || err != nil && (!errors.Is(err, ErrPath) || got != nil) || err == nil && which(got) != want {
			t.Errorf("%s goes to %q, %v; want %q", target, which(got), err, want)
		}
	}
	for _, path := range []string{"/admin/x/42", "/api/a%20b/%C3%A9/%E0%A4%85", "/api/(a)!'*/[x]", "/api/../x"} {
		u := parse(t, path)
		if n := testing.AllocsPerRun(100, func() { table.Resolve("a", u) }); n != 0 {
			t.Errorf("Resolve of %s allocates %v times, want 0", path, n)
		}
	}
}

// Two rules of one object for one Backend are one Target.
func TestSameTargetTwice(t *testing.T) {
	one := model.Target{Origin: new(model.Origin), Backend: new(model.Backend)}
	other := model.Target{Origin: new(model.Origin), Backend: one.Backend}
	table := New([]model.Rule{{Path: "/", Target: one}, {Path: "/a", Target: one}, {Path: "/b", Target: other}}, nil)
	if _, err := table.Resolve("", parse(t, "//a")); err != nil {
		t.Errorf("//a: %v", err)
	}
	if _, err := table.Resolve("", parse(t, "//b")); err == nil {
		t.Error("//b: not rejected, and might dodge the limits of /b")
	}
}

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
