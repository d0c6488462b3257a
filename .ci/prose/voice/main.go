// Command voice counts what makes prose read like a list of laws: the spread of its sentences' lengths, and how often
// words occur that speech is full of, or free of. What a command has written into a page counts neither there nor in its
// lines. It is a thermometer for whoever edits a page, not a rule: nothing
// fails when a count is off, and a word that is planted for its sake makes the page worse.
//
//	go -C .ci/prose run ./voice                # README and all pages of docs
//	go -C .ci/prose run ./voice $PWD/README.md
//
// The range is that of eleven READMEs by US authors (Caddy, CertMagic, ACMEz, step-ca, Nebula, Cobra, pgx, Badger,
// CEL, logr, Certificate Transparency: 16,100 words), a third more or less.
package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
)

// counted are the counts, each per 1,000 words.
var counted = []struct {
	name, want string
	words      *regexp.Regexp
}{
	{"-ing", "≥ 20", regexp.MustCompile(`(?i)\b[a-z]{2,}ing\b`)},
	{"you", "≥ 10", regexp.MustCompile(`(?i)\byou(?:rs?|'\w+)?\b`)},
	{"that", "≤ 12", regexp.MustCompile(`(?i)\bthat\b`)},
	{"at once", "0", regexp.MustCompile(`(?i)\bat once\b`)},
	{"for example", "1", regexp.MustCompile(`(?i)\bfor (?:example|instance)\b`)},
	{"semicolons", "1.5", regexp.MustCompile(`;`)},
}

var (
	skipped = regexp.MustCompile("(?ms)^ *```.*?^ *```|<[^>]*>")
	inline  = regexp.MustCompile("`[^`]*`")
	link    = regexp.MustCompile(`!?\[([^\]]*)\](?:\([^)]*\))?`)
	word    = regexp.MustCompile(`[\pL\d][\pL\d'’.,_/%-]*`)
	ends    = regexp.MustCompile(`[.!?](?:[)"*]*)(?:\s+|$)`)
	numbers = regexp.MustCompile(`^\d+[.)] `)
)

var made = regexp.MustCompile("(?ms)^<!-- [^\n]*, by .*?^<!-- end of [^\n]*\n")

// sentences returns those of a page's paragraphs and lists, without tables, code, headings and what a command has made.
func sentences(page string) (list []string) {
	page = skipped.ReplaceAllString(made.ReplaceAllString(page, "\n"), "\n\n")
	var paragraph strings.Builder
	end := func() {
		text := link.ReplaceAllString(inline.ReplaceAllString(paragraph.String(), "x"), "$1")
		for _, sentence := range ends.Split(text, -1) {
			if word.MatchString(sentence) {
				list = append(list, sentence)
			}
		}
		paragraph.Reset()
	}
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		item := strings.HasPrefix(line, "- ") || numbers.MatchString(line)
		if line == "" || item || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "#") {
			end()
		}
		if item {
			_, line, _ = strings.Cut(line, " ")
		}
		if line != "" && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "#") {
			paragraph.WriteString(strings.TrimLeft(line, "> ") + " ")
		}
	}
	end()
	return list
}

func main() {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "page\tlines\twords\tdeviation\t")
	for _, c := range counted {
		fmt.Fprint(out, c.name, "\t")
	}
	fmt.Fprint(out, "\nwanted\t\t\t≥ 7\t")
	for _, c := range counted {
		fmt.Fprint(out, c.want, "\t")
	}
	fmt.Fprintln(out)
	var all []string
	var total int
	show := func(name string, lines int, list []string) {
		var n, squares float64
		for _, s := range list {
			words := float64(len(word.FindAllString(s, -1)))
			n, squares = n+words, squares+words*words
		}
		mean := n / float64(len(list))
		fmt.Fprintf(out, "%s\t%d\t%.0f\t%.1f\t", name, lines, n, math.Sqrt(squares/float64(len(list))-mean*mean))
		for _, c := range counted {
			fmt.Fprintf(out, "%.1f\t", 1000*float64(len(c.words.FindAllString(strings.Join(list, "\n"), -1)))/n)
		}
		fmt.Fprintln(out)
	}
	pages := os.Args[1:]
	if len(pages) == 0 {
		for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/*/*.md"} {
			files, _ := filepath.Glob(pattern)
			pages = append(pages, files...)
		}
	}
	for _, path := range pages {
		b, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "voice:", err)
			os.Exit(1)
		}
		list, lines := sentences(string(b)), bytes.Count(made.ReplaceAll(b, nil), []byte("\n"))
		show(strings.TrimPrefix(path, "../../"), lines, list)
		all, total = append(all, list...), total+lines
	}
	if len(all) > 0 {
		show("all", total, all)
	}
	out.Flush()
}
