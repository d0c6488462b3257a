package caddymodule

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// Typical mistakes: a site's directives, the line that the error is to name, and words that say
// what is wrong and what is wanted. The site begins in line 1, its directives in line 2.
var mistakes = []struct {
	name, site string
	line       int
	want       []string
}{
	// The first line.
	{"no limit", "shield", 2, []string{"nothing is limited; add a zone"}},
	{"bytes", "shield 5MB/s", 2, []string{`rate is "5MB/s"; use a number per s, m, h, day or month, like 50/s or 1M/day`}},
	{"a rate of 0", "shield 0/s", 2, []string{"rate is missing or 0; use more than 0"}},

	// Words of other programs, and words in the wrong place.
	{"an option of a zone in the shield", "shield {\nrate 5/s\n}", 3, []string{`unrecognized subdirective "rate"; use name, mode, zone`}},
	{"a typing error", "shield {\ncapactiy 5/s\n}", 3, []string{`"capactiy"; use name, mode, zone`}},
	{"a matcher without match", "shield {\nconcurrency 5\nclass critical {\npath /healthz\n}\n}", 5, []string{`unrecognized subdirective "path"; use match or share`}},
	{"a block that is not closed", "shield {\nzone z {\nrate 5/s\n}\nreverse_proxy 127.0.0.1:9", 6, []string{`"reverse_proxy" is a directive of the site; move it out of this block, or add the }`}},
	{"an option twice", "shield {\ncapacity 5/s\ncapacity 6/s\n}", 4, []string{"capacity is set twice; set it once"}},
	{"no timeout", "shield 5/s {\ntimeout off\n}", 3, []string{`timeout is "off"; use a duration like 5s, or leave the line out`}},

	// Zones.
	{"a zone without a name", "shield {\nzone {\nrate 5/s\n}\n}", 3, []string{"zone has no name; add one, like zone clients"}},
	{"two zones of one name", "shield {\nzone a {\nrate 5/s\n}\nzone a {\nrate 6/s\n}\n}", 3, []string{`zone "a" is defined twice, with different rate; use one definition, or two names`}},
	{"a zone's burst of 0", "shield {\nzone a {\nrate 5/s\nburst 0\n}\n}", 5, []string{`zone "a": burst is 0; use more than 0, or leave it out`}},
	{"a named matcher", "@api path /api/*\nshield {\nzone a {\nmatch @api\nrate 5/s\n}\n}", 5, []string{"http.matchers.@api", "write out match and Caddy's matchers, like match path /api/*"}},
	{"a path alone", "shield {\nzone a {\nmatch /api/*\nrate 5/s\n}\n}", 4, []string{"http.matchers./api/*", "like match path /api/*"}},
	{"no matcher", "shield {\nzone a {\nmatch\nrate 5/s\n}\n}", 4, []string{"match is empty; use a matcher"}},
	{"a matcher without a value", "shield {\nzone a {\nrate 5/s\nmatch method\n}\n}", 5, []string{`zone "a": match: method has no value; add one`}},
	{"two matchers in a line", "shield {\nzone a {\nmatch path /a header X y\nrate 5/s\n}\n}", 4, []string{`path is "header", which no request has; use`, "put each matcher on its own line, in a match block"}},
	{"a path after a method", "shield {\nzone a {\nmatch method POST path /login\nrate 5/s\n}\n}", 4, []string{`method is "path", which no request has`}},
	{"methods with a comma", "shield {\nzone a {\nmatch method GET,POST\nrate 5/s\n}\n}", 4, []string{`method is "GET,POST", which no request has`}},
	{"a brace after a rate", "shield {\nzone a {\nrate 5/s }\n}", 4, []string{`rate is "5/s }"; use a rate like 50/s`}},
	{"a path without a slash", "shield {\nzone a {\nmatch path login\nrate 5/s\n}\n}", 4, []string{`path is "login", which no request has; use values like GET, example.com and /api/*`}},
	{"a cost that nobody tells", "shield {\nzone a {\nrate 5/s\ncost auto\n}\n}", 5, []string{`zone "a": cost is auto, but nothing reports what a request cost; add settle, like settle usage`}},
	{"a cost in words", "shield {\nzone a {\nrate 5/s\ncost much\n}\n}", 5, []string{`cost is "much"; use a number, or a placeholder of the request, like {http.request.header.X-Cost}`}},
	{"a cost above the burst", "shield {\nzone a {\nrate 5/s\ncost 9\n}\n}", 5, []string{"cost is 9; use more than 0 and at most the burst, 5"}},
	{"no source of costs", "shield {\nzone a {\nrate 5/s\nsettle tokens\n}\n}", 5, []string{`settle: source of the cost is "tokens"; use usage, json`}},
	{"a rate that is carried without bounds", "shield {\nzone a {\nrate {header.X-Plan}\n}\n}", 4, []string{`use {placeholder} min 10/m max 600/m`}},
	{"a lowest rate above the highest", "shield {\nzone a {\nrate {header.X-Plan} min 9/s max 5/s\n}\n}", 4, []string{`min is 9; use more than 0 and at most the rate, 5`}},
	{"a calendar of another period", "shield {\nzone a {\nrate 5/s\ncalendar day\n}\n}", 4, []string{`the calendar's period is a day; use a rate per day`}},
	{"a calendar of weeks", "shield {\nzone a {\nrate 5/day\ncalendar week\n}\n}", 5, []string{`calendar is "week"; use day or month`}},
	{"a calendar behind a blank", "shield {\nzone a {\nrate 5/day\ncalendar \" day\"\n}\n}", 5, []string{`timezone is "day"; use one like Europe/Berlin`}},
	{"an unknown time zone", "shield {\nzone a {\nrate 5/day\ncalendar day Berlin\n}\n}", 5, []string{`timezone is "Berlin"; use one like Europe/Berlin`}},
	{"a calendar with a burst", "shield {\nzone a {\nrate 5/day\nburst 5\ncalendar day\n}\n}", 5, []string{`burst is 5 with a calendar; leave it out`}},
	{"headers in the old form", "shield {\nzone a {\nrate 5/s\nheaders x\n}\n}", 5, []string{`headers is "x"; use off, on or openai`}},
	{"a unit with blanks", "shield {\nzone a {\nrate 5/s\nunit \"GPU seconds\"\n}\n}", 5, []string{`unit is "GPU seconds"; use up to 32 small letters, like tokens`}},
	{"sharing without a store", "shield {\nzone a {\nrate 5/s\nshared on\n}\n}", 5, []string{"shared is on without a store; add one in the global option"}},

	// Keys.
	{"a key without braces", "shield {\nzone a {\nrate 5/s\nkey X-Api-Key\n}\n}", 5, []string{`"X-Api-Key" has no placeholder; use one in braces, like {http.request.header.X-Api-Key}`}},
	{"an unknown placeholder", "shield {\nzone a {\nrate 5/s\nkey {client}\n}\n}", 5, []string{"placeholder {client} cannot identify a client; use one that Caddy has and that stays the same for a client"}},
	{"a placeholder of a connection", "shield {\nzone a {\nrate 5/s\nkey {remote_port}\n}\n}", 5, []string{"{http.request.remote.port} cannot identify a client", "not one of a request or connection"}},
	{"a header with an underscore", "shield {\nzone a {\nrate 5/s\nkey {header.x_account}\n}\n}", 5, []string{"{http.request.header.x_account} cannot identify a client", "a header with an underscore or a dot in its name is deleted by Caddy"}},

	// The backend's limits.
	{"a least above the most", "shield {\nconcurrency adaptive {\nmin 9\nmax 5\n}\n}", 4, []string{"concurrency: min is 9 and max is 5; min must be at most max"}},
	{"a class without a share", "shield {\nconcurrency 5\nclass gold {\nmatch path /\n}\n}", 4, []string{`class "gold" has no share; set one`}},

	{"a weight of 0", "shield {\nconcurrency 5 {\nweight 0\n}\n}", 4, []string{`concurrency weight is 0; use 1 to 1000000`}},
	{"a weight in words", "shield {\nconcurrency 5 {\nweight heavy\n}\n}", 4, []string{`weight is "heavy"; use a number, or a placeholder of the request`}},
	{"a weight by no zone", "shield {\nzone a {\nrate 5/s\n}\nconcurrency 5 {\nweight tokens 1000\n}\n}", 7, []string{`concurrency weight is by zone "tokens", which this shield doesn't have; use the name of one`}},
	{"a weight by 0 units", "shield {\nzone a {\nrate 5/s\n}\nconcurrency 5 {\nweight a 0\n}\n}", 7, []string{`weight is a permit for each 0 units of zone "a"; use more than 0`}},
	{"a weight by units in words", "shield {\nconcurrency 5 {\nweight tokens many\n}\n}", 4, []string{`weight is "tokens many"; use a number, a placeholder, or a zone`}},

	// Responses, and what is remembered.
	{"dry run", "shield 5/s {\nmode dryrun\n}", 3, []string{`mode is "dryrun"; use enforce or observe`}},
	{"a wrong status", "shield 5/s {\npushback {\nstatus 200\n}\n}", 4, []string{"status is 200; use 400 to 599"}},
	{"no origin", "shield 5/s {\npushback {\ncors shop.example\n}\n}", 4, []string{`cors is "shop.example"; use * or an origin`}},
	{"cors alone", "shield 5/s {\npushback {\ncors\n}\n}", 4, []string{"cors has no value; add one, or several"}},
	{"two statuses", "shield 5/s {\npushback {\noverload_status 503\noverload_status 429\n}\n}", 5, []string{"overload_status is set twice; set it once"}},
	{"a wrong status", "shield 5/s {\npushback {\noverload_status 200\n}\n}", 4, []string{"overload_status is 200; use 400 to 599"}},
	{"a status in words", "shield 5/s {\npushback {\noverload_status busy\n}\n}", 4, []string{`overload_status is "busy"; use a whole number`}},
	{"websockets off", "shield 5/s {\npushback {\nwebsocket off\n}\n}", 4, []string{`websocket is "off"; use reject or close`}},
	{"a short secret", "shield 5/s {\nretries {\ntickets on\nsecret abc\n}\n}", 5, []string{"secret", "use at least 16"}},
}

// Each mistake is rejected while the Caddyfile still has lines, so that the error names the right
// one, and says what to do.
func TestMistakesNameTheirLine(t *testing.T) {
	for _, m := range mistakes {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(":80 {\n"+m.site+"\n}\n"), map[string]any{"filename": "Caddyfile"})
		rejected(t, m.name, err, m.line, m.want)
	}
}

// rejected checks that an error has a short prefix, the words, what to do, and the line.
func rejected(t *testing.T, name string, err error, line int, want []string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", name)
		return
	}
	text, prefixed := strings.CutPrefix(err.Error(), "parsing caddyfile tokens for 'shield': ")
	if !prefixed {
		t.Errorf("%s: %q is behind a longer prefix", name, text)
	}
	for _, want := range append(want, "; ", ", at Caddyfile:"+string(rune('0'+line))) {
		if !strings.Contains(text, want) {
			t.Errorf("%s: %q lacks %q", name, text, want)
		}
	}
}

// Errors name the file and the line also in snippets, in blocks of other directives, and where two
// shields of one Caddyfile differ. All that is wrong with a shield is said at once.
func TestMistakesBetweenShields(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"in a snippet", "(s) {\n\tshield 5/s {\n\t\tmode dryrun\n\t}\n}\n:80 {\n\timport s\n}", []string{"mode is \"dryrun\"", "at Caddyfile:3 import chain ['Caddyfile:7 (import s)']"}},
		{"in handle", ":80 {\n\thandle /a/* {\n\t\tshield 5/s {\n\t\t\ttimeout 48h\n\t\t}\n\t}\n}", []string{"timeout is 48h0m0s", "at Caddyfile:4"}},
		{"after a matcher", ":80 {\n\tshield /a/* 5/s {\n\t\ttimeout 48h\n\t}\n}", []string{"timeout is 48h0m0s", "at Caddyfile:3"}},
		{"several", ":80 {\n\tshield {\n\t\tname \"a b\"\n\t}\n\tshield {\n\t\tmode x\n\t\tcapacity 5/s burst 0\n\t\tpushback {\n\t\t\tstatus 9\n\t\t}\n\t}\n}", []string{`name is "a b"`, "at Caddyfile:3"}},
		{"several in one", ":80 {\n\tshield {\n\t\tmode x\n\t\tcapacity 5/s burst 0\n\t\tzone z {\n\t\t\trate 5/s\n\t\t\tburst 0\n\t\t}\n\t}\n}",
			[]string{`mode is "x"; use enforce or observe, at Caddyfile:3`, "capacity: burst is 0; use more than 0, or leave it out for the default, at Caddyfile:4", "zone \"z\": burst is 0; use more than 0, or leave it out for the default, at Caddyfile:7"}},
		{"a zone of two sites", ":80 {\n\tshield {\n\t\tzone z {\n\t\t\trate 5/m\n\t\t}\n\t}\n}\n:81 {\n\tshield {\n\t\tzone z {\n\t\t\trate 5/s\n\t\t}\n\t}\n}",
			[]string{`zone "z" is defined twice, with different per; use one definition, or two names, at Caddyfile:10`}},
	} {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(c.text), map[string]any{"filename": "Caddyfile"})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error is %v; want %q in it", c.name, err, want)
			}
		}
	}
}

// Good Caddyfiles are adapted: options that depend on the place where the server runs are
// judged there, and shields without a name are not taken for one.
func TestAdapterRejectsNothingGood(t *testing.T) {
	for name, text := range map[string]string{
		"secrets that are known later":           ":80 {\n\tshield {\n\t\tname s\n\t\tcapacity 5/s\n\t\tretries {\n\t\t\ttickets on\n\t\t\tsecret {env.A}\n\t\t}\n\t}\n}\n:81 {\n\tshield {\n\t\tname s\n\t\tcapacity 5/s\n\t\tretries {\n\t\t\ttickets on\n\t\t\tsecret {file./b}\n\t\t}\n\t}\n}",
		"two that differ, without names":         ":80 {\n\tshield 5/s\n}\n:81 {\n\tshield 6/s {\n\t\tmode observe\n\t\tcapacity 5/s\n\t}\n}",
		"matchers that are known later":          ":80 {\n\tshield {\n\t\tzone z {\n\t\t\tmatch client_ip {env.NO_SUCH}\n\t\t\tmatch {\n\t\t\t\tpath /a *.php\n\t\t\t\tnot header X y\n\t\t\t}\n\t\t\tmatch `{path}.startsWith(\"/\")`\n\t\t\tmatch file /no/such\n\t\t\tmatch path_regexp [0-9]{2}\n\t\t\trate 5/s\n\t\t}\n\t}\n}",
		"arguments that are named like matchers": ":80 {\n\tshield {\n\t\tzone z {\n\t\t\trate 5/s\n\t\t\tmatch path /method /path\n\t\t\tmatch header host example.com\n\t\t\tmatch header_regexp path host ^a\n\t\t\tmatch vars_regexp file path ^/a\n\t\t\tmatch path_regexp path ^/a\n\t\t\tmatch vars path /x\n\t\t\tmatch host example.com path\n\t\t\tmatch file path method\n\t\t\tmatch method GET M-SEARCH\n\t\t\tmatch expression method('GET') && path('/host') || {query.a} == \"b\"\n\t\t\tmatch host {file./a/host} {env.HOST}\n\t\t}\n\t}\n}",
		"a store of another machine":             "{\n\tshield {\n\t\tstore redis {env.NO_A} {env.NO_B} {\n\t\t\tsentinel {env.NO_S}\n\t\t\tusername {env.NO_U}\n\t\t\tpassword {file./no/p}\n\t\t\tsecret {env.NO_X}\n\t\t\tprefix {env.NO_P}\n\t\t\ttls /no/ca\n\t\t}\n\t}\n}\n:80 {\n\tshield 5/s\n}",
		"shared, with a store":                   "{\n\tshield {\n\t\tstore redis 127.0.0.1 {\n\t\t\tsecret {env.A}\n\t\t}\n\t}\n}\n:80 {\n\tshield {\n\t\tcapacity 5/s\n\t\tshared on\n\t}\n}",
		"one in a snippet, used twice":           "(s) {\n\tshield {\n\t\tname s\n\t\tcapacity 5/s\n\t}\n}\n:80 {\n\timport s\n}\n:81 {\n\timport s\n}",
		"a placeholder of another's making":      ":80 {\n\tshield {\n\t\tzone z {\n\t\t\trate 5/s\n\t\t\tkey {vars.tenant}{http.auth.user.id}\n\t\t}\n\t}\n}",
	} {
		if _, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
