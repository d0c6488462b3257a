package route

import (
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
