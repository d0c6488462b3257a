package main

import (
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/internal/fakellm"
	"github.com/herdshield/shield/share/redis/testserver"
)

// The commands of docs/guides/llm.md work as they stand, but for the ports. They show what the page shows: the second request what is left,
// and the fourth a rejection with the error object of OpenAI's API.
func TestLLMPage(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl on the path")
	}
	t.Parallel()
	page := read(t, "../../docs/guides/llm.md")
	run := regexp.MustCompile("```bash\ngo run ./cmd/fakellm --listen (\\S+)\n```\n(?s:.*?)```bash\ngo run ./cmd/shield run --config (\\S+)\n```\n").FindStringSubmatch(page)
	ask := regexp.MustCompile("```bash\n(for i in 1 2 3 4; do curl .*)\n```").FindStringSubmatch(page)
	shown := regexp.MustCompile("(?s)```text\n(HTTP.*?)```").FindAllStringSubmatch(page, -1)
	if run == nil || ask == nil || len(shown) != 2 {
		t.Fatal("the page does not show how it is tried")
	}
	model := httptest.NewServer(&fakellm.Server{PerToken: 5 * time.Millisecond})
	t.Cleanup(model.Close)
	address := testserver.FreeAddress(t)
	config := strings.NewReplacer(run[1], strings.TrimPrefix(model.URL, "http://"), ":8080", "http://"+address).Replace(read(t, "../../"+run[2]))
	await(t, caddyfile(t, "{\n\tadmin "+testserver.FreeAddress(t)+"\n}\n"+config), serving)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(ask[1], "localhost:8080", address)).Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(strings.ReplaceAll(string(out), "\r", ""), "HTTP/1.1 ")[1:]
	if len(answers) != 4 {
		t.Fatalf("%d answers; want 4:\n%s", len(answers), out)
	}
	for n, want := range []string{"200 OK", "200 OK", "200 OK", "429 Too"} {
		nothing := strings.Contains(answers[n], "Ratelimit: \"tokens\";r=0;")
		if !strings.HasPrefix(answers[n], want) || nothing != (n != 1) || n < 3 && !strings.Contains(answers[n], `"total_tokens":99`) {
			t.Errorf("answer %d, want %s, 99 tokens used, and some left after the second only:\n%s", n+1, want, answers[n])
		}
	}
	showsAlmost(t, "HTTP/1.1 "+answers[1], shown[0][1])
	showsAlmost(t, "HTTP/1.1 "+answers[3], shown[1][1])
}

// showsAlmost checks that each line of want is in out. Times and what is left may differ by a quarter, as on a machine that is
// three seconds slower. What t is in RateLimit is tested where it's made.
func showsAlmost(t *testing.T, out, want string) {
	t.Helper()
	number := regexp.MustCompile(`\d+(\.\d+)?`)
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		pattern := regexp.MustCompile(`(?m)^` + number.ReplaceAllString(regexp.QuoteMeta(number.ReplaceAllString(line, "0")), `(\d+(?:\.\d+)?)`) + `$`)
		got := pattern.FindStringSubmatch(out)
		ok := got != nil
		for i, n := range number.FindAllString(line, -1) {
			if !ok {
				break
			}
			is, _ := strconv.ParseFloat(got[i+1], 64)
			shown, _ := strconv.ParseFloat(n, 64)
			varies := !strings.HasPrefix(line, "HTTP/") && !strings.Contains(line, "Policy") && !strings.Contains(line, "Limit-")
			reset := strings.HasPrefix(line, "Ratelimit:") && i == 1
			ok = is == shown || reset || varies && is >= 0.75*shown && is <= 1.25*shown
		}
		if !ok {
			t.Errorf("the page shows\n%s\nand this came out:\n%s", line, out)
		}
	}
}
