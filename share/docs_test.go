package share

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The times in docs/guides/replicas.md, in what was measured, and in the script, are those of the code.
func TestTimesInDocs(t *testing.T) {
	if times := fmt.Sprintf(", %d, %d\n", RosterTime.Milliseconds(), Lease.Milliseconds()); !strings.Contains(Script, "FORGET, LEASE = 60000, 5000, 5000"+times) {
		t.Errorf("the script does not have the times%s", times)
	}
	pages := ""
	for _, path := range []string{"../docs/guides/replicas.md", "../loadtest/lab/replicas/README.md"} {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pages += string(page)
	}
	for _, want := range []string{
		fmt.Sprintf("in the background: every %d ms", Beat.Milliseconds()),
		fmt.Sprintf("still have some. It waits for %d ms at most", MaxTrip.Milliseconds()),
		fmt.Sprintf("assign its time, for %d ms at most", MaxTrip.Milliseconds()),
		fmt.Sprintf("slower than %d ms", MaxTrip.Milliseconds()),
		fmt.Sprintf("after at most %.1f s", answerTime.Seconds()),
		fmt.Sprintf("After %.0f s the others use all permits", RosterTime.Seconds()),
		fmt.Sprintf("come back after %.0f s", RosterTime.Seconds()),
		fmt.Sprintf("except those of the last %d ms", Beat.Milliseconds()),
		fmt.Sprintf("at most 4,096 exchanges with %d each", maxNotes),
	} {
		if !strings.Contains(pages, want) {
			t.Errorf("neither docs/guides/replicas.md nor loadtest/lab/replicas/README.md says %q", want)
		}
	}
}
