package convert

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCaddyRateLimit(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.caddyfile")
	if len(files) < 2 {
		t.Fatalf("inputs are %q; want some", files)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := CaddyRateLimit(file, text)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Base(file), got)
		})
	}
}

// A directive of which nothing can be converted is left out.
func TestCaddyRateLimitLeavesOutWhatIsEmpty(t *testing.T) {
	got, err := CaddyRateLimit("Caddyfile", []byte(":80\nrate_limit {\nzone a {\nkey {http.request.uuid}\nevents 3\nwindow 1s\n}\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(got.Caddyfile, "shield {") || got.Missing() != 1 {
		t.Errorf("%d notes of what is missing; got\n%s", got.Missing(), got.Caddyfile)
	}
	load(t, got.Caddyfile)
}

func TestCaddyRateLimitErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "has no rate_limit",
		":80\nrespond rate_limit": "has no rate_limit",
		`{"apps": {}}`:            "is JSON; want a Caddyfile",
		":80\nrate_limit {\nzone a {\nevents 3\n}\n}":     "Caddyfile:3: zone a lacks events or window",
		":80\nrate_limit {\nzone a {\nkey\n}\n}":          "Caddyfile:4: key has no argument",
		":80\nrate_limit nonsense {\nzone a {\nkey\n}\n}": "wrong argument count",
		":80\nrate_limit {\nzone {\nevents 3\n}\n}":       "Caddyfile:3",
	} {
		if _, err := CaddyRateLimit("Caddyfile", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// Each option that a shield does not have is named, with its line, and the rest can be loaded.
func TestCaddyRateLimitNamesWhatIsMissing(t *testing.T) {
	for option, want := range map[string]string{
		"distributed {\nread_interval 1s\n}": "Caddyfile:3: distributed: ",
		"storage file_system /tmp":           "Caddyfile:3: storage: ",
		"log_key":                            "Caddyfile:3: log_key: ",
		"import zones":                       "Caddyfile:3: import zones: ",
		"zone b {\nkey {http.request.uuid}\nevents 1\nwindow 1s\n}": "Caddyfile:3: zone b: key is \"{http.request.uuid}\": placeholder",
		"zone b {\nkey {client_ip}\nevents {env.N}\nwindow 5s\n}":   "Caddyfile:3: zone b: events is {env.N}; want a number",
		"zone b {\nkey {client_ip}\nevents 5\nwindow 40d\n}":        "Caddyfile:3: zone b: window is longer than 31 days",
		"zone b {\nevents 5\nwindow 4m\nimport x\n}":                "Caddyfile:6: import in zone b: ",
		"unknown thing": "Caddyfile:3: unknown: ",
		"}\nimport other.caddyfile\nrate_limit {":       "Caddyfile:4: import other.caddyfile: ",
		"}\nheader X rate_limit_exceeded\nrate_limit {": "Caddyfile:4: rate_limit_exceeded: ",
	} {
		text := ":80\nrate_limit {\n" + option + "\nzone a {\nkey {client_ip}\nevents 3\nwindow 1s\n}\n}\n"
		got, err := CaddyRateLimit("Caddyfile", []byte(text))
		if err != nil {
			t.Errorf("%q: %v", option, err)
			continue
		}
		if all := missing(got); !strings.HasPrefix(all, want) || strings.Count(all, "\n") != 1 {
			t.Errorf("%q: not converted are\n%swant\n%s", option, all, want)
		}
		if !strings.Contains(option, "other.caddyfile") { // which is not there
			load(t, got.Caddyfile)
		}
	}
}
