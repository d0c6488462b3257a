package route

import (
	"errors"
	"net/url"
	"strings"

	"github.com/herdshield/shield/k8s/model"
)

// ErrPath is the error of a path that servers may read differently, as the package comment
// lists them. The response is 400.
var ErrPath = errors.New("route: ambiguous path: servers may read it differently")

const (
	// maxOdd is the longest path, decoded, that is read in several ways, which takes a millisecond at
	// most. It is nginx's default for a request line (large_client_header_buffers).
	maxOdd = 8 << 10

	// maxDecodings is how often a path may be encoded on top of the first time.
	maxDecodings = 3
)

// odd is a set of the things in a path that other servers may read differently.
type odd uint8

const (
	encodedSlash odd = 1 << iota // %2F: a slash, or a character of its element
	backslash                    // \, in whatever encoding: a character, or a slash
	doubled                      // //: an empty element, or one slash
	encoded                      // can be decoded once more
)

// Read returns the path that rules are matched with: the decoded one, "/" if it is empty. It is not ok
// if no table could be sure of it: with dots as elements, with control characters, and if it is not a
// path, as in OPTIONS *. It allocates only for paths that are encoded more than once.
func Read(u *url.URL) (path string, ok bool) {
	path, _, ok = read(u)
	return path, ok
}

// Resolve returns the Target of a request for host and u, nil if there is none: that of Find for what
// Read returns. The error is ErrPath if Read is not ok, or if another reading of the path has a Target
// with another Origin, Backend or Filters. It does not allocate for paths without encoded or doubled
// slashes, backslashes and percent signs after decoding.
func (t *Table) Resolve(host string, u *url.URL) (*model.Target, error) {
	path, o, ok := read(u)
	if !ok {
		return nil, ErrPath
	}
	l := t.level(host)
	if l != nil && l.patterns != nil && len(path) > maxOdd {
		return nil, ErrPath // a pattern takes time in proportion
	}
	target := t.find(l, path)
	if o != 0 && !t.sure(l, target, u, path, o) {
		return nil, ErrPath
	}
	return target, nil
}

func read(u *url.URL) (path string, o odd, ok bool) {
	if u.Opaque != "" { // it would be forwarded instead of the path
		return "", 0, false
	}
	path = u.Path
	if path == "" {
		path = "/" // RFC 9110, section 4.2.3
	}
	if path[0] != '/' {
		return "", 0, false
	}
	for i := range len(path) {
		switch c := path[i]; {
		case c < ' ' || c == 0x7f:
			return "", 0, false
		case c == '/':
			if i+1 < len(path) && path[i+1] == '/' {
				o |= doubled
			}
		case c == '\\':
			o |= backslash
		case c == '%':
			o |= encoded
		case c >= 0xc0:
			if _, n := overlong(path[i:]); n > 0 {
				o |= encoded
			}
		}
	}
	if hasEncodedSlash(u.RawPath) {
		o |= encodedSlash
	}
	if o != 0 && len(path) > maxOdd {
		return "", 0, false
	}
	if hasDots(path) {
		return "", 0, false
	}
	if o&encoded != 0 {
		// A path with dots in an earlier reading has them in the last one, too.
		last := path
		for n := 0; ; n++ {
			next := decode(last, '/')
			if next == last {
				break
			}
			if n == maxDecodings {
				return "", 0, false
			}
			last = next
		}
		if hasDots(last) {
			return "", 0, false
		}
	}
	return path, o, true
}

// sure reports whether every reading of path leads to target.
func (t *Table) sure(l *level, target *model.Target, u *url.URL, path string, o odd) bool {
	if !t.agree(l, target, path, '/') {
		return false
	}
	if o&encodedSlash == 0 {
		return true
	}
	// NUL, which no path has, stands for a slash that is a character of its element.
	whole, err := url.PathUnescape(slashToNUL.Replace(u.EscapedPath()))
	return err == nil && t.agree(l, target, whole, 0)
}

var slashToNUL = strings.NewReplacer("%2F", "%00", "%2f", "%00")

// agree reports whether path leads to target however often it is decoded, with backslashes kept and as
// slashes, with doubled slashes kept and merged. Decoded slashes become slash.
func (t *Table) agree(l *level, target *model.Target, path string, slash byte) bool {
	for range maxDecodings + 1 {
		slashes := strings.ReplaceAll(path, `\`, `/`)
		for _, reading := range [...]string{path, merge(path), slashes, merge(slashes)} {
			if !same(t.find(l, reading), target) {
				return false
			}
		}
		next := decode(path, slash)
		if next == path {
			break
		}
		path = next
	}
	return true
}

// same reports whether requests for two Targets get the same treatment by the same backend.
// Their rewrites may differ: the backend reads the path that is made of one reading.
func same(a, b *model.Target) bool {
	return a == b || a != nil && b != nil && a.Origin == b.Origin && a.Backend == b.Backend && a.Filters == b.Filters
}

// merge returns path with one slash for each run of slashes.
func merge(path string) string {
	if !strings.Contains(path, "//") {
		return path
	}
	b := make([]byte, 0, len(path))
	for i := range len(path) {
		if path[i] != '/' || i == 0 || path[i-1] != '/' {
			b = append(b, path[i])
		}
	}
	return string(b)
}

// decode returns path decoded once more, as a lenient decoder does: a percent sign that
// begins no escape stands for itself, overlong UTF-8 for the character that it encodes.
// Decoded slashes become slash. If there is nothing to decode, it returns path.
func decode(path string, slash byte) string {
	var b []byte
	kept := 0 // path[:kept] is in b
	for i := 0; i < len(path); {
		c, n := path[i], 0
		switch {
		case c == '%':
			c, n = escape(path[i:])
		case c >= 0xc0:
			c, n = overlong(path[i:])
		}
		if n == 0 {
			i++
			continue
		}
		if c == '/' {
			c = slash
		}
		b = append(append(b, path[kept:i]...), c)
		i += n
		kept = i
	}
	if b == nil {
		return path
	}
	return string(append(b, path[kept:]...))
}

// escape decodes the escape that s begins with: it returns the byte, and the length of the
// escape, 0 if s begins with none. The first byte of s is a percent sign.
func escape(s string) (c byte, n int) {
	if len(s) < 3 {
		return 0, 0
	}
	hi, lo := hex(s[1]), hex(s[2])
	if hi > 15 || lo > 15 {
		return 0, 0
	}
	return hi<<4 | lo, 3
}

// hex returns the value of a hexadecimal digit, or 255.
func hex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// overlong decodes a dot, slash or backslash in UTF-8 of two or three bytes, which RFC
// 3629, section 3, forbids and some decoders accept. It returns the character and its
// length in s, 0 if s does not begin with one. Other bytes may be text in another charset.
func overlong(s string) (c byte, n int) {
	if s[0] > 0xe0 { // most text that is not ASCII
		return 0, 0
	}
	for _, o := range [...]struct {
		c    byte
		long string
	}{
		{'.', "\xc0\xae"}, {'/', "\xc0\xaf"}, {'\\', "\xc1\x9c"},
		{'.', "\xe0\x80\xae"}, {'/', "\xe0\x80\xaf"}, {'\\', "\xe0\x81\x9c"},
	} {
		if strings.HasPrefix(s, o.long) {
			return o.c, len(o.long)
		}
	}
	return 0, 0
}

// hasDots reports whether an element of path is "." or "..". Backslashes are slashes. An element ends at
// a semicolon, and at what would begin a query or a fragment if it were decoded once more.
func hasDots(path string) bool {
	for i := range len(path) {
		if path[i] != '/' && path[i] != '\\' {
			continue
		}
		rest, ok := strings.CutPrefix(path[i+1:], ".")
		if !ok {
			continue
		}
		rest = strings.TrimPrefix(rest, ".")
		if rest == "" || strings.IndexByte(`/\;?#`, rest[0]) >= 0 {
			return true
		}
	}
	return false
}

// hasEncodedSlash reports whether an encoded path has an encoded slash.
func hasEncodedSlash(raw string) bool {
	for i := 0; i+2 < len(raw); i++ {
		if raw[i] == '%' && raw[i+1] == '2' && raw[i+2]|0x20 == 'f' {
			return true
		}
	}
	return false
}
