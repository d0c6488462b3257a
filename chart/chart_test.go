package chart

import (
	"os/exec"
	"strings"
	"testing"
)

// mostLines is how long the script may be. Ours: it stays readable, and smaller than any
// library.
const mostLines = 300

func TestScript(t *testing.T) {
	if n := strings.Count(Script, "\n"); n > mostLines {
		t.Errorf("chart.js has %d lines; want at most %d", n, mostLines)
	}
	// Strings that a page's policy would stop, or that make text into HTML.
	for _, not := range []string{"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "fetch(", `setAttribute("style"`, ".cssText", "</"} {
		if strings.Contains(Script, not) {
			t.Errorf("chart.js has %s", not)
		}
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node to check the syntax")
	}
	cmd := exec.CommandContext(t.Context(), node, "--check", "-")
	cmd.Stdin = strings.NewReader(Script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.5: "0.5", 123.4: "123.4", 12345.6: "12,346", -2: "-2", 1e6: "1,000,000", 999.96: "1000", 1e-9: "0.000000001"} {
		if got := Number(v); got != want {
			t.Errorf("%v is %s; want %s", v, got, want)
		}
	}
}
