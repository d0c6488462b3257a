package route

import (
	"fmt"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/model"
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

// The table "Examples" of the Kubernetes documentation, concepts/services-networking/ ingress: every
// row, in its order, with all of the table's request paths. Other requests go to the default backend.
func TestPathsOfTheDocumentation(t *testing.T) {
	for _, row := range []struct {
		kind, paths, requests, want string // want: the path that takes them; "": the default backend
	}{
		{"Prefix", "/", "/ /foo /foo/ /aaa/bbb/ccc /..foo /%20", "/"}, // (all paths)
		{"Exact", "/foo", "/foo", "=/foo"},
		{"Exact", "/foo", "/bar", ""},
		{"Exact", "/foo", "/foo/", ""},
		{"Exact", "/foo/", "/foo", ""},
		{"Prefix", "/foo", "/foo /foo/", "/foo"},
		{"Prefix", "/foo/", "/foo /foo/", "/foo/"},
		{"Prefix", "/aaa/bb", "/aaa/bbb", ""},
		{"Prefix", "/aaa/bbb", "/aaa/bbb", "/aaa/bbb"},
		{"Prefix", "/aaa/bbb/", "/aaa/bbb", "/aaa/bbb/"},   // ignores trailing slash
		{"Prefix", "/aaa/bbb", "/aaa/bbb/", "/aaa/bbb"},    // matches trailing slash
		{"Prefix", "/aaa/bbb", "/aaa/bbb/ccc", "/aaa/bbb"}, // matches subpath
		{"Prefix", "/aaa/bbb", "/aaa/bbbxyz", ""},          // does not match string prefix
		{"Prefix", "/ /aaa", "/aaa/ccc", "/aaa"},
		{"Prefix", "/ /aaa /aaa/bbb", "/aaa/bbb", "/aaa/bbb"},
		{"Prefix", "/ /aaa /aaa/bbb", "/ccc", "/"},
		{"Prefix", "/aaa", "/ccc", ""}, // uses default backend
		{"Mixed", "/foo =/foo", "/foo", "=/foo"},
	} {
		var all []model.Rule
		for path := range strings.FieldsSeq(row.paths) {
			if row.kind == "Exact" {
				path = "=" + path
			}
			all = append(all, rule(path))
		}
		want := row.want
		if want == "" {
			want = "default"
		}
		table := New(all, catchAll)
		for request := range strings.FieldsSeq(row.requests) {
			if got := which(table.Find("any.example", request)); got != want {
				t.Errorf("%s %s: %s goes to %q, want %q", row.kind, row.paths, request, got, want)
			}
		}
		reverse := New(append(all[1:len(all):len(all)], all[0]), nil)
		for request := range strings.FieldsSeq(row.requests) {
			if got := which(reverse.Find("any.example", request)); got != row.want {
				t.Errorf("%s %s, the first one last, no default: %s goes to %q, want %q", row.kind, row.paths, request, got, row.want)
			}
		}
	}
}

// The table "Hostname wildcards" of the same page, and its two sentences.
func TestHostsOfTheDocumentation(t *testing.T) {
	for _, row := range []struct {
		host, header string
		match        bool
	}{
		{"*.foo.com", "bar.foo.com", true},      // based on shared suffix
		{"*.foo.com", "baz.bar.foo.com", false}, // covers a single label only
		{"*.foo.com", "foo.com", false},
		{"foo.bar.com", "foo.bar.com", true},
		{"foo.bar.com", "bar.foo.com", false},
	} {
		table := New(rules(row.host+"/"), nil)
		if got := table.Find(row.header, "/") != nil; got != row.match {
			t.Errorf("rule for %s, request for %s: match %v, want %v", row.host, row.header, got, row.match)
		}
	}
}

func TestFind(t *testing.T) {
	stories := []struct {
		name     string
		rules    string
		fallback bool
		find     string // host/path > rule, ...
	}{
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

func TestOddRules(t *testing.T) {
	table := New([]model.Rule{
		{Host: "a", Target: *catchAll},                                                   // no path
		{Host: "b", Path: "~ ^/regexp", Target: *catchAll},                               // no path that a request has
		{Host: "C.Example.", Path: "/", Target: *catchAll},                               // not as the model has it
		{Host: strings.Repeat("long.", 60) + "example", Path: "/", Target: *catchAll},    // never found
		{Host: "*." + strings.Repeat("l", 251), Path: "/", Target: *catchAll},            // the longest
		{Host: "*", Path: "/", Target: *catchAll}, {Host: "*.", Path: "/", Exact: false}, // nonsense
	}, nil)
	for _, c := range []struct {
		host, path string
		found      bool
	}{
		{"a", "/x", true},
		{"b", "/x", false},
		{"b", "~ ^/regexp", false},
		{"b", "", false},
		{"c.example", "/", true},
		{strings.Repeat("long.", 60) + "example", "/", false},
		{"x." + strings.Repeat("l", 251), "/", true},
		{"xx." + strings.Repeat("l", 251), "/", false}, // 254 characters
		{"x", "/", false},
		{"", "/", false},
	} {
		if got := table.Find(c.host, c.path) != nil; got != c.found {
			t.Errorf("%.20s%s: found %v, want %v", c.host, c.path, got, c.found)
		}
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

// A path of a megabyte costs what its first elements cost.
func TestLongPaths(t *testing.T) {
	table := New(rules("a/x/x/x", "=a/x/x/x/x"), nil)
	if got := which(table.Find("a", strings.Repeat("/x", 1<<19))); got != "a/x/x/x" {
		t.Errorf("found %q", got)
	}
}

// A rule that is a million elements deep is one node, and two such ones are three.
func TestDeepRules(t *testing.T) {
	deep := strings.Repeat("/a", 1<<20)
	table := New([]model.Rule{rule("h" + deep), rule("=h" + deep[:1<<20] + "/b")}, nil)
	nodes := 0
	var count func(*node)
	count = func(n *node) {
		nodes++
		for _, child := range n.children {
			count(child)
		}
	}
	count(&table.names["h"].rules)
	if nodes != 4 { // the root, too
		t.Errorf("there are %d nodes, want 4", nodes)
	}
	for path, found := range map[string]bool{deep: true, deep + "/x": true, deep[:1<<20]: false, deep[:1<<20] + "/b": true, deep[:1<<20] + "/b/": false, deep + "a": false} {
		if got := table.Find("h", path) != nil; got != found {
			t.Errorf("a path of %d bytes: found %v, want %v", len(path), got, found)
		}
	}
}

// large has 1,000 hosts with 4 paths each.
func large() *Table {
	var rs []model.Rule
	for i := range 1000 {
		host := fmt.Sprintf("app-%d.example.com", i)
		rs = append(rs, rules(host+"/", host+"/api/v1", "="+host+"/healthz", host+"/static/images")...)
	}
	return New(append(rs, rule("*.apps.example.com/")), catchAll)
}

func TestFindDoesNotAllocate(t *testing.T) {
	table := large()
	for _, host := range []string{"app-500.example.com", "APP-500.example.com:8443", "x.apps.example.com", "unknown.example.org"} {
		if n := testing.AllocsPerRun(100, func() { table.Find(host, "/api/v1/users/42") }); n != 0 {
			t.Errorf("Find for %s allocates %v times, want 0", host, n)
		}
	}
}

var sink *model.Target

func BenchmarkFind(b *testing.B) {
	table := large()
	for _, c := range []struct{ name, host, path string }{
		{"prefix", "app-500.example.com", "/api/v1/users/42"}, {"exact", "app-500.example.com", "/healthz"},
		{"port-and-case", "APP-500.example.com:8443", "/api/v1/users/42"}, {"wildcard", "x.apps.example.com", "/api/v1/users/42"},
		{"default", "unknown.example.org", "/api/v1/users/42"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = table.Find(c.host, c.path)
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	var rs []model.Rule
	for i := range 1000 {
		host := fmt.Sprintf("app-%d.example.com", i)
		rs = append(rs, rules(host+"/", host+"/api/v1", "="+host+"/healthz", host+"/static/images")...)
	}
	b.ReportAllocs()
	for b.Loop() {
		New(rs, nil)
	}
}
