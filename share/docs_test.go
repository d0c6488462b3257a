package share

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The times in docs/guides/replicas.md, and in the script, are those of the code.
func TestTimesInDocs(t *testing.T) {
	if times := fmt.Sprintf(", %d, %d\n", RosterTime.Milliseconds(), Lease.Milliseconds()); !strings.Contains(Script, "FORGET, LEASE = 60000, 5000, 5000"+times) {
		t.Errorf("the script does not have the times%s", times)
	}
	page, err := os.ReadFile("../docs/guides/replicas.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("in the background: every %d ms", Beat.Milliseconds()),
		fmt.Sprintf("and for %d ms at most", MaxTrip.Milliseconds()),
		fmt.Sprintf("slower than %d ms", MaxTrip.Milliseconds()),
		fmt.Sprintf("after at most %.1f s", answerTime.Seconds()),
		fmt.Sprintf("After %.0f s the others use all permits", RosterTime.Seconds()),
		fmt.Sprintf("come back after %.0f s", RosterTime.Seconds()),
		fmt.Sprintf("but for those of the last %d ms", Beat.Milliseconds()),
		fmt.Sprintf("at most 4,096 exchanges with %d each", maxNotes),
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/guides/replicas.md does not say %q", want)
		}
	}
}
