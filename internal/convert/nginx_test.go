package convert

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestNginx(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.nginx")
	if len(files) < 2 {
		t.Fatalf("inputs are %q; want some", files)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got, err := Nginx(file)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Base(file), got)
		})
	}
}

// converted converts a text.
func converted(t *testing.T, text string) (Result, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nginx.conf")
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return Nginx(file)
}

func TestNginxErrors(t *testing.T) {
	for text, want := range map[string]string{
		"": "has no limit_req and no limit_conn in a server",
		"limit_req_zone $uri zone=a:1m rate=1r/s;\nserver {\nlimit_req zone=a;":                 "unexpected end of file",
		"limit_req_zone $uri zone=a:1m;\nserver {\nlimit_req zone=a;\n}":                        `invalid number of arguments in "limit_req_zone"`,
		"limit_req_zone $uri zone=a:1m rate=1r/h;\nserver {\nlimit_req zone=a;\n}":              "nginx.conf:1: rate=1r/h of limit_req_zone is not understood",
		"limit_req_zone $uri zone=a:1m rate=1r/s;\nserver {\nlocation / {\nproxy_pass x;\n}\n}": "has no limit_req",
	} {
		if _, err := converted(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

func TestNginxWantsAFile(t *testing.T) {
	if _, err := Nginx(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is a folder; want the file in it") {
		t.Errorf("error is %v; want one that says that a folder is none", err)
	}
}

// Each directive that bears on limits and is not converted is named, with its line.
func TestNginxNamesWhatIsMissing(t *testing.T) {
	zone := "limit_req_zone %s zone=b:1m rate=1r/s;\nserver {\nlisten 81;\nlimit_req zone=b;\n}"
	of := func(key string) string { return strings.Replace(zone, "%s", key, 1) }
	for text, want := range map[string]string{
		of("$remote_user"): "nginx.conf:5: limit_req with zone b (nginx.conf:2): its key is $remote_user: $remote_user has no counterpart",
		of("$geoip_city"):  "nginx.conf:5: limit_req with zone b (nginx.conf:2): its key is $geoip_city: $geoip_city has no counterpart",
		"server {\nlisten 82;\nset $k $uri;\n}\n" + of("$k"):                "nginx.conf:9: limit_req with zone b (nginx.conf:6): its key is $k: $k is set while",
		"map $a $k {\ninclude x;\n}\n" + of("$k"):                           "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): $a has no",
		"map $uri $k {\ninclude x;\n}\n" + of("$k"):                         "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): include x in line 3 is not read",
		"map $uri $k {\n~(?<a>.) $a;\n}\n" + of("$k"):                       "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): $a has a part",
		"map $uri $k {\n~(?!a) 1;\n}\n" + of("$k"):                          "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): ~(?!a) is no regular",
		"map $k $k {\na 1;\n}\n" + of("$k"):                                 "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: ",
		"geo $http_x $k {\ndefault 1;\n}\n" + of("$k"):                      "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): it maps another",
		"server {\nlisten 81;\nlimit_req zone=nothing;\n}":                  "nginx.conf:4: limit_req zone=nothing: zone nothing is not defined here",
		"server {\nlisten 81;\nlimit_conn a 5;\n}":                          "nginx.conf:4: limit_conn a 5: zone a is not defined",
		"server {\nlisten 81;\nlocation ~ (?!a) {\nlimit_req zone=a;\n}\n}": "nginx.conf:4: location (?!a): it is no regular expression",
		"limit_req_zone $uri zone=b:1m rate=1r/s;\nserver {\nlisten 81;\nlocation /b/ {\nlocation ~ .php$ {\nlimit_req zone=b;\n}\n}\n}": "nginx.conf:6: location ~ .php$ stands in another one",
		"limit_conn_zone $uri zone=b:1m;\nserver {\nlisten 81;\nlocation @b {\nlimit_conn b 5;\n}\n}":                                    "nginx.conf:5: location @b: other locations send requests there",
		"limit_rate 5k;":                             "nginx.conf:2: limit_rate 5k: a shield limits requests, not bytes",
		"limit_what 5;":                              "nginx.conf:2: limit_what 5: ",
		"include gone.conf;":                         "nginx.conf:2: the included file cannot be read",
		"error_page 503 /x;":                         "nginx.conf:2: error_page 503 /x: ",
		"server {\nlisten 80;\nlimit_req zone=a;\n}": "nginx.conf:6: http://:80 is the address of a server above, too",
		"server {\nlisten 81;\nserver_name ~^a;\nlimit_req zone=a;\n}":                        "nginx.conf:4: server_name ~^a: ",
		"server {\nlisten unix:/x;\nlimit_req zone=a;\n}":                                     "nginx.conf:3: listen unix:/x: ",
		"server {\nlisten 81;\nlimit_req_status 444;\nlimit_req zone=a;\n}":                   ": status 444 closes the connection",
		"server {\nlisten 81;\nlimit_req zone=a;\nlocation /a {\nlimit_req_status 420;\n}\n}": ": requests over a limit are answered with 503 by default or 420",
	} {
		text := "limit_req_zone $uri zone=a:1m rate=1r/s;\n" + text + "\nserver {\nlisten 80;\nlimit_req zone=a;\n}\n"
		got, err := converted(t, text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if all := missing(got); !strings.HasPrefix(all, want) || strings.Count(all, "\n") != 1 {
			t.Errorf("%q: not converted are\n%swant\n%s", text, all, want)
		}
		load(t, got.Caddyfile)
	}
}

// Idioms that many configurations have become what nginx makes of them.
func TestNginxIdioms(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "office.geo"), []byte("10.0.0.0/8 0;\n192.0.2.1 0;\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	const zone = "limit_req_zone $k zone=a:1m rate=1r/s;\n"
	const uses = "server {\nlimit_req zone=a;\nlocation / {\nproxy_pass http://app;\n}\n}\n"
	for _, c := range []struct{ config, want, missing string }{
		{"geo $l {\ndefault 1;\ninclude office.*;\n}\nmap $l $k {\n0 \"\";\n1 $remote_addr;\n}\n" + zone + uses, "vars @l-1 l 0\n", ""},
		{"geo $l {\ndefault 1;\n" + manyLines("10.0.0.%d 0;\n") + "}\nmap $l $k {\n0 \"\";\n1 $remote_addr;\n}\n" + zone + uses, "@l-1 client_ip 10.0.0.0 10.0.0.1 ", ""},
		{"map $uri $k {\n~^/(login|signin) $remote_addr;\n}\n" + zone + uses, "@k-1 path_regexp ^/(login|signin)\n\t\tvars @k-1 k {client_ip}\n", ""},
		{"map $uri $k {\n\"~^/a\\\\.b\\\"$\" 1;\n}\n" + zone + uses, "path_regexp `^/a\\.b\"$`\n", ""},
		{strings.ReplaceAll(zone, "$k", "$uri") + "limit_req zone=a;\n" + uses + "server {\nlisten 81;\nreturn 301 https://$host;\n}\n", "http://:80 {", ""},
		{strings.ReplaceAll(zone, "$k", "$uri") + "server {\nlocation / {\ntry_files $uri /index.php;\n}\nlocation ~ \\.php$ {\nlimit_req zone=a;\n}\n}\n", "vars chosen-location _.php_\n", ""},
		{strings.ReplaceAll(zone, "$k", "$uri") + "server {\nlimit_req zone=a;\nlimit_req_dry_run on;\nlocation /a {\nlimit_req_dry_run off;\n}\nlocation / {\n}\n}\n", "shield {\n\t\t\tmode observe\n", ""},
		{strings.ReplaceAll(zone, "$k", "$uri") + "server {\nlocation /a {\nlimit_req zone=a;\n}\n}\nserver {\nlisten 81;\nlocation /a {\nlimit_req zone=a;\n}\n}\n", "http://:81 {\n\troute {\n", ""},
		{"limit_req_zone all zone=a:1m rate=1r/s;\nserver {\nlimit_req zone=a;\n}\nserver {\nlisten 81;\nlimit_req zone=a;\n}\n", "zone a {\n\t\t\tkey {vars.every-client}", ""},
		{"limit_conn_zone $server_name zone=c:1m;\nserver {\nlimit_conn c 5;\n}\n", "http://:80 {\n\t# Yours to write: what answers the requests.\n\trespond 503\n}", ""},
	} {
		file := filepath.Join(folder, "nginx.conf")
		if err := os.WriteFile(file, []byte(c.config), 0o666); err != nil {
			t.Fatal(err)
		}
		got, err := Nginx(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(got.Caddyfile, c.want) {
			t.Errorf("%q: want %q in\n%s", c.config, c.want, got.Caddyfile)
		}
		if all := missing(got); !strings.Contains(all, c.missing) || c.missing == "" && all != "" {
			t.Errorf("%q: not converted are\n%swant\n%s", c.config, all, c.missing)
		}
		if strings.Contains(got.Caddyfile, "zone a-2") && strings.Contains(c.config, "listen 81") {
			t.Errorf("%q: servers do not count together in\n%s", c.config, got.Caddyfile)
		}
		load(t, got.Caddyfile)
	}
}

func manyLines(line string) string {
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, line, i)
	}
	return b.String()
}

// A site answers for the hosts for which nginx chooses its server.
func TestNginxHosts(t *testing.T) {
	for _, c := range []struct{ servers, want, missing string }{
		{"server {\nserver_name a.test;\n}\n", "http://a.test, http://:80", ""},
		{"server {\nserver_name a.test;\n}\nserver {\nserver_name b.test;\n}\n", "http://a.test, http://:80; http://b.test", ""},
		{"server {\nserver_name a.test;\n}\nserver {\nlisten 80 default_server;\nserver_name b.test;\n}\n", "http://a.test; http://b.test, http://:80", ""},
		{"server {\nlisten 80;\nlisten 81;\nserver_name a.test;\n}\nserver {\nlisten 81 default_server;\nserver_name _;\n}\n", "http://a.test, http://:80, http://a.test:81; http://:81", ""},
		{"server {\nserver_name a.test;\n}\nserver {\nserver_name _;\n}\n", "http://a.test, http://:80; http://server-of-line-7.invalid", "nginx.conf:7: the server has no name that a site may have, and that of nginx.conf:3 is"},
		{"server {\nserver_name a.test;\n}\nserver {\nserver_name *.b.test;\n}\n", "http://:80; http://*.b.test", "nginx.conf:8: server_name *.b.test: in nginx the wildcard stands for any number"},
		{"server {\nserver_name a.b.test;\n}\nserver {\nserver_name .b.test;\n}\n", "http://a.b.test; http://b.test, http://*.b.test", "nginx.conf:8: server_name .b.test: in nginx the wildcard stands for any number"},
		{"server {\nlisten 443 ssl;\nserver_name a.test;\n}\n", "https://a.test", "nginx.conf:3: the server is the default one of port 443: "},
		{"server {\nlisten 443 ssl;\n}\n", "https://:443", ""},
		{"server {\nserver_name _ a.test;\n}\n", "http://a.test, http://:80", ""},
		{"server {\nserver_name ~^a;\n}\n", "http://:80", "nginx.conf:4: server_name ~^a: a site has no such name"},
	} {
		got, err := converted(t, "http {\nlimit_req_zone $uri zone=a:1m rate=1r/s;\n"+strings.ReplaceAll(c.servers, "\n}\n", "\nlimit_req zone=a;\n}\n")+"}\n")
		if err != nil {
			t.Fatal(err)
		}
		sites := []string{}
		for _, m := range regexp.MustCompile(`(?m)^(https?://.*) \{$`).FindAllStringSubmatch(got.Caddyfile, -1) {
			sites = append(sites, m[1])
		}
		if all := strings.Join(sites, "; "); all != c.want {
			t.Errorf("%q: sites are %s; want %s", c.servers, all, c.want)
		}
		if all := missing(got); !strings.Contains(all, c.missing) || c.missing == "" && all != "" {
			t.Errorf("%q: not converted are\n%swant\n%s", c.servers, all, c.missing)
		}
		load(t, got.Caddyfile)
	}
}

// The Caddyfile grows with the locations, not with their square.
func TestNginxWithManyLocationsStaysShort(t *testing.T) {
	size := func(count int) int {
		var b strings.Builder
		b.WriteString("limit_req_zone $uri zone=a:1m rate=1r/s;\nlimit_conn_zone $uri zone=c:1m;\nserver {\nlimit_req zone=a;\n")
		for i := range count {
			fmt.Fprintf(&b, "location ~ ^/%04d/ {\nlimit_req zone=a burst=%d;\nproxy_pass http://127.0.0.1:9000;\n}\n", i, 1000+i)
		}
		got, err := converted(t, b.String()+"}\n")
		if err != nil {
			t.Fatal(err)
		}
		return len(got.Caddyfile)
	}
	if few, many := size(100), size(1000); many > 11*few {
		t.Errorf("100 locations become %d bytes, and 1,000 %d; want ten times as many, and a few", few, many)
	}
}
