package commands

import (
	"strings"
	"testing"
)

func TestPageAt(t *testing.T) {
	for address, want := range map[string]string{
		"localhost:2019": "http://localhost:2019/shield/", ":2019": "http://localhost:2019/shield/", "0.0.0.0:2019": "http://localhost:2019/shield/",
		"[::1]:2019": "http://[::1]:2019/shield/", "edge-1:2019": "http://edge-1:2019/shield/",
	} {
		if got, _, err := pageAt(address); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", address, got, err, want)
		}
	}
	if _, _, err := pageAt("unix//run/admin.sock"); err == nil || !strings.Contains(err.Error(), "no browser") {
		t.Errorf("a socket: %v", err)
	}
}
