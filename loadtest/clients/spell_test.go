package clients

import (
	"testing"
)

// Parse reads the words of Spell as the same policies.
func TestSpell(t *testing.T) {
	for _, e := range Catalog() {
		if got, ok := Spell(e.Policy); got != e.Name || !ok {
			t.Errorf("%s is spelt %q, %v", e.Name, got, ok)
		}
	}
	for _, s := range []string{
		"curl", "curl:70,exact:30", "fixed@1.5s*4", "fixed@2m0s:0.5,late@7%:1", "hammer@250ms", "binary-exponential@10ms", "try-n-times@5*3", "tcp-rto*2",
		"late@33.3%",
	} {
		mix, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := mix.Spell(); got != s {
			t.Errorf("%s is spelt %q", s, got)
		}
	}
	for _, p := range []Policy{
		GoArray{}, MaxAttempts{3, MaxAttempts{4, Exact{}}}, Named{"unknown", Exact{}}, Fixed{Gap: -1}, Client{Attempts: 4},
	} {
		if got, ok := Spell(p); ok {
			t.Errorf("%v is spelt %q; want that it has no words", p, got)
		}
	}
}
