package route

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/testbed/must"
)

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
