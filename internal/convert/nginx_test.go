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
		"geo $k {\nranges;\n1.1.1.3-1.1.1.2 1;\n}\n" + of("$k"):             "nginx.conf:9: limit_req with zone b (nginx.conf:6): its key is $k: $k (nginx.conf:2): 1.1.1.3-1.1.1.2 is no range",
		"server {\nlisten 81;\nlimit_req zone=nothing;\n}":                  "nginx.conf:4: limit_req zone=nothing: zone nothing is not defined here",
		"server {\nlisten 81;\nlimit_conn a 5;\n}":                          "nginx.conf:4: limit_conn a 5: zone a is not defined",
		"server {\nlisten 81;\nlocation ~ (?!a) {\nlimit_req zone=a;\n}\n}": "nginx.conf:4: location (?!a): it is no regular expression",
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
		{"geo $l {\ndefault 1;\ninclude office.*;\n}\nmap $l $k {\n0 \"\";\n1 $remote_addr;\n}\n" + zone + uses, "match {\n\t\t\t\tnot client_ip 192.0.2.1 10.0.0.0/8\n", ""},
		{"geo $l {\nranges;\ndefault 1;\n10.0.0.1-10.0.0.6 0;\n10.1.0.0-10.1.255.255 0;\n}\nmap $l $k {\n0 \"\";\n1 $remote_addr;\n}\n" + zone + uses,
			"not client_ip 10.1.0.0/16 10.0.0.1/32 10.0.0.2/31 10.0.0.4/31 10.0.0.6/32\n", ""},
		{"geo $l {\ndefault 1;\n" + manyLines("10.0.0.%d 0;\n") + "}\nmap $l $k {\n0 \"\";\n1 $remote_addr;\n}\n" + zone + uses, "match {\n\t\t\t\tnot client_ip 10.0.0.199 10.0.0.198", ""},
		{"map $http_user_agent $k {\n" + manyLines("~*bot%d $remote_addr;\n") + "~(?<a>b) $remote_addr;\n~(?<a>c) $remote_addr;\n}\n" + zone + uses, "match {\n\t\t\t\tvars_regexp {header.User-Agent} (?:(?i)bot0)|(?:(?i)bot1)|", ""},
		{"map $http_user_agent $k {\n" + manyLines("~a%d 1;\n~b%[1]d \"\";\n") + "}\n" + zone + uses, "", "it has more than 64 values"},
		{"map $uri $k {\n~^/(login|signin) $remote_addr;\n}\n" + zone + uses, "match {\n\t\t\t\tpath_regexp ^/(login|signin)\n", ""},
		{"map $uri $k {\n\"~^/a\\\\.b\\\"$\" 1;\n}\n" + zone + uses, "path_regexp `^/a\\.b\"$`\n", ""},
		{"upstream app {\nserver 10.0.0.1:80 weight=2;\nserver 10.0.0.2:80 backup;\nserver 10.0.0.3:80 down;\nserver 10.0.0.4:80;\n}\n" + strings.ReplaceAll(zone, "$k", "$uri") + uses, "\treverse_proxy 10.0.0.1:80 10.0.0.4:80\n", "weight=2: "},
		{strings.ReplaceAll(zone, "$k", "$uri") + "limit_req zone=a;\n" + uses + "server {\nlisten 81;\nreturn 301 https://$host;\n}\n", "http://:81 {\n\tredir * https://{host} 301\n}", ""},
		{strings.ReplaceAll(zone, "$k", "$uri") + "server {\nlocation / {\ntry_files $uri /index.php;\n}\nlocation ~ \\.php$ {\nlimit_req zone=a;\n}\n}\n", "vars location _.php_\n", "nginx.conf:4: try_files: it may send"},
		{strings.ReplaceAll(zone, "$k", "$uri") + "server {\nlimit_req zone=a;\nlimit_req_dry_run on;\nlocation /a {\nlimit_req_dry_run off;\n}\nlocation / {\n}\n}\n", "shield {\n\t\t\tmode observe\n", ""},
		{strings.ReplaceAll(zone, "$k", "$uri") + "server {\nlocation /a {\nlimit_req zone=a;\n}\n}\nserver {\nlisten 81;\nlocation /a {\nlimit_req zone=a;\n}\n}\n", "http://:81 {\n\troute {\n", ""},
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

// Only what nginx passes on for certain is passed on.
func TestNginxOpensNoHiddenPath(t *testing.T) {
	const to = "proxy_pass http://127.0.0.1:9000;\n"
	for _, c := range []struct{ locations, want, missing string }{
		{"location / {\n" + to + "}\nlocation /a/ {\n" + to + "}\n", "\n\treverse_proxy 127.0.0.1:9000\n}", ""},
		{"location /a/ {\n" + to + "}\n", "@backend-1 vars location /a/\n", ""},
		{"location = / {\n" + to + "}\n", "@backend-1 vars location /\n", ""},
		{"location / {\n" + to + "location /a/ {\n}\n}\n", "@backend-1 vars location /\n", ""},
		{"location / {\n" + to + "}\nlocation /a/ {\nreturn 404;\n}\n", "handle @at/a/ {\n\t\t\trespond 404\n", ""},
		{"location / {\n" + to + "deny all;\n}\nlocation /a {\n" + to + "}\n", "@backend-1 vars location /a\n", "nginx.conf:6: deny: "},
		{"location / {\n" + to + "}\nlocation ~ /\\.(?!a) {\ndeny all;\n}\n", "@backend-1 vars location /\n", "nginx.conf:7: location /\\.(?!a): "},
		{"location / {\nif ($http_a) {\n" + to + "}\n}\n", "", ""},
		{"location / {\nif ($http_a) {\nreturn 403;\n}\n" + to + "}\n", "", "nginx.conf:5: if: it may keep requests from the backend"},
		{"location / {\n" + to + "auth_basic a;\n}\n", "", "nginx.conf:6: auth_basic: "},
		{"location / {\n" + to + "a_new_module_s_directive on;\n}\n", "", "nginx.conf:6: a_new_module_s_directive: "},
		{"auth_request /b;\nlocation / {\n" + to + "}\n", "", "nginx.conf:4: auth_request: "},
		{"return 301 https://$host;\nlocation / {\n" + to + "}\n", "", ""},
		{"location / {\ninternal;\nlocation /a {\n" + to + "}\n}\n", "", "nginx.conf:5: internal: "},
		{"location / {\nreturn 403;\nlocation /a {\n" + to + "}\n}\n", "handle {\n\t\t\trespond 403\n", ""},
		{"location ~ ^/(?>a) {\n" + to + "}\n", "", "nginx.conf:4: location ^/(?>a): "},
		{"location /a {\nproxy_pass http://127.0.0.1:9000/b;\n}\n", "", ""},
		{"location / {\nproxy_pass https://127.0.0.1:9000;\n}\n", "", ""},
		{"location / {\nproxy_pass http://$http_a;\n}\n", "", ""},
	} {
		got, err := converted(t, "limit_req_zone $uri zone=a:1m rate=1r/s;\nserver {\nlimit_req zone=a;\n"+c.locations+"}\nserver {\nlisten 81;\nlimit_req zone=a;\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if proxied := strings.Contains(got.Caddyfile, "\treverse_proxy "); proxied != (c.want != "") || !strings.Contains(got.Caddyfile, c.want) {
			t.Errorf("%q: want %q in\n%s", c.locations, c.want, got.Caddyfile)
		}
		if all := missing(got); !strings.HasPrefix(all, c.missing) || c.missing == "" && all != "" {
			t.Errorf("%q: not converted are\n%swant\n%s", c.locations, all, c.missing)
		}
		load(t, got.Caddyfile)
	}
}

// A return answers as in nginx, or is named and answers 503: nothing that is not converted answers 200.
func TestNginxReturns(t *testing.T) {
	address := freeAddress(t)
	const location = "location /old/ {\n%s\n}\n"
	for _, c := range []struct{ lines, path, want, missing string }{
		{"return 301 https://$host$request_uri;", "/a?b=c", "301 https://shop.test/a?b=c", ""},
		{"return 302 $scheme://${host}$uri$is_args$args;", "/a?b=c", "302 http://shop.test/a?b=c", ""},
		{"return https://new.test;", "/a", "302 https://new.test", ""},
		{"return 308 /new;", "/a", "308 /new", ""},
		{"return 404;", "/a", "404", ""},
		{"return 444;", "/a", "EOF", ""},
		{"return 200 \"ok\\n\";", "/a", "200 ok\n", ""},
		{"return 200 '{\"status\": {\"ok\": \"`\"}}';", "/a", `200 {"status": {"ok": "` + "`" + `"}}`, ""},
		{"return 200 '{\n  \"a\": {},\n\n  b }\n';", "/a", "200 {\n  \"a\": {},\n\n  b }\n", ""},
		{"return 200 /a;", "/a", "200 /a", ""},
		{"return 200 '<<A\nb';", "/a", "200 <<A\nb", ""},
		{"default_type text/plain;\nset $a b;\nreturn 403 \"no $host\";", "/a", "403 no shop.test", ""},
		{"location /a {\nreturn 200;\n}\nreturn 410;", "/a", "410", ""},

		{fmt.Sprintf(location, "return 301 /new;"), "/old/x", "301 /new", ""},
		{fmt.Sprintf(location, "return 301 /new;"), "/x", "503", ""},
		{fmt.Sprintf(location, "return 403;") + "location / {\nreturn 200 hi;\n}", "/old/", "403", ""},
		{fmt.Sprintf(location, "return 403;") + "location / {\nreturn 200 hi;\n}", "/", "200 hi", ""},
		{"location / {\nreturn 200 hi;\n}", "/odd/.", "200 hi", ""},
		{fmt.Sprintf(location, "limit_req zone=a;\nreturn 204;"), "/old/", "204", ""},

		{"set $to x;\nreturn 301 https://$to;", "/a", "503", "nginx.conf:6: return 301 https://$to: $to is set while a request is handled"},
		{"return 301 $uri/;", "//evil.test", "503", "nginx.conf:5: return 301 $uri/: its target begins with neither"},
		{"return 301 /$http_a;", "/a", "503", "nginx.conf:5: return 301 /$http_a: its target begins with neither"},
		{"return 301 https://$kind.test;", "/a", "503", "nginx.conf:5: return 301 https://$kind.test: its text depends on a map"},
		{"return 200 '{path}';", "/a", "503", "nginx.conf:5: return 200 {path}: its braces would be a placeholder"},
		{"return 200 '{$PATH}';", "/a", "503", "nginx.conf:5: return 200 {$PATH}: $PATH has no counterpart"},
		{"return 200 '{\"a\": \"$host\"}';", "/a", "503", "nginx.conf:5: return 200 {\"a\": \"$host\"}: its braces"},
		{"return 600;", "/a", "503", "nginx.conf:5: return 600: it is not understood"},
		{"error_page 404 =200 /x;\nreturn 404;", "/a", "503", "nginx.conf:6: return 404: error_page (nginx.conf:5) answers in its place"},
		{"if ($host = shop.test) {\nreturn 301 https://$host;\n}\nreturn 404;", "/a", "503", "nginx.conf:8: return 404: if (nginx.conf:5) comes before it"},
		{"if ($host = shop.test) {\nreturn 301 https://$host;\n}", "/a", "503", "nginx.conf:6: return 301 https://$host: whether it answers depends"},
		{"location ~ (?!b) {\nreturn 200;\n}\nlocation / {\nreturn 200;\n}", "/a", "503", "nginx.conf:5: location (?!b): it is no"},
		{"internal;\n" + fmt.Sprintf(location, "return 200;"), "/old/", "503", "nginx.conf:7: return 200: its location is internal"},
		{"root /srv;", "/a", "503", ""},
		{fmt.Sprintf(location, "alias /srv;"), "/old/", "503", ""},
	} {
		got, err := converted(t, "limit_req_zone $uri zone=a:1m rate=1r/s;\nmap $uri $kind {\n/a b;\n} server { listen "+address+";\n"+c.lines+"\n}\nserver {\nlisten "+address+";\nserver_name limited.test;\nlimit_req zone=a;\n}\n")
		if err != nil {
			t.Errorf("%q: %v", c.lines, err)
			continue
		}
		if answer := answered(t, got.Caddyfile, address, c.path); answer != c.want {
			t.Errorf("%q answers %s with %q; want %q", c.lines, c.path, answer, c.want)
		}
		if all := missing(got); !strings.HasPrefix(all, c.missing) || c.missing == "" && all != "" {
			t.Errorf("%q: not converted are\n%swant\n%s", c.lines, all, c.missing)
		}
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
