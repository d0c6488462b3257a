package policy

import (
	"slices"
	"testing"
)

// The table names each annotation once, and shield's words in it exist.
func TestInventory(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range NginxAnnotations() {
		if seen[a.Name] {
			t.Errorf("%s is there twice", a.Name)
		}
		seen[a.Name] = true
		if a.Word != "" && !slices.Contains(names(OnIngress()), a.Word) {
			t.Errorf("%s: shield has no annotation %s", a.Name, a.Word)
		}
		if a.Fate != Read && a.Advice == "" {
			t.Errorf("%s: no advice", a.Name)
		}
	}
	for _, row := range filterRows {
		if row.nginx != "" && !seen[row.nginx] {
			t.Errorf("%s is read, and not in the table", row.nginx)
		}
	}
}

func TestFateOf(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        Fate
	}{
		{"limit-rps", "5", Read}, {"rewrite-target", "/$1", Read}, {"auth-url", "https://auth/", Read}, {"satisfy", "any", Guards},
		{"satisfy", "", Tunes}, {"auth-added-later", "x", Guards}, {"future-source-range", "10.0.0.0/8", Guards},
		{"modsecurity-added-later", "x", Guards}, {"added-later", "x", Changes}, {"enable-modsecurity", "true", Guards},
		{"enable-modsecurity", "false", Tunes}, {"auth-tls-verify-client", "off", Tunes}, {"auth-tls-verify-client", "optional_no_ca", Guards},
		{"proxy-buffering", "on", Tunes}, {"configuration-snippet", "more_set_headers \"X-A: b\";", Changes},
		{"configuration-snippet", "allow 10.0.0.0/8;\ndeny all;", Guards}, {"server-snippet", "location /admin { return 403; }", Guards},
		{"server-snippet", "location /old { return 301 /new; }", Changes}, {"configuration-snippet", "auth_basic off;", Guards},
		{"configuration-snippet", "if ($http_x_key != \"s3cret\") {return 403;}", Guards}, {"configuration-snippet", "if ($http_x_key != s3cret) { return 503 busy; }", Guards},
		{"configuration-snippet", "if ($cookie_session = \"\") {\n  return 302 https://login.example.com/;\n}", Guards},
		{"configuration-snippet", "if ($cookie_session = \"\") { set $x 1; return https://login.example.com/; }", Guards},
		{"configuration-snippet", "if ($cookie_session = \"\") { rewrite ^ /login redirect; }", Guards},
		{"configuration-snippet", "if ($http_x_token !~ \"^[a-f0-9]{32}$\") { return 302 /login; }", Guards},
		{"configuration-snippet", "if ($x) { rewrite ^/a{2}$ /login redirect; }", Guards},
		{"configuration-snippet", "if ($x) { rewrite ^ https://login.example.com/; }", Guards}, {"configuration-snippet", "if ($x) { return \"403\"; }", Guards},
		{"configuration-snippet", "if ($x) { rewrite ^ https://new.example.com$uri permanent; }", Changes},
		{"configuration-snippet", "if ($host = old.example.com) { return 301 https://new.example.com$request_uri; }", Changes},
		{"server-snippet", "location /old { return 302 /new; }", Changes}, {"configuration-snippet", "if ($x) { set $y 1; } rewrite ^/a /b redirect;", Changes},
	} {
		if got := FateOf(test.name, test.value).Fate; got != test.want {
			t.Errorf("%s: %q: fate %d, want %d", test.name, test.value, got, test.want)
		}
	}
}
