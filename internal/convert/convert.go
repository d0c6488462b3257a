// Package convert rewrites the limits of other servers as a Caddyfile with shields. Comments
// in it say what is better, what differs, and what could not be converted; the rest decides as before.
package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// A Kind says what a Note is about.
type Kind int

// The kinds of notes, in the order in which they are printed.
const (
	Better  Kind = iota // it decides or answers in a way that most users prefer
	Differs             // it decides in another way
	Missing             // it is not converted
)

var titles = [...]string{Better: "Better", Differs: "Different", Missing: "Not converted"}

// A Note says what became of one thing in the input.
type Note struct {
	Kind Kind
	At   []string // where the thing stands, as "nginx.conf:12"; nil for the whole file
	Text string
}

// A Result is a Caddyfile with comments.
type Result struct {
	// Caddyfile is formatted, and begins with the Notes.
	Caddyfile string

	// Notes are in the order of their kinds.
	Notes []Note
}

func (r Result) Missing() (n int) {
	for _, note := range r.Notes {
		if note.Kind == Missing {
			n++
		}
	}
	return n
}

// earlyReturns is noted for limits of all clients together: their rejections are appointments.
const earlyReturns = "a client that is rejected, and returns before its time, is rejected again while others wait; there the first that comes is admitted. " +
	"`enforce off` in `retries` does so, too"

// notes are those of one conversion.
type notes []Note

// add adds a note. One that is there already gets another place.
func (n *notes) add(kind Kind, at, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for i := range *n {
		if old := &(*n)[i]; old.Kind == kind && old.Text == text {
			if at != "" && !slices.Contains(old.At, at) {
				old.At = append(old.At, at)
			}
			return
		}
	}
	note := Note{Kind: kind, Text: text}
	if at != "" {
		note.At = []string{at}
	}
	*n = append(*n, note)
}

func (n notes) result(title, text string) Result {
	r := Result{}
	var b strings.Builder
	comment(&b, "# ", "", title)
	for kind, title := range titles {
		first := true
		for _, note := range n {
			if note.Kind != Kind(kind) {
				continue
			}
			if first {
				fmt.Fprintf(&b, "#\n# %s:\n", title)
				first = false
			}
			at := ""
			if len(note.At) > 0 {
				at = strings.Join(note.At, ", ") + ": "
			}
			comment(&b, "#   ", "    ", at+note.Text)
			r.Notes = append(r.Notes, note)
		}
	}
	b.WriteString("\n" + text)
	r.Caddyfile = string(caddyfile.Format([]byte(b.String())))
	return r
}

// width is how long a line of comments may get. Ours: the width of a terminal, and some more.
const width = 100

// comment writes a text in lines that begin with prefix, and from the second one on also
// with indent.
func comment(b *strings.Builder, prefix, indent, text string) {
	line := prefix
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > width && strings.TrimSpace(line) != strings.TrimSpace(prefix) {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = prefix + indent
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// quote returns an argument as a Caddyfile has it.
func quote(arg string) string {
	switch {
	case arg != "" && !strings.ContainsAny(arg, " \t\n\"`#") && arg != "{" && arg != "}":
		return arg
	case !strings.Contains(arg, "`"):
		return "`" + arg + "`"
	}
	return `"` + strings.ReplaceAll(arg, `"`, `\"`) + `"`
}

// names gives each thing a name that a zone or a shield may have, and none to two things.
type names struct {
	taken map[string]string // the thing that has a name
}

func clean(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("_-./:", r):
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), 60)] // of 64, with room for a number
}

// of returns the name of a thing: the wanted one, as far as that is possible.
func (n *names) of(wanted, thing string) string {
	name := clean(wanted)
	if n.taken == nil {
		n.taken = map[string]string{}
	}
	for i := 1; ; i++ {
		try := name
		if i > 1 {
			try = fmt.Sprintf("%s-%d", name, i)
		}
		if owner, ok := n.taken[try]; !ok || owner == thing {
			n.taken[try] = thing
			return try
		}
	}
}

// A cond says which requests are meant: those that all matchers fit, and none of the
// exceptions. The zero cond means all requests.
type cond struct {
	is  []matcher
	not []cond
}

// A matcher is one of Caddy's, with its arguments.
type matcher struct {
	name string
	args []string
}

func (c cond) all() bool { return len(c.is) == 0 && len(c.not) == 0 }

// and returns the requests that both mean.
func and(a, b cond) cond {
	return cond{is: slices.Concat(a.is, b.is), not: slices.Concat(a.not, b.not)}
}

// write writes the matchers, a line each. Caddy takes several matchers of one name for
// alternatives, so a second one is written as what its absence excludes.
func (c cond) write(b *strings.Builder) {
	var seen []string
	for _, m := range c.is {
		line := m.text()
		if slices.Contains(seen, m.name) {
			line = "not {\nnot " + line + "\n}"
		}
		seen = append(seen, m.name)
		b.WriteString(line + "\n")
	}
	for _, n := range c.not {
		if len(n.is) == 1 && len(n.not) == 0 {
			b.WriteString("not " + n.is[0].text() + "\n")
			continue
		}
		b.WriteString("not {\n")
		n.write(b)
		b.WriteString("}\n")
	}
}

func (c cond) writeNamed(b *strings.Builder, name string) {
	b.WriteString(name + " ")
	if len(c.is)+len(c.not) == 1 && (len(c.is) == 1 || len(c.not[0].is) == 1 && len(c.not[0].not) == 0) {
		c.write(b)
		return
	}
	b.WriteString("{\n")
	c.write(b)
	b.WriteString("}\n")
}

func (m matcher) text() string {
	text := m.name
	for _, arg := range m.args {
		text += " " + quote(arg)
	}
	return text
}
