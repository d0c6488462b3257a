package loadshed

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestClassesAreSortedByShare(t *testing.T) {
	c, err := newClasses([]Class{{Name: "batch", Share: .3}, {Name: Sheddable}, {Name: "pay", Share: 1}, {Name: Critical}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Class{{"pay", 1}, {Critical, 1}, {Default, .9}, {Sheddable, .7}, {"batch", .3}, {unpaid, .3}}
	if !slices.Equal(c.list, want) {
		t.Errorf("%v, want %v", c.list, want)
	}
	if i, ok := c.Index("batch"); i != 4 || !ok {
		t.Errorf("batch is %d, %v", i, ok)
	}
	for _, name := range []string{"unknown", unpaid, ""} {
		if i, ok := c.Index(name); c.At(i).Name != Default || ok {
			t.Errorf("%q is %s, %v; want the default, since there is no such class", name, c.At(i).Name, ok)
		}
	}
	none, err := newClasses(nil)
	if err != nil || none.Len() != 1 || none.byDefault != 0 || none.At(0) != (Class{Default, 1}) {
		t.Errorf("no classes: %v, %v", none, err)
	}
}

func TestClassErrors(t *testing.T) {
	var many []Class
	for i := range maxClasses {
		many = append(many, Class{Name: string(rune('a' + i)), Share: .5})
	}
	for want, list := range map[string][]Class{
		`class "batch" has no share; set one, or use the name critical, default or sheddable`: {{Name: "batch"}},
		`class "batch": share is 1.5 (150%); use 0.01 to 1 (1% to 100%)`:                      {{Name: "batch", Share: 1.5}},
		`class "batch": share is -1 (-100%); use 0.01 to 1 (1% to 100%)`:                      {{Name: "batch", Share: -1}},
		`class "critical" is a duplicate; use different names`:                                {{Name: Critical}, {Name: Critical}},
		`class name is ""; use letters, digits and _ - . / :, 1 to 64 of them`:                {{Share: 1}},
		`class "unpaid" is reserved for retries before their appointment; use another name`:   {{Name: unpaid, Share: .5}},
		`10 classes are set; use at most 8`:                                                   many,
		`class name is "a b"`:                                                                 {{"a b", .5}},
		`class name is "é"`:                                                                   {{"é", .5}},
		`class name is "a\n"`:                                                                 {{"a\n", .5}},
		`class name is "{x}"`:                                                                 {{"{x}", .5}},
		`class name is "xxxx`:                                                                 {{strings.Repeat("x", maxClassName+1), .5}},
	} {
		if _, err := newClasses(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	mustClasses(t, Class{"AZaz09_-./:", 0.5}, Class{strings.Repeat("x", maxClassName), 0.5})
}

// A client that is drawn stays so for an hour. Then all are drawn anew, but not at
// once.
func TestDrawnForAnHour(t *testing.T) {
	const clients = 20_000
	drawn := func(now time.Duration) (set []bool, n int) {
		for i := range clients {
			is := Drawn(mix(uint64(i)), now, .3)
			set = append(set, is)
			if is {
				n++
			}
		}
		return set, n
	}
	changes := func(a, b []bool) (n int) {
		for i := range a {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	first, n := drawn(24 * time.Hour)
	if n < clients*29/100 || n > clients*31/100 {
		t.Errorf("%d of %d are drawn, want 3 in 10", n, clients)
	}
	soon, _ := drawn(24*time.Hour + time.Minute)
	later, _ := drawn(26 * time.Hour)
	// Of a pair of independent draws 2·0.3·0.7 = 42% differ; in a minute a sixtieth of
	// the clients are drawn anew.
	if n := changes(first, soon); n < clients*42/100/60/2 || n > clients*42/100/60*2 {
		t.Errorf("%d of %d changed within a minute, want about %d", n, clients, clients*42/100/60)
	}
	if n := changes(first, later); n < clients*40/100 || n > clients*44/100 {
		t.Errorf("%d of %d changed within two hours, want 42%%", n, clients)
	}
	for _, share := range []float64{0, 1} {
		if got := Drawn(7, time.Hour, share); got != (share == 1) {
			t.Errorf("a share of %v: %v", share, got)
		}
	}
}
