package clients

import (
	"fmt"
	"strconv"
	"strings"
)

// Spell returns p in the words that Parse reads, without a weight. It is false if there
// are none for p.
func Spell(p Policy) (string, bool) {
	if m, ok := p.(MaxAttempts); ok {
		s, ok := Spell(m.Policy)
		return fmt.Sprintf("%s*%d", s, m.N), ok && !strings.Contains(s, "*")
	}
	for _, e := range catalog {
		if e.Policy == p {
			return e.Name, true
		}
	}
	var s string
	switch p := p.(type) {
	case Named:
		s = p.Name
	case Late:
		s = "late@" + strconv.FormatFloat(100*p.By, 'g', 12, 64) + "%" // 12 digits: 100 · 0.07 is a little more than 7
	case Fixed:
		s = "fixed@" + p.Gap.String()
	case Hammer:
		s = "hammer@" + p.Gap.String()
	}
	share, err := parseShare(s)
	return s, err == nil && share.Policy == p
}

// Spell returns p in the words that Parse reads, with the String of a policy that has
// none.
func (p Population) Spell() string {
	var parts []string
	for _, s := range p {
		part, ok := Spell(s.Policy)
		if !ok {
			part = fmt.Sprint(s.Policy)
		}
		if len(p) > 1 {
			part += ":" + strconv.FormatFloat(s.Weight, 'g', -1, 64)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}
