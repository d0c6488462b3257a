package oncall

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield"
)

// The sentence has a cause for each Reason, and the page a colour.
func TestEveryReasonIsSaid(t *testing.T) {
	page, err := os.ReadFile("page/page.js")
	if err != nil {
		t.Fatal(err)
	}
	colors := regexp.MustCompile(`COLORS = \{.*?\}`).FindString(string(page))
	for _, r := range shield.Reasons {
		if causes[r.String()] == nil {
			t.Errorf("no sentence says why requests are rejected for %v", r)
		}
		if !strings.Contains(colors, " "+r.String()+":") {
			t.Errorf("the page has no colour for %v: %s", r, colors)
		}
	}
}
