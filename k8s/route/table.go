package route

import (
	"bytes"
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/herdshield/shield/k8s/model"
)

// A Table finds the Target of a request. It is immutable and safe for concurrent use.
type Table struct {
	names     map[string]*level // by host
	wildcards map[string]*level // by what follows "*."
	rest      *level            // of rules without a host; nil: there are none
	fallback  *model.Target
}

// A level has the rules of one host.
type level struct {
	rules, fallbacks node
	patterns         []pattern // the longest first
}

// A pattern is a rule whose path is a regular expression, or a prefix in any case.
type pattern struct {
	re     *regexp.Regexp // nil: the prefix counts
	prefix string
	size   int // of its text
	target *model.Target
}

func (p *pattern) match(path string) bool {
	if p.re == nil {
		return hasPrefixFold(path, p.prefix)
	}
	return p.re.MatchString(path)
}

// hasPrefixFold is strings.HasPrefix in any case.
func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// A node is where some elements of a path lead; the root stands for none. It is a radix
// tree: elements between which no rule ends or branches are one node.
type node struct {
	run      string           // the elements that lead here from the parent, each with the slash before it
	children map[string]*node // by the first element of their run
	prefix   *model.Target    // of the rule for all paths with this prefix
	exact    *model.Target    // of the rule for exactly this path
}

// New returns the Table of rules, which are in order of precedence. fallback gets the
// requests that match no rule; nil: there is no fallback.
//
// A rule's Path is compared as it is with what Read returns. An empty Path is "/". One that does not begin with
// a slash never matches. Targets are not copied. Of patterns with one length the first in the list comes first.
func New(rules []model.Rule, fallback *model.Target) *Table {
	t := &Table{names: map[string]*level{}, wildcards: map[string]*level{}, fallback: fallback}
	for i := range rules {
		r := &rules[i]
		l := t.add(strings.TrimSuffix(strings.ToLower(r.Host), "."))
		if r.Pattern != nil {
			l.patterns = append(l.patterns, pattern{re: r.Pattern, size: len(r.Path), target: &r.Target})
			continue
		}
		if r.AnyCase {
			l.patterns = append(l.patterns, pattern{prefix: r.Path, size: len(r.Path), target: &r.Target})
			if !r.Exact { // of what is below it, it has more than an exact one of the same path
				l.patterns = append(l.patterns, pattern{prefix: r.Path + "/", size: len(r.Path) + 1, target: &r.Target})
			}
			continue
		}
		path := r.Path
		if path == "" {
			path = "/"
		}
		if path[0] != '/' {
			continue
		}
		n := &l.rules
		if r.Fallback {
			n = &l.fallbacks
		}
		if r.Exact {
			first(&n.descend(path).exact, &r.Target)
		} else {
			first(&n.descend(strings.TrimRight(path, "/")).prefix, &r.Target)
		}
	}
	for _, levels := range []map[string]*level{t.names, t.wildcards, {"": t.rest}} {
		for _, l := range levels {
			if l != nil {
				slices.SortStableFunc(l.patterns, func(a, b pattern) int { return cmp.Compare(b.size, a.size) })
			}
		}
	}
	return t
}

// first sets *at to target unless a rule with precedence has done so.
func first(at **model.Target, target *model.Target) {
	if *at == nil {
		*at = target
	}
}

// add returns the level of the rules for host, and creates it if there is none.
func (t *Table) add(host string) *level {
	if host == "" {
		if t.rest == nil {
			t.rest = new(level)
		}
		return t.rest
	}
	levels := t.names
	if suffix, ok := strings.CutPrefix(host, "*."); ok {
		levels, host = t.wildcards, suffix
	}
	l := levels[host]
	if l == nil {
		l = new(level)
		levels[host] = l
	}
	return l
}

// descend returns the node at path, and creates it if there is none. path is empty, or begins with a slash.
func (n *node) descend(path string) *node {
	for path != "" {
		element, _ := cut(path)
		child := n.children[element]
		if child == nil {
			child = &node{run: path}
			n.adopt(child)
			return child
		}
		shared := sharedElements(child.run, path)
		if shared < len(child.run) {
			branch := &node{run: child.run[:shared]}
			child.run = child.run[shared:]
			branch.adopt(child)
			n.adopt(branch)
			child = branch
		}
		n, path = child, path[shared:]
	}
	return n
}

// adopt makes child one of n's, in place of the one that begins with the same element.
func (n *node) adopt(child *node) {
	if n.children == nil {
		n.children = map[string]*node{}
	}
	element, _ := cut(child.run)
	n.children[element] = child
}

// sharedElements returns the length of the elements that two paths have in common.
func sharedElements(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			n = i
			break
		}
	}
	if (n == len(a) || a[n] == '/') && (n == len(b) || b[n] == '/') {
		return n
	}
	return strings.LastIndexByte(a[:n], '/')
}

// cut returns the first element of a path that begins with a slash, and what
// follows it: empty, or beginning with a slash.
func cut(path string) (element, rest string) {
	path = path[1:]
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return path[:i], path[i:]
	}
	return path, ""
}

// Find returns the Target of a request for host and path, nil if there is none. host is the request's,
// in any case, with or without port; path is as Read returns it. Find does not allocate.
func (t *Table) Find(host, path string) *model.Target {
	return t.find(t.level(host), path)
}

func (t *Table) find(l *level, path string) *model.Target {
	if l != nil {
		target, size := l.rules.find(path)
		for i := range l.patterns {
			p := &l.patterns[i]
			if p.size <= size {
				break
			}
			if p.match(path) {
				return p.target
			}
		}
		if target != nil {
			return target
		}
		if target, _ := l.fallbacks.find(path); target != nil {
			return target
		}
	}
	return t.fallback
}

// find returns the target of a path, and the length of its rule's: no pattern comes before an exact one.
func (n *node) find(path string) (best *model.Target, size int) {
	if path == "" || path[0] != '/' {
		return nil, 0
	}
	best = n.prefix
	rest := path
	for rest != "" {
		element, _ := cut(rest)
		if n = n.children[element]; n == nil {
			return best, size
		}
		after, ok := strings.CutPrefix(rest, n.run)
		if !ok || after != "" && after[0] != '/' {
			return best, size
		}
		rest = after
		if n.prefix != nil {
			best, size = n.prefix, len(path)-len(rest)
		}
	}
	if n.exact != nil {
		return n.exact, math.MaxInt // no prefix is longer
	}
	return best, size
}

// maxName is how long a host's name may be (RFC 1035, section 2.3.4). No rule has a longer one.
const maxName = 253

// level returns the rules for a request's host, nil if there are none.
func (t *Table) level(host string) *level {
	host = name(host)
	if host == "" || len(host) > maxName {
		return t.rest
	}
	// Look-ups by string(bytes) do not allocate, whatever the case of host.
	var buf [maxName]byte
	b := buf[:copy(buf[:], host)]
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	if l := t.names[string(b)]; l != nil {
		return l
	}
	if i := bytes.IndexByte(b, '.'); i > 0 {
		if l := t.wildcards[string(b[i+1:])]; l != nil {
			return l
		}
	}
	return t.rest
}

// name returns the name in a Host header: without port, brackets and a trailing dot
// (RFC 9110, section 7.2; RFC 3986, section 3.2.2).
func name(host string) string {
	if strings.HasPrefix(host, "[") {
		if i := strings.IndexByte(host, ']'); i > 0 {
			return host[1:i]
		}
		return host
	}
	if i := strings.IndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i+1:], ':') < 0 {
		host = host[:i]
	}
	return strings.TrimSuffix(host, ".")
}
