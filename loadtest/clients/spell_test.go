package clients

import (
	"testing"
	"time"
)

// Parse reads the words of Spell as the same policies.
func TestSpell(t *testing.T) {
	words := []string{
		"curl", "curl:70,exact:30", "fixed@1.5s*4", "fixed@2m0s:0.5,late@7%:1", "hammer@250ms", "binary-exponential@10ms", "try-n-times@5*3", "tcp-rto*2",
		"late@33.3%",
	}
	for _, e := range Catalog() {
		words = append(words, e.Name)
	}
	for _, s := range words {
		mix, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := mix.Spell(); got != s {
			t.Errorf("%s is spelt %q", s, got)
		}
	}
	if got := All(Fixed{Gap: 5 * time.Second}).Spell(); got != "every 5s" {
		t.Errorf("a policy that was not parsed is spelt %q", got)
	}
}
