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

// parse returns what net/http makes of a request's target.
func parse(t *testing.T, target string) *url.URL {
	t.Helper()
	return must.Get(url.ParseRequestURI(target))(t)
}

func TestRead(t *testing.T) {
	reads := map[string]string{ // "": refused
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

// Resolve refuses a path only if another reading of it has another Target.
func TestResolve(t *testing.T) {
	table := New(rules("a/", "a/admin", "=a/admin/exact", "a/admin/deep", "b/admin", "c/"), nil)
	const refused = "refused"
	for target, want := range map[string]string{
		"a /x%2Fadmin":              "a/", // whatever %2F is
		"a /admin%2Fx":              refused,
		"a /admin/x%2Fy":            "a/admin",
		"a /admin/x%2fdeep":         "a/admin",
		"a /admin/deep%2fx":         refused,
		"a /admin/exact%2F":         "a/admin", // whatever %2F is, it is not exact
		"a /%2Fadmin":               refused,
		"a //admin":                 refused,
		"a ///x":                    "a/",
		"a /x//admin":               "a/",
		"a /admin//deep":            refused,
		"a /admin//x":               "a/admin",
		"a /admin/x//":              "a/admin",
		`a /admin\x`:                refused,
		`a /admin%5Cx`:              refused,
		`a /\admin`:                 refused,
		`a /x\admin`:                "a/",
		`a /admin\/x`:               refused,
		"a /admin%252Fx":            refused,
		"a /x%252Fadmin":            "a/",
		"a /%2561dmin":              refused,
		"a /%252561dmin":            refused,
		"a /%2561dmin/%25252564eep": refused,
		"a /admi%C3%AE":             "a/",
		"a /%61dmin":                "a/admin",
		"a /100%25":                 "a/",
		"a /admin/exact":            "=a/admin/exact",
		"a /admin/exac%2574":        refused,
		"a /admin/%c0%afexact":      refused,
		"b /":                       "",
		"b //admin":                 refused, // not 404: a backend might be reached
		"b //x":                     "",
		"c /a%2Fb//c%255C\\":        "c/",
		"d /a%2Fb//c%255C\\":        "",
		"c /..%2Fx":                 refused,
		"d /../x":                   refused,
	} {
		host, path, _ := strings.Cut(target, " ")
		got, err := table.Resolve(host, parse(t, path))
		if (err != nil) != (want == refused) || err != nil && (!errors.Is(err, ErrPath) || got != nil) || err == nil && which(got) != want {
			t.Errorf("%s goes to %q, %v; want %q", target, which(got), err, want)
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
		t.Error("//b: not refused, and might dodge the limits of /b")
	}
}

func TestResolveDoesNotAllocate(t *testing.T) {
	table := large()
	for _, path := range []string{"/api/v1/users/42", "/api/a%20b/%C3%A9/%E0%A4%85", "/api/(a)!'*/[x]", "/api/../x"} {
		u := parse(t, path)
		if n := testing.AllocsPerRun(100, func() { table.Resolve("app-500.example.com", u) }); n != 0 {
			t.Errorf("Resolve of %s allocates %v times, want 0", path, n)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	table := large()
	for _, c := range []struct{ name, path string }{
		{"ordinary", "/api/v1/users/42"}, {"encoded", "/api/v1/users/%C3%A9%20x"}, {"encoded-slash", "/api/v1/group%2Fname"},
		{"worst", "/%2525252F" + strings.Repeat(`//%2F\%25252525`, 800)[:maxOdd]},
	} {
		u := must.Get(url.ParseRequestURI(strings.TrimRight(c.path, "%25")))(b)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink, _ = table.Resolve("app-500.example.com", u)
			}
		})
	}
}

// naive is the oracle: the documentation's rules, one after the other.
func naive(rules []model.Rule, fallback *model.Target, host, path string) *model.Target {
	level := func(match func(string) bool) (found bool, best *model.Target) {
		for _, lastResort := range []bool{false, true} {
			score := -1
			for i, r := range rules {
				if !match(r.Host) {
					continue
				}
				found = true
				if r.Fallback != lastResort {
					continue
				}
				trimmed := strings.TrimRight(r.Path, "/")
				// Twice the length that counts, and one more for exact.
				if s := 2 * len(path); r.Exact && r.Path == path {
					if s+1 > score {
						score, best = s+1, &rules[i].Target
					}
				} else if s := 2 * len(trimmed); !r.Exact && (path == trimmed || strings.HasPrefix(path, trimmed+"/")) && s > score {
					score, best = s, &rules[i].Target
				}
			}
			if best != nil {
				return true, best
			}
		}
		return found, nil
	}
	host = regexp.MustCompile(`^([^:]*):[^:]*$`).ReplaceAllString(host, "$1")
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	label, suffix, dotted := strings.Cut(host, ".")
	found, best := level(func(h string) bool { return h != "" && h == host })
	if !found && dotted && label != "" {
		found, best = level(func(h string) bool { return h == "*."+suffix })
	}
	if !found {
		_, best = level(func(h string) bool { return h == "" })
	}
	if best == nil {
		best = fallback
	}
	return best
}

// FuzzFind compares Find with the oracle, for rules that are fuzzed too.
func FuzzFind(f *testing.F) {
	f.Add("a/x a/x/y =a/x ?a/ *.b.c/ /", "a", "/x/y/")
	f.Add("*.b.c/%2Fx =a.b.c/x// a.b.c/x //a/", "A.b.C.:80", "/x//")
	f.Add("?a/x/y a/x =?a/", "a", "/x/y")
	f.Add("a/login a/%6cogin", "a", "/login")
	f.Add("a/x/y/z/w =a/x/y// a/x/yy/ =a/x/y/z a/x/y/q", "a", "/x/y/z")
	f.Fuzz(func(t *testing.T, list, host, path string) {
		// The oracle's idea of a host is for plain ones only.
		if !regexp.MustCompile(`^[a-zA-Z.]*(:[0-9]*)?$`).MatchString(host) || len(host) > maxName || len(list) > 1000 || !strings.HasPrefix(path, "/") {
			return
		}
		var rs []model.Rule
		for s := range strings.FieldsSeq(list) {
			if h, _, ok := strings.Cut(strings.TrimLeft(s, "=?"), "/"); ok && (h == "" || regexp.MustCompile(`^(\*\.)?[a-z]+(\.[a-z]+)*$`).MatchString(h)) {
				rs = append(rs, rule(s))
			}
		}
		got, want := New(rs, catchAll).Find(host, path), naive(rs, catchAll, host, path)
		if got != want {
			t.Fatalf("%q %q goes to %q, the oracle says %q; rules: %q", host, path, which(got), which(want), list)
		}
	})
}

// FuzzResolve holds Resolve to the package comment: what it returns is what the
// oracle finds for the path of the URL, and for every other reading of it, which are
// made here in another way; and no reading has dots to climb up with.
func FuzzResolve(f *testing.F) {
	for _, path := range []string{
		"/admin/x", "/x%2Fadmin", "//admin", "/admin%2Fdeep", "/%2561dmin/%25252564eep", "/..%5cadmin", "/%2e%2e;/admin",
		"/%c0%ae%c0%ae/admin", "/admin%c0%afdeep", "/x/%25%32%35%32F", "/admin//deep\\", "/a%2F%2F%252fadmin", "/%u002e", "/%", "/admin/exact%2F",
	} {
		f.Add("a", path)
		f.Add("b.example", path)
	}
	rs := rules("a/", "a/admin", "=a/admin/exact", "a/admin/deep", "=a/admin/deep/", "*.example/admin", "?*.example/x", "a/admin/deep/x//y", "a/admin/é")
	table := New(rs, nil)
	f.Fuzz(func(t *testing.T, host, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !regexp.MustCompile(`^[a-z.]*$`).MatchString(host) || len(host) > maxName {
			return
		}
		got, err := table.Resolve(host, u)
		if path, ok := Read(u); !ok && err == nil {
			t.Fatalf("%q: not read, but resolved; path %q", target, path)
		}
		if err != nil {
			if got != nil || !errors.Is(err, ErrPath) {
				t.Fatalf("%q: %v and %v", target, got, err)
			}
			// Plain paths are not refused.
			if regexp.MustCompile(`^(/[a-z][a-z.;\x{80}-\x{7ff}]*)+/?$`).MatchString(u.Path) && u.RawPath == "" && u.Opaque == "" {
				t.Fatalf("%q is refused", target)
			}
			return
		}
		for _, reading := range readings(u) {
			if want := naive(rs, nil, host, reading); !same(got, want) {
				t.Fatalf("%q goes to %q, but read as %q to %q", target, which(got), reading, which(want))
			}
			for element := range strings.FieldsFuncSeq(reading, func(r rune) bool { return r == '/' || r == '\\' }) {
				if element, _, _ = strings.Cut(element, ";"); element == "." || element == ".." {
					t.Fatalf("%q may be read as %q", target, reading)
				}
			}
		}
	})
}

// readings returns what servers may make of a URL's path.
func readings(u *url.URL) []string {
	path := u.Path
	if path == "" {
		path = "/"
	}
	escape := regexp.MustCompile(`%[0-9a-fA-F]{2}`)
	long := strings.NewReplacer("\xc0\xae", ".", "\xc0\xaf", "/", "\xc1\x9c", `\`, "\xe0\x80\xae", ".", "\xe0\x80\xaf", "/", "\xe0\x81\x9c", `\`)
	all := []string{path}
	for range 10 { // decoded once more
		path = long.Replace(escape.ReplaceAllStringFunc(path, func(s string) string {
			decoded, _ := url.PathUnescape(s)
			return decoded
		}))
		all = append(all, path)
	}
	// An encoded slash as a character like others: x will do.
	if raw := u.EscapedPath(); strings.Contains(strings.ToLower(raw), "%2f") {
		if decoded, err := url.PathUnescape(regexp.MustCompile(`(?i)%2f`).ReplaceAllString(raw, "\x01")); err == nil {
			all = append(all, decoded)
		}
	}
	for _, p := range all {
		all = append(all, strings.ReplaceAll(p, `\`, "/"))
	}
	for _, p := range all {
		all = append(all, regexp.MustCompile("//+").ReplaceAllString(p, "/"))
	}
	return all
}
