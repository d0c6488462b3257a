package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
)

const (
	cliPage  = "../../docs/reference/cli.md"
	cliBegin = "<!-- the commands, by go test ./cmd/shield -run TestCLIReference -update -->\n"
	cliEnd   = "<!-- end of the commands -->\n"
)

// The page of the command line says what --help says, of each command that Caddy doesn't have.
func TestCLIReference(t *testing.T) {
	t.Parallel()
	names := strings.Fields("proxy demo simulate loadtest status who explain forgive block set mode overrides")
	helps := make([]string, len(names)+1)
	var wg sync.WaitGroup
	for i, name := range append([]string{""}, names...) {
		wg.Go(func() {
			out, err := command(t, append(strings.Fields(name), "--help")...).CombinedOutput()
			if err != nil {
				t.Errorf("%s --help: %v\n%s", name, err, out)
			}
			helps[i] = string(out)
		})
	}
	wg.Wait()
	about, caddys := map[string]string{}, []string{}
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z-]+) +(\S.*)$`).FindAllStringSubmatch(inside(helps[0], "Available Commands:\n", "\n\n"), -1) {
		about[m[1]] = m[2]
		if m[1] != "help" && !strings.Contains(" "+strings.Join(names, " ")+" ", " "+m[1]+" ") {
			caddys = append(caddys, "`"+m[1]+"`")
		}
	}
	var b strings.Builder
	b.WriteString("| command | use it to |\n|---|---|\n")
	for _, name := range names {
		if about[name] == "" {
			t.Errorf("shield --help lacks %s", name)
		}
		fmt.Fprintf(&b, "| [`%s`](#shield-%[1]s) | %s |\n", name, strings.ToLower(about[name][:1])+about[name][1:])
	}
	fmt.Fprintf(&b, "\nThe other commands are [Caddy's](https://caddyserver.com/docs/command-line): %s. Caddy's `upgrade`, `add-package`, and `remove-package` are left out, because Caddy's build service can't build shield.\n", strings.Join(caddys, ", "))
	for i, name := range names {
		fmt.Fprintf(&b, "\n## `shield %s`\n\n%s", name, reference(helps[i+1]))
	}
	before, rest, ok := strings.Cut(read(t, cliPage), cliBegin)
	_, after, ended := strings.Cut(rest, cliEnd)
	if !ok || !ended {
		t.Fatalf("%s lacks %q or %q", cliPage, cliBegin, cliEnd)
	}
	upToDate(t, cliPage, before+cliBegin+b.String()+cliEnd+after)
}

// inside returns what is between the first one of two texts and the next other one.
func inside(text, from, to string) string {
	_, text, _ = strings.Cut(text, from)
	text, _, _ = strings.Cut(text, to)
	return text
}

// reference makes Markdown of what a command's --help prints.
func reference(help string) string {
	long, rest, _ := strings.Cut(help, "Usage:\n")
	usage, rest, _ := strings.Cut(rest, "\n\n")
	var b strings.Builder
	fmt.Fprintf(&b, "```text\n%s\n```\n\n", strings.TrimSpace(usage))
	b.WriteString(prose(strings.Trim(long, "\n") + "\n"))
	if examples := inside(rest, "Examples:\n", "\nFlags:\n"); examples != "" && strings.Contains(rest, "Examples:\n") {
		b.WriteString("```sh\n")
		for line := range strings.Lines(strings.TrimRight(examples, "\n") + "\n") {
			switch text := strings.TrimSpace(line); {
			case text == "":
				b.WriteString("\n")
			case strings.HasPrefix(text, "$ "):
				b.WriteString(text[2:] + "\n")
			default:
				b.WriteString("# " + text + "\n")
			}
		}
		b.WriteString("```\n\n")
	}
	_, flags, _ := strings.Cut(rest, "Flags:\n")
	rows := 0
	for _, m := range flagLine.FindAllStringSubmatch(flags, -1) {
		short, name, value, usage, usually := m[1], m[2], m[3], m[4], m[5]
		if name == "help" {
			continue
		}
		if rows++; rows == 1 {
			b.WriteString("| flag | what it does | default |\n|---|---|---|\n")
		}
		if value = strings.NewReplacer("stringArray", "text", "strings", "text", "string", "text", "uint", "number", "int", "number").Replace(value); value != "" {
			name += " <" + value + ">"
		}
		if short != "" {
			short = ", `" + short + "`"
		}
		fmt.Fprintf(&b, "| `--%s`%s | %s | %s |\n", name, short, cell(usage), cell(strings.Trim(usually, `"`)))
	}
	return b.String()
}

// flagLine is a line of --help about a flag: a short form, its name, what its value is, what it does, and its default.
var flagLine = regexp.MustCompile(`(?m)^ +(?:(-\w), )?--([a-z-]+)(?: ([A-Za-z]+))?(?:\[="[^"]*"\])? {2,}(.*?)(?: \(default:? (.*)\))?$`)

// blocks are lines of a help text that are indented or of a table, or others up to a blank line.
var blocks = regexp.MustCompile(`(?m)(?:^(?:  |[A-Z_]+ {2,}).*\n)+|(?:^\S.*\n)+`)

var table = regexp.MustCompile(`^(?:  |[A-Z_]+ {2,})`)

// prose makes Markdown of a help text.
func prose(text string) string {
	return strings.TrimSpace(strings.ReplaceAll(blocks.ReplaceAllStringFunc(text, func(block string) string {
		if table.MatchString(block) {
			return "\n```text\n" + block + "```\n\n"
		}
		return cell(strings.ReplaceAll(strings.TrimSpace(block), "\n", " ")) + "\n"
	}), "\n\n\n", "\n\n")) + "\n\n"
}

// code are the words of a help text that are written, rather than read.
var code = regexp.MustCompile(`"[^"]+"|--[a-z][a-z-]*(=[\w.]+)?|rediss?://(?:\S*[^\s.,)])?|'[^']*[>:<][^']*'|SHIELD_[A-Z_]+|NAME\[\S*\.\.\.|@FILE|X-Forwarded-For|Retry-After`)

// cell returns a text of help with its code marked as such, and nothing else that Markdown would read.
func cell(text string) string {
	var b strings.Builder
	at := 0
	escape := strings.NewReplacer("|", `\|`, "*", `\*`, "<", `\<`, "[", `\[`, "_", `\_`)
	for _, m := range code.FindAllStringIndex(text, -1) {
		b.WriteString(escape.Replace(text[at:m[0]]) + "`" + strings.Trim(text[m[0]:m[1]], `"'`) + "`")
		at = m[1]
	}
	return b.String() + escape.Replace(text[at:])
}
