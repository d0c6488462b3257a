package share

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/pushback"
)

const ms = time.Millisecond

// Notes are told as text. Nothing is read of what no replica has told, nor taken of a store: more texts, and times that are further, than were asked for.
func TestNotesAsText(t *testing.T) {
	const zero = 1_795_000_000_000 * ms
	notes := []pushback.Note{
		{Key: 1<<63 + 5, Turn: pushback.Turn{At: 5 * time.Second, Trust: pushback.Proven, Slot: true}, Told: 4 * time.Second},
		{Key: 7, Turn: pushback.Turn{At: 70 * time.Second, Number: 12345}, Told: 71 * time.Second},
		{Key: 9, Turn: pushback.Turn{At: 5 * time.Second, Slot: true}, Told: ms, Shared: true},
		{Key: 8, Turn: pushback.Turn{At: ms}, Kept: true, OnTime: true, Told: ms},
	}
	b := encode(7, notes, zero)
	if sender, got := decode(b, zero); sender != 7 || !reflect.DeepEqual(got, notes) {
		t.Errorf("notes are\n%+v, want\n%+v", got, notes)
	}
	for _, text := range []string{"", "x", "AAAA", b[1:], "====", string([]byte{0, 255})} {
		if _, got := decode(text, zero); len(got) > 0 {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	for _, bad := range []pushback.Note{{Turn: pushback.Turn{Number: math.NaN()}}, {Turn: pushback.Turn{Trust: 200}}} {
		if _, got := decode(encode(7, []pushback.Note{bad}, zero), zero); len(got) > 0 {
			t.Errorf("a note of a damaged store is read as %+v", got)
		}
	}
	ask := LeaseAsk{Slots: &pushback.SlotsAsk{Want: 1, Max: 9}}
	for i, a := range []LeaseAnswer{{N: 1, Slots: &pushback.SlotsAnswer{Times: []int64{9}}}, {N: 1, News: make([]string, maxTexts+1)}, {N: 1, Slots: &pushback.SlotsAnswer{Times: []int64{10}}}} {
		if a.Fits(&ask) != (i == 0) {
			t.Errorf("%+v fits: %v", a, i > 0)
		}
	}
}

// MayUse returns how many permits the replica may use at now.
func (s *Link) MayUse(now time.Duration) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now >= s.permits.until {
		return 0
	}
	return s.permits.limit
}

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
		fmt.Sprintf("Every %d ms, or within a few milliseconds", Beat.Milliseconds()),
		fmt.Sprintf("still have some: for %d ms at most", MaxTrip.Milliseconds()),
		fmt.Sprintf("Rejections also wait, for up to %d ms", MaxTrip.Milliseconds()),
		fmt.Sprintf("slower than %d ms", MaxTrip.Milliseconds()),
		fmt.Sprintf("within %.1f s, each replica falls back", answerTime.Seconds()),
		fmt.Sprintf("after %.0f s, the others use all permits", RosterTime.Seconds()),
		fmt.Sprintf("After %.0f s, they also get its rate", RosterTime.Seconds()),
		fmt.Sprintf("except those of the last %d ms", Beat.Milliseconds()),
		fmt.Sprintf("at most 4,096 exchanges with %d each", maxNotes),
	} {
		if !strings.Contains(pages, want) {
			t.Errorf("neither docs/guides/replicas.md nor loadtest/lab/replicas/README.md says %q", want)
		}
	}
}

// A replica that was frozen has not looked for the store meanwhile: others have its permits.
func TestFrozenReplicaHasNoPermits(t *testing.T) {
	p := permits{granted: 5, heard: time.Second}
	p.unanswered(2 * time.Second)
	p.unanswered(time.Hour)
	if p.follow(time.Hour, 10, 2); p.limit != 0 {
		t.Errorf("%d permits, want none", p.limit)
	}
}
