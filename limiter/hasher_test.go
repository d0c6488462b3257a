package limiter

import (
	"fmt"
	"strings"
	"testing"
)

// Replicas with one secret have the same keys, which say nothing without it.
func TestKeysUnderASecret(t *testing.T) {
	hasher := func(secret string) Hasher {
		h, err := NewHasher([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a, b, other := hasher("0123456789abcdef"), hasher("0123456789abcdef"), hasher("0123456789abcdeg")
	for _, name := range []string{"", "192.0.2.1", strings.Repeat("x", 200)} {
		key := a.KeyOf(name)
		if key == 0 || key != b.KeyOfBytes([]byte(name)) {
			t.Errorf("%q has the keys %x and %x with one secret", name, key, b.KeyOf(name))
		}
		if key == other.KeyOf(name) || key == KeyOf(name) {
			t.Errorf("%q has one key with two secrets", name)
		}
		if KeyOf(name) != (Hasher{}).KeyOfBytes([]byte(name)) {
			t.Errorf("%q has two keys in one process", name)
		}
	}
	// Other versions run beside this one: their keys must be the same.
	if got := fmt.Sprintf("%x", uint64(a.KeyOf("192.0.2.1"))); got != "39e40e08e038e181" {
		t.Errorf("keys are %s", got)
	}
}
