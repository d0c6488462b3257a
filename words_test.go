package shield

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// pronouns are words for people. Comments, texts and identifiers here are about
	// requests, clients, callers, users and operators, and say which.
	pronouns = regexp.MustCompile(`(?i)\b(nobody|anybody|somebody|everybody|whoever|whom|anyhow)\b|\bas a rule\b|\bby (itself|himself|themselves)\b`)
	// headless is a sentence whose subject is a relative clause without a noun.
	headless = regexp.MustCompile(`(?:^|[.:;!?)"] )(?:What|Who(?:ever)?|Whom|Which|That which)\b [^.?]*(?:[.?]|$)`)
	// vague is how an error begins that does not say what is wrong: "X is Y; want Z" does.
	vague = regexp.MustCompile("^[\"`](?:%\\w: )?there (?:is|are|was|were) ")
	// inNames are the pronouns within an identifier.
	inNames = regexp.MustCompile(`(?:[nN]o|[aA]ny|[sS]ome|[eE]very)body|[wW]hoever|[wW]hom`)
	// bare are adjectives, participles and adverbs that were identifiers once. A name is
	// a noun, or a verb with an object.
	bare = []string{
		"besides", "hasty", "learnt", "nearly", "pressed", "rested", "seldom", "spared", "struck", "tight",
		"unclear", "underway",
	}
)

// TestWords keeps the words out that made comments and texts hard to read. It reads all
// Go files of the repository, those of nested modules and tests included.
func TestWords(t *testing.T) {
	report := func(path string, line int, text string) { t.Errorf("%s:%d: %s", path, line, text) }
	files := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || path == "words_test.go":
			return nil
		}
		files++
		return wordsIn(path, report)
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 300 {
		t.Fatalf("%d files were read: the search is at fault", files)
	}
}

func wordsIn(path string, report func(path string, line int, text string)) error {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return err
	}
	line := func(n ast.Node) int { return set.Position(n.Pos()).Line }
	for _, comment := range file.Comments {
		text := strings.Join(strings.Fields(comment.Text()), " ")
		for _, match := range findIn(text, true) {
			report(path, line(comment), match)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				break
			}
			for _, match := range findIn(strings.Join(strings.Fields(n.Value), " "), false) {
				report(path, line(n), match)
			}
			if vague.MatchString(n.Value) && !strings.HasSuffix(path, "_test.go") {
				report(path, line(n), n.Value)
			}
		case *ast.Ident:
			if inNames.MatchString(n.Name) || slices.Contains(bare, strings.ToLower(n.Name)) {
				report(path, line(n), "identifier "+n.Name)
			}
		}
		return true
	})
	return nil
}

// findIn returns what is wrong in a text, each with a few words around it. Sentences are
// looked at in prose only.
func findIn(text string, prose bool) (matches []string) {
	for _, at := range pronouns.FindAllStringIndex(text, -1) {
		matches = append(matches, text[max(0, at[0]-20):min(len(text), at[1]+20)])
	}
	if !prose {
		return matches
	}
	for _, sentence := range headless.FindAllString(text, -1) {
		if !strings.HasSuffix(sentence, "?") {
			matches = append(matches, sentence[:min(len(sentence), 60)])
		}
	}
	return matches
}

func TestWordsAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"Who finds no room waits.":                          1,
		"A request waits. What is owed stays owed.":         1,
		"It forgives nobody, by itself, as a rule.":         3,
		"A client that finds no room waits.":                0,
		"What is a herd?":                                   0,
		"What the limit holds stays.":                       1,
		"See above. Which of two is first depends on luck.": 1,
		"That which is owed stays owed.":                    1,
		"The code says what is served, and to any client.":  0,
	} {
		if got := findIn(text, true); len(got) != want {
			t.Errorf("%q: found %q, want %d", text, got, want)
		}
	}
}
