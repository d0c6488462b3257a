package convert

import (
	"os"
	"path/filepath"
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
		of("$remote_user"):                                                  "nginx.conf:5: limit_req with zone b (nginx.conf:2): its key is $remote_user: $remote_user has no counterpart",
		of("$geoip_city"):                                                   "nginx.conf:5: limit_req with zone b (nginx.conf:2): its key is $geoip_city: $geoip_city has no counterpart",
		"server {\nset $k $uri;\n}\n" + of("$k"):                            "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k is set while",
		"map $a $k {\ninclude x;\n}\n" + of("$k"):                           "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): $a has no",
		"map $uri $k {\ninclude x;\n}\n" + of("$k"):                         "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): include x in line 3 is not read",
		"map $uri $k {\n~(?<a>.) $a;\n}\n" + of("$k"):                       "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): $a has a part",
		"map $uri $k {\n~(?!a) 1;\n}\n" + of("$k"):                          "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): ~(?!a) is no regular",
		"map $k $k {\na 1;\n}\n" + of("$k"):                                 "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: ",
		"geo $http_x $k {\ndefault 1;\n}\n" + of("$k"):                      "nginx.conf:8: limit_req with zone b (nginx.conf:5): its key is $k: $k (nginx.conf:2): it maps another",
		"geo $k {\nranges;\n1.1.1.1-1.1.1.2 1;\n}\n" + of("$k"):             "nginx.conf:9: limit_req with zone b (nginx.conf:6): its key is $k: $k (nginx.conf:2): ranges",
		"server {\nlisten 81;\nlimit_req zone=nothing;\n}":                  "nginx.conf:4: limit_req zone=nothing: zone nothing is not defined here",
		"server {\nlisten 81;\nlimit_conn a 5;\n}":                          "nginx.conf:4: limit_conn a 5: zone a is not defined",
		"server {\nlisten 81;\nlocation ~ (?!a) {\nlimit_req zone=a;\n}\n}": "nginx.conf:4: location (?!a): it is no regular expression",
		"server {\nlisten 81;\nlimit_req zone=a;\nlocation / {\nlimit_req_dry_run on;\n}\nlocation /b {\n}\n}": "nginx.conf:6: limit_req_dry_run on: ",
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

// A backend that nginx hides but for some paths is not opened without a word.
func TestNginxNamesWhatIsNotProxied(t *testing.T) {
	const to = "proxy_pass http://127.0.0.1:9000;\n"
	for _, c := range []struct{ locations, want string }{
		{"location / {\n" + to + "}\nlocation /a/ {\n" + to + "}\nlocation @b {\n}\n", ""},
		{"location /a/ {\n" + to + "}\n", "nginx.conf:2: "},
		{"location = / {\n" + to + "}\n", "nginx.conf:2: "},
		{"location / {\n" + to + "location /a/ {\n}\n}\n", "nginx.conf:6: "},
		{"location / {\nif ($http_a) {\n" + to + "}\n}\nlocation /a/ {\nreturn 404;\n}\n", "nginx.conf:4, nginx.conf:9: "},
	} {
		got, err := converted(t, "limit_req_zone $uri zone=a:1m rate=1r/s;\nserver {\nlimit_req zone=a;\n"+c.locations+"}\n")
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(got.Caddyfile, "\n#       ", " ")
		if !strings.Contains(text, "\treverse_proxy 127.0.0.1:9000\n") {
			t.Fatalf("%q: there is no backend in\n%s", c.locations, text)
		}
		at, _, found := strings.Cut(text, "nginx passes requests on for some locations only")
		if found != (c.want != "") || !strings.HasSuffix(at, c.want) && found {
			t.Errorf("%q: want a note at %q in\n%s", c.locations, c.want, text)
		}
	}
}
