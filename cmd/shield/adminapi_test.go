package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The commands of docs/reference/admin-api.md, in their order, print what the page shows.
func TestAdminAPIInDocs(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl on the path")
	}
	page := read(t, "../../docs/reference/admin-api.md")
	address, admin := startProxy(t, "--to", backend(t), "--rate", "5/m", "--burst", "2", "--capacity", "1000/s", "--concurrency", "10")
	for range 4 {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
		r.Header.Set("User-Agent", "curl/8.0")
		statusOf(r)
	}
	examples := regexp.MustCompile("(?s)```sh\n([^`]*?)```\n\n```json\n(.*?)```").FindAllStringSubmatch(page, -1)
	examples = append(examples, []string{"", "curl 'http://localhost:2019/shield/who?shield=x'", regexp.MustCompile(`(?m)^\{"error".*$`).FindString(page)})
	for _, e := range examples {
		commands := strings.Split(strings.TrimSpace(e[1]), "\n")
		var out []byte
		for _, line := range commands { // the last one prints what is shown
			line = strings.Replace(strings.ReplaceAll(line, "localhost:2019", admin), "curl ", "curl -sS ", 1)
			line = regexp.MustCompile(`--json ('[^']*')`).ReplaceAllString(line, "-H 'Content-Type: application/json' -d $1") // curl before 7.82
			var err error
			if out, err = exec.Command("sh", "-c", line).Output(); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		var is, want any
		if err := json.Unmarshal(out, &is); err != nil {
			t.Fatalf("%s prints %s: %v", e[1], out, err)
		}
		decoder := json.NewDecoder(bytes.NewReader([]byte(e[2])))
		if err := decoder.Decode(&want); err != nil {
			t.Fatalf("%s: %v", e[2], err)
		}
		said := flat("", is)
		for _, line := range flat("", want) { // an example may leave members out
			if !slices.Contains(said, line) {
				t.Errorf("%sit is not so that %s:\n%s", e[1], line, out)
			}
		}
	}
	if len(examples) != 6 {
		t.Errorf("the page has %d examples; want 6", len(examples))
	}
}

// passing are the members of an object whose values differ from run to run. They need only be of the same type.
var passing = regexp.MustCompile(`^(handle|says|since|until|by|id|per_second|left_seconds|.*wait_seconds|retry_after_seconds|appointment_in_seconds)$`)

// flat returns a line for each value in a JSON document, and for the length of each list.
func flat(at string, v any) (lines []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if passing.MatchString(name) {
				member = fmt.Sprintf("a %T", member)
			}
			lines = append(lines, flat(at+"."+name, member)...)
		}
	case []any:
		lines = append(lines, fmt.Sprintf("%s has %d elements", at, len(v)))
		for i, element := range v {
			lines = append(lines, flat(fmt.Sprintf("%s[%d]", at, i), element)...)
		}
	default:
		lines = append(lines, fmt.Sprintf("%s is %v", at, v))
	}
	return lines
}
