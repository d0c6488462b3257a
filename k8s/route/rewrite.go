package route

import (
	"net/url"
	"strings"

	"github.com/herdshield/shield/k8s/model"
)

// Rewrite returns u with the path that w makes of it. It is not ok if that is none that Read
// accepts, as with groups that make an element "..", or if it is longer than maxOdd.
//
// A path that is replaced is made of the decoded one, and encoded again: an encoded slash in a
// group becomes a slash, and doubled slashes become one, as in nginx. The rest of the path
// after a prefix stays as the client has written it.
func Rewrite(w *model.Rewrite, u *url.URL) (*url.URL, bool) {
	path, ok := Read(u)
	if !ok {
		return nil, false
	}
	to := *u
	to.RawPath = ""
	prefix := strings.TrimRight(w.Prefix, "/")
	switch {
	case w.Prefix != "" && w.Pattern == nil:
		if !hasPrefixFold(path, prefix) { // the rule may be for any case
			return nil, false
		}
		base := strings.TrimRight(w.To, "/")
		if rest := path[len(prefix):]; rest != "" && rest[0] != '/' { // or it would end the name of another element
			base += "/"
		}
		to.Path = base + path[len(prefix):]
		if u.RawPath != "" {
			to.RawPath = (&url.URL{Path: base}).EscapedPath() + skip(u.RawPath, len(prefix))
		}
	case w.Pattern != nil:
		at := w.Pattern.FindStringSubmatchIndex(path)
		if at == nil {
			return nil, false
		}
		if w.Prefix != "" { // the part that the pattern matches
			to.Path = w.To + "/" + path[at[1]:]
		} else if to.Path, ok = expand(w.To, path, at); !ok {
			return nil, false
		}
		to.Path = merge("/" + to.Path)
	default:
		to.Path, _ = expand(w.To, path, nil)
	}
	if to.Path == "" || strings.HasPrefix(to.Path, "//") { // that would be a host for some
		to.Path, to.RawPath = merge("/"+to.Path), ""
	}
	_, ok = Read(&to)
	return &to, ok && len(to.Path) <= maxOdd
}

// expand returns template with the groups of path in place of $1 to $9; those that do not
// exist, or match nothing, are empty. It is not ok if it is longer than maxOdd.
func expand(template, path string, at []int) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(template); i++ {
		if template[i] != '$' || i+1 == len(template) || template[i+1] < '1' || template[i+1] > '9' {
			b.WriteByte(template[i])
			continue
		}
		i++
		if n := 2 * int(template[i]-'0'); n < len(at) && at[n] >= 0 {
			b.WriteString(path[at[n]:at[n+1]])
		}
		if b.Len() > maxOdd {
			return "", false
		}
	}
	return b.String(), true
}

// skip returns an encoded path without what its first n bytes encode.
func skip(raw string, n int) string {
	for ; n > 0 && raw != ""; n-- {
		if raw[0] == '%' && len(raw) >= 3 {
			raw = raw[2:]
		}
		raw = raw[1:]
	}
	return raw
}
