package commands

import (
	"strings"
	"testing"
)

func TestPageAt(t *testing.T) {
	for page, want := range map[string]string{
		"localhost:2020": "http://localhost:2020/shield/", ":2020": "http://localhost:2020/shield/", "0.0.0.0:2020": "http://localhost:2020/shield/",
		"[::1]:2020": "http://[::1]:2020/shield/", "edge-1:2020": "http://edge-1:2020/shield/",
	} {
		if got, err := pageAt(page); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", page, got, err, want)
		}
	}
	for page, want := range map[string]string{"unix//run/page.sock": "no browser", "": "page localhost:2020"} {
		if _, err := pageAt(page); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", page, err, want)
		}
	}
}
