package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/internal/configfile"
)

func shields(t *testing.T, file, text string) []configfile.Shield {
	t.Helper()
	found, err := configfile.Read(file, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Every Caddyfile of the tests with a shield in it is read.
func TestShieldsReadsEverything(t *testing.T) {
	files, _ := filepath.Glob("../../caddymodule/testdata/*.caddyfiletest")
	n := 0
	for _, file := range files {
		input, _, _ := strings.Cut(read(t, file), "\n----------\n")
		found, err := configfile.Read(file, []byte(input))
		wrong := strings.Contains(file, "/error_")
		if wrong != (err != nil) {
			t.Errorf("%s: error is %v", file, err)
			continue
		}
		if !wrong {
			n += len(found)
		}
	}
	if n < 5 {
		t.Errorf("only %d shields found", n)
	}
}

// A shield is found in each form of a config, with or without a byte order mark.
func TestShieldsReadsEveryForm(t *testing.T) {
	for name, text := range map[string]string{
		"a directive": "shield {\n\tcapacity 10/s burst 3\n}",
		"a handler":   `{"handler": "shield", "capacity": {"rate": 10, "per": "1s", "burst": 3}}`,
		"a config":    `{"apps": {"http": {"servers": {"shield": {"routes": [{"handle": [{"handler": "subroute", "routes": [{"handle": [{"handler": "shield", "capacity": {"rate": 10, "per": "1s", "burst": 3}}]}]}]}]}}}}}`,
		"a Caddyfile": "{\n\tadmin off\n}\n:80 {\n\tshield {\n\t\tname shield\n\t\tcapacity 10/s burst 3\n\t}\n}",
		"a comment":   "# mine\nshield {\n\tcapacity {$NONESUCH:10/s} burst 3\n}",
	} {
		for _, mark := range []string{"", "\ufeff"} {
			found := shields(t, name, mark+text)
			if c := found[0].Config.Capacity; len(found) != 1 || c.Rate != 10 || c.Burst != 3 {
				t.Errorf("%s: found %+v; want one of 10/s burst 3", name, found)
			}
		}
	}
	found := shields(t, "a", ":80 {\n\tshield {\n\t\tname x\n\t\tcapacity 1/s\n\t}\n\tshield {\n\t\tname x\n\t\tcapacity 1/s\n\t}\n}")
	if len(found) != 1 {
		t.Errorf("found %+v; want one", found)
	}
}

func TestShieldsErrors(t *testing.T) {
	for text, wants := range map[string][]string{
		"":                      {"f is empty; use a Caddyfile"},
		":80 {\n\trespond x\n}": {"f has no shield;"},
		"shield {\n\tcapacity 10/s\n\tconcurency 5\n}":                {"concurency", "f:3", "use name, mode"},
		":80 {\n\tshield {\n\t\tcapacity ten\n\t}\n}":                 {"ten", "f:3"},
		":80 {\n\tnonesuch\n}":                                        {"nonesuch", "f:2"},
		"shield {\n\tcapacity 10/s\n":                                 {"unexpected EOF, at f:2"},
		"shield {\n\tqueue 5\n}":                                      {`queue is set without a concurrency limit; set concurrency as well, at f:2`},
		"shield {\n\tconcurrency 5\n\tclass odd\n}":                   {`class "odd" has no share`, "at f:3"},
		"shield {\n\tname a/b?\n\tcapacity 1/s\n}":                    {"name is", "at f:2"},
		"shield 1/s {\n\tretries {\n\t\tkey {nonesuch}\n\t}\n}":       {`retries: key is`, "nonesuch", "at f:3"},
		`{"handler": "shield", "capasity": {}}`:                       {`unknown field "capasity"`},
		`{"handler": "shield", "zones": [null]}`:                      {`f: shield "shield": a zone or a class is null`},
		`{"handler": "shield", "capacity": {"rate": 1, "burst": -1}}`: {`f: shield "shield": capacity: burst is -1`},
		strings.Repeat(`[`, 9_000) + strings.Repeat(`]`, 9_000):       {"has no shield"},
	} {
		_, err := configfile.Read("f", []byte(text))
		if err == nil {
			t.Errorf("%s: no error; want %q", text, wants)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s:\nerror is %v\nwant %q in it", text, err, want)
			}
		}
	}
	if _, err := configfile.Read("f.json", []byte("\n{\n \"a\": 1,\n}")); err == nil || !strings.Contains(err.Error(), "f.json:4: ") {
		t.Errorf("error is %v; want the line in it", err)
	}
}

// Shields may be anywhere in a site, and each is found once.
func TestShieldsAnywhere(t *testing.T) {
	in := func(block, name string) string { return block + " {\nshield 1/s {\nname " + name + "\n}\n}\n" }
	found := shields(t, "f", "a.test, b.test {\nshield 5/s {\nname all\n}\n"+in("handle /api/*", "handle")+in("handle_path /x/*", "handle_path")+
		in("route /y", "route")+"}\nc.test {\nshield 5/s {\nname all\n}\n}\n:9000 {\nshield 1/s\n}\n")
	var names []string
	for _, f := range found {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	if want := []string{"all", "handle", "handle_path", "route", "srv1"}; !slices.Equal(names, want) {
		t.Errorf("shields are %q; want %q", names, want)
	}
}

// A config is rejected just if Caddy rejects it, for the same reason.
func TestShieldsRejectsWhatCaddyRejects(t *testing.T) {
	const route = `{"logging": {"logs": {"default": {"writer": {"output": "discard"}}}}, "apps": {"shield": %s, "http": {"servers": {"s": {"listen": ["127.0.0.1:0"], "routes": [{"handle": [%s]}]}}}}}`
	const one, zone = `{"handler": "shield", "name": "x", "capacity": {"rate": 1}`, `{"handler": "shield", "zones": [{"name": "z", "rate": 1`
	for _, c := range []struct{ app, handlers, wrong string }{
		{`{}`, one + `}, ` + one + `}`, ""},
		{`{}`, one + `, "mode": "enforce"}, ` + one + `, "pushback": {"max": "9s"}}`, ""},
		{`{}`, one + `}, {"handler": "shield", "name": "x", "capacity": {"rate": 2}}`, `shield "x" is defined twice, with different capacity`},
		{`{}`, one + `}, ` + one + `, "mode": "observe"}`, `shield "x" is defined twice`},
		{`{}`, one + `}, ` + one + `, "retries": {"enforce": false}}`, `retries of shield "x" is defined twice`},
		{`{}`, zone + `}]}, ` + zone + `, "per": "1s", "key": "{http.vars.client_ip}"}]}`, ""},
		{`{}`, zone + `}]}, {"handler": "shield", "zones": [{"name": "z", "rate": 2}]}`, `zone "z" is defined twice, with different rate`},
		{`{}`, zone + `}]}, ` + zone + `, "match": [{"path": ["/"]}]}]}`, `zone "z" is defined twice`},
		{`{"mode": "observe"}`, one + `}`, ""},
		{`{"mode": "maybe"}`, one + `}`, `mode is "maybe"`},
		{`{"moed": "observe"}`, one + `}`, `unknown field "moed"`},
		{`{"@id": "app"}`, `{"@id": "mine", "handler": "shield", "capacity": {"rate": 1, "@id": "its capacity"}}`, ""},
	} {
		text := fmt.Appendf(nil, route, c.app, c.handlers)
		var config caddy.Config
		if err := json.Unmarshal(caddy.RemoveMetaFields(text), &config); err != nil {
			t.Fatal(err)
		}
		config.Admin = &caddy.AdminConfig{Disabled: true}
		_, err := configfile.Read("f", text)
		for name, err := range map[string]error{"Caddy": caddy.Validate(&config), "Shields": err} {
			if (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s:\nerror of %s is %v; want %q", text, name, err, c.wrong)
			}
		}
	}
	// Values of environment variables are unknown here.
	shields(t, "f", fmt.Sprintf(route, "{}", one+`, "retries": {"tickets": true, "secret": "0123456789abcdef"}}, `+one+`, "retries": {"tickets": true, "secret": "{env.SECRET}"}}`))
}
