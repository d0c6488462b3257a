package caddymodule

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
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
	{"no limit", "shield", 2, []string{"nothing is limited; want a zone"}},
	{"a rate without a unit", "shield 50", 2, []string{`rate is "50"`, "like 50/s"}},
	{"a rate by day", "shield 50/d", 2, []string{`rate is "50/d"`, "like 50/s"}},
	{"an abbreviation", "shield 100rps", 2, []string{`rate is "100rps"; want 100/s`}},
	{"a unit that is written out", "shield 10/sec", 2, []string{`rate is "10/sec"; want 10/s`}},
	{"minutes", "shield {\ncapacity 1,000/min\n}", 3, []string{`rate is "1,000/min"; want 1000/m`}},
	{"bytes", "shield 5MB/s", 2, []string{`rate is "5MB/s"; want a number per s, m or h, like 50/s`}},
	{"two rates in the line", "shield 5/s 10/s", 2, []string{`"5/s 10/s"; want a rate like 50/s, or 50/s burst 100`}},
	{"a rate of 0", "shield 0/s", 2, []string{"rate is missing or 0; want more than 0"}},
	{"a negative rate", "shield -5/s", 2, []string{"rate is -5 per 1s; want more than 0"}},
	{"burst of 0 in the line", "shield 5/s burst 0", 2, []string{"burst is 0; want more"}},
	{"a negative burst", "shield 5/s burst -1", 2, []string{"burst is -1; want at least 1"}},
	{"another word", "shield 5/s brust 5", 2, []string{`"5/s brust 5"`, "50/s burst 100"}},
	{"burst without a number", "shield 5/s burst", 2, []string{`"5/s burst"`, "50/s burst 100"}},

	// Words of other programs, and words in the wrong place.
	{"an option of a zone in the shield", "shield {\nrate 5/s\n}", 3, []string{`unrecognized subdirective "rate"; want name, mode, zone`, "rate belongs in the block of zone"}},
	{"nginx's words", "shield {\nlimit_req 5/s\n}", 3, []string{`unrecognized subdirective "limit_req" (did you mean zone?); want name, mode, zone`}},
	{"caddy-ratelimit's words", "shield {\nzone z {\nevents 5\nwindow 1m\n}\n}", 4, []string{`"events" (did you mean rate?); want match, key`}},
	{"a rate outside a zone", "shield {\nrate 5/s\n}", 3, []string{`"rate"; want name, mode, zone`}},
	{"a typing error", "shield {\ncapactiy 5/s\n}", 3, []string{`"capactiy" (did you mean capacity?); want name, mode, zone`}},
	{"a matcher without match", "shield {\nconcurrency 5\nclass critical {\npath /healthz\n}\n}", 5, []string{`"path" is a matcher; want match before it, like match path`}},
	{"a block that is not closed", "shield {\nzone z {\nrate 5/s\n}\nreverse_proxy 127.0.0.1:9", 6, []string{`"reverse_proxy" is a directive of the site; want it outside of this block, which may lack a }`}},
	{"a brace at the end of a line", "shield {\nzone z {\nrate 5/s }\n}", 4, []string{`rate is "5/s }"; want the } in a line of its own`}},
	{"a brace after a value", "shield {\nmode observe }\n", 3, []string{`mode is "observe }"; want the } in a line of its own`}},
	{"a brace at the name", "shield {\nzone z{\nrate 5/s\n}\n}", 3, []string{`name is "z{"; want a blank before the {`}},
	{"the shield's option in a zone", "shield {\nzone z {\nrate 5/s\ncapacity 5/s\n}\n}", 5, []string{`"capacity"; want match, key`, "capacity belongs in the block of shield"}},
	{"the option of another block", "shield {\nzone z {\nrate 5/s\nstatus 429\n}\n}", 5, []string{"status belongs in the block of pushback"}},
	{"a global option", "shield 5/s {\nstore redis 127.0.0.1\n}", 3, []string{"store belongs in the block of the global option shield"}},
	{"the mode alone", "shield 5/s {\nobserve\n}", 3, []string{`"observe" (did you mean mode observe?); want name, mode`}},
	{"a plural", "shield {\nzone z {\nrate 5/s\nkeys {client_ip}\n}\n}", 5, []string{`"keys" (did you mean key?); want match, key`}},
	{"a switch for a block", "shield 5/s {\nherd off\n}", 3, []string{`"off" after herd is unexpected; want a block in braces with detect off in it`}},
	{"no time-out", "shield 5/s {\ntimeout off\n}", 3, []string{`timeout is "off"; want a duration like 5s, or no such line`}},
	{"status outside pushback", "shield 5/s {\nstatus 429\n}", 3, []string{`"status"; want`, "pushback"}},

	// Zones.
	{"a zone without a name", "shield {\nzone {\nrate 5/s\n}\n}", 3, []string{"zone has no name; want one, like zone per_client"}},
	{"a zone without a rate", "shield {\nzone z {\nkey {client_ip}\n}\n}", 3, []string{`zone "z": rate is missing or 0; want more than 0`}},
	{"a zone's name with a blank", "shield {\nzone \"a b\" {\nrate 5/s\n}\n}", 3, []string{`zone "a b": name is "a b"; want 1 to 64 letters`}},
	{"two zones of one name", "shield {\nzone a {\nrate 5/s\n}\nzone a {\nrate 6/s\n}\n}", 6, []string{`zone "a" is defined twice: with rate 5`, "and with rate 6", "want one definition, or two names"}},
	{"two rates", "shield {\nzone a {\nrate 5/s\nrate 6/s\n}\n}", 5, []string{"rate is set twice; want it once"}},
	{"a burst in the rate's line", "shield {\nzone a {\nrate 5/s burst 5\n}\n}", 4, []string{`rate is "5/s burst 5"`, "burst in a line of its own"}},
	{"a zone's burst of 0", "shield {\nzone a {\nrate 5/s\nburst 0\n}\n}", 5, []string{`zone "a": burst is 0; want more, or leave it out`}},
	{"a burst that is no number", "shield {\nzone a {\nrate 5/s\nburst ten\n}\n}", 5, []string{`burst is "ten"; want a whole number`}},
	{"a burst that takes a year", "shield {\nzone a {\nrate 1/h\nburst 9000\n}\n}", 5, []string{"burst 9000 at a rate of 1 per 1h0m0s", "31 days"}},
	{"a cost above the burst", "shield {\nzone a {\nrate 5/s\ncost 6\n}\n}", 5, []string{"cost is 6; want 1 to the burst of 5"}},
	{"too few clients", "shield {\nzone a {\nrate 5/s\nmax_keys 10\n}\n}", 5, []string{"max_keys is 10; want 10000 to"}},
	{"a prefix that is too long", "shield {\nzone a {\nrate 5/s\nipv4_prefix 33\n}\n}", 5, []string{"ipv4_prefix is 33; want 1 to 32"}},
	{"a named matcher", "@api path /api/*\nshield {\nzone a {\nmatch @api\nrate 5/s\n}\n}", 5, []string{"match is @api, a named matcher; want its matchers written out"}},
	{"an unknown matcher", "shield {\nzone a {\nmatch pth /\nrate 5/s\n}\n}", 4, []string{`match is "pth", which is no matcher (did you mean path?); want one of Caddy's, like path`}},
	{"a path alone", "shield {\nzone a {\nmatch /api/*\nrate 5/s\n}\n}", 4, []string{`match is "/api/*", which is no matcher; want path before it, like path /api/*`}},
	{"no matcher", "shield {\nzone a {\nmatch\nrate 5/s\n}\n}", 4, []string{"match is empty; want a matcher"}},
	{"an unknown matcher after not", "shield {\nzone a {\nmatch not pth /\nrate 5/s\n}\n}", 4, []string{`not is "pth", which is no matcher (did you mean path?)`}},
	{"not alone", "shield {\nzone a {\nmatch not\nrate 5/s\n}\n}", 4, []string{"not has no matcher; want one, like not path /api/*"}},
	{"a matcher without a value", "shield {\nzone a {\nrate 5/s\nmatch method\n}\n}", 5, []string{`zone "a": match: method has no value; want one`}},
	{"two matchers in a line", "shield {\nzone a {\nmatch path /a header X y\nrate 5/s\n}\n}", 4, []string{`match is "path /a header X y", two matchers of which path takes all; want "path /a" and "header X y", each in a line of its own in a block of match`}},
	{"a path after a method", "shield {\nzone a {\nmatch method POST path /login\nrate 5/s\n}\n}", 4, []string{`match is "method POST path /login"`, `want "method POST" and "path /login", each in a line`}},
	{"a path after two methods, in a block", "shield {\nzone a {\nmatch {\nheader X y\nmethod PUT POST path /login\n}\nrate 5/s\n}\n}", 6, []string{`want "method PUT POST" and "path /login"`}},
	{"a path after a method, after not", "shield {\nzone a {\nmatch not method POST path /login\nrate 5/s\n}\n}", 4, []string{`not is "method POST path /login"`, `in a block of not`}},
	{"a path after a host", "shield {\nzone a {\nmatch host example.com path /login\nrate 5/s\n}\n}", 4, []string{`want "host example.com" and "path /login"`}},
	{"a path after a header", "shield {\nzone a {\nmatch header X-A * path /login\nrate 5/s\n}\n}", 4, []string{`want "header X-A *" and "path /login"`}},
	{"a path that is wrong after a host", "shield {\nzone a {\nmatch host example.com path login\nrate 5/s\n}\n}", 4, []string{`want "host example.com" and "path login"`}},
	{"a path for a method", "shield {\nzone a {\nmatch method POST /login\nrate 5/s\n}\n}", 4, []string{`match: method is "/login", which no request has; want GET, POST or the like in upper case`}},
	{"a method in lower case", "shield {\nzone a {\nmatch method get\nrate 5/s\n}\n}", 4, []string{`match: method is "get"`}},
	{"a path for a host", "shield {\nzone a {\nmatch host example.com /login\nrate 5/s\n}\n}", 4, []string{`match: host is "/login", which no request has; want a name like example.com`}},
	{"a path without a slash", "shield {\nzone a {\nmatch path login\nrate 5/s\n}\n}", 4, []string{`match: path is "login", which no request has; want / or * at its start, and matchers that apply together in a block`}},
	{"no address", "shield {\nzone a {\nmatch path /a\nmatch client_ip 10.0.0.300\nrate 5/s\n}\n}", 5, []string{`match 2: client_ip: invalid IP address`, "want addresses or networks, like 10.0.0.0/8"}},
	{"no network, in a block", "shield {\nconcurrency 5\nclass critical {\nmatch {\npath /a\nremote_ip 1.2.3.4/99\n}\n}\n}", 7, []string{`class "critical": match: remote_ip:`, "1.2.3.4/99", "want addresses or networks"}},
	{"no network, after not", "shield {\nzone a {\nmatch not client_ip 10.0.0.0/99\nrate 5/s\n}\n}", 4, []string{"match: not: client_ip:", "want addresses or networks"}},
	{"no regular expression", "shield {\nzone a {\nmatch path_regexp [a\nrate 5/s\n}\n}", 4, []string{"match: path_regexp:", "missing closing ]", "want a regular expression"}},
	{"no expression", "shield {\nzone a {\nmatch expression foo(\nrate 5/s\n}\n}", 4, []string{"match: expression:", "Syntax error", "want an expression in CEL"}},
	{"sharing without a store", "shield {\nzone a {\nrate 5/s\nshared on\n}\n}", 5, []string{"shared is on without a store; want one in the global option"}},

	// Keys.
	{"a key without braces", "shield {\nzone a {\nrate 5/s\nkey X-Api-Key\n}\n}", 5, []string{`"X-Api-Key" has no placeholder; want one in braces, like {http.request.header.X-Api-Key}`}},
	{"a key that is not closed", "shield {\nzone a {\nrate 5/s\nkey {header.X-Acount\n}\n}", 5, []string{"unclosed {; want placeholders in braces"}},
	{"an unknown placeholder", "shield {\nzone a {\nrate 5/s\nkey {client}\n}\n}", 5, []string{"placeholder {client} is not known; want {http.vars.client_ip}"}},
	{"a placeholder of a connection", "shield {\nzone a {\nrate 5/s\nkey {remote_port}\n}\n}", 5, []string{"{http.request.remote.port} differs with every request or connection; want one that stays with a client"}},
	{"headers", "shield {\nzone a {\nrate 5/s\nkey {headers.X-Account}\n}\n}", 5, []string{"{headers.X-Account} is not known; want {http.request.header.X-Account}"}},
	{"a header without request", "shield {\nzone a {\nrate 5/s\nkey {http.header.X-Account}\n}\n}", 5, []string{"want {http.request.header.X-Account}"}},
	{"a header's name alone", "shield {\nzone a {\nrate 5/s\nkey {X-Account}\n}\n}", 5, []string{"want {http.request.header.X-Account}"}},
	{"an address by another name", "shield {\nzone a {\nrate 5/s\nkey {client.ip}\n}\n}", 5, []string{"want {http.vars.client_ip}"}},
	{"nginx's address", "shield {\nzone a {\nrate 5/s\nkey $binary_remote_addr\n}\n}", 5, []string{`"$binary_remote_addr" has no placeholder; want one in braces, like {http.vars.client_ip}`}},
	{"cookies", "shield {\nzone a {\nrate 5/s\nkey {cookies.sid}\n}\n}", 5, []string{"want {http.request.cookie.sid}"}},
	{"a parameter", "shield {\nzone a {\nrate 5/s\nkey {http.request.query.token}\n}\n}", 5, []string{"want {http.request.uri.query.token}"}},
	{"a path with uri", "shield {\nzone a {\nrate 5/s\nkey {uri.path}\n}\n}", 5, []string{"want {http.request.uri.path}"}},
	{"a user", "shield {\nzone a {\nrate 5/s\nkey {http.auth.user}\n}\n}", 5, []string{"want {http.auth.user.id}"}},
	{"a typing error in a placeholder", "shield {\nzone a {\nrate 5/s\nkey {http.request.hots}\n}\n}", 5, []string{"want {http.request.host}"}},
	{"a matcher as a key", "shield {\nzone a {\nrate 5/s\nkey path /api/*\n}\n}", 5, []string{`key is "path /api/*", which is a matcher; want what tells clients apart`}},
	{"a named matcher as a key", "shield {\nzone a {\nrate 5/s\nkey @api\n}\n}", 5, []string{`key is "@api", which is a matcher`}},
	{"a header with an underscore", "shield {\nzone a {\nrate 5/s\nkey {header.x_account}\n}\n}", 5, []string{"{http.request.header.x_account} is not known; want {http.request.header.x-account}, because Caddy deletes headers with an underscore"}},
	{"a key without a value", "shield {\nzone a {\nrate 5/s\nkey\n}\n}", 5, []string{"key has no value; want one"}},
	{"a key of retries", "shield 5/s {\nretries {\nkey X-Api-Key\n}\n}", 4, []string{`retries: key is "X-Api-Key"`, "want one in braces"}},
	{"a number as a key in flight", "shield {\nconcurrency 5 {\nper X-Api-Key 2\n}\n}", 4, []string{`per is "X-Api-Key 2"; want a key and a whole number, like {client_ip} 10`}},

	// The backend's limits.
	{"a capacity without a rate", "shield {\ncapacity\n}", 3, []string{"capacity is missing; want a rate like 50/s"}},
	{"a capacity of 0", "shield {\ncapacity 0/s\n}", 3, []string{"capacity: rate is missing or 0; want more than 0"}},
	{"a capacity in a block", "shield {\ncapacity {\nrate 5/s\n}\n}", 3, []string{"capacity is missing; want a rate like 50/s"}},
	{"a burst of 0 for all", "shield {\ncapacity 5/s burst 0\n}", 3, []string{"capacity: burst is 0; want more"}},
	{"no concurrency", "shield {\nconcurrency\n}", 3, []string{"concurrency is missing; want a whole number, adaptive"}},
	{"a concurrency of 0", "shield {\nconcurrency 0\n}", 3, []string{"concurrency is 0; want 1 to 1000000"}},
	{"auto", "shield {\nconcurrency auto\n}", 3, []string{`concurrency is "auto"; want a whole number, adaptive`}},
	{"a least above the most", "shield {\nconcurrency adaptive {\nmin 9\nmax 5\n}\n}", 4, []string{"concurrency: min is 9 and max is 5; want min at most max"}},
	{"a range of a number", "shield {\nconcurrency 5 {\nmax 9\n}\n}", 3, []string{"concurrency limit is 5, with options of an adaptive limit; want one or the other"}},
	{"a class beside a capacity alone", "shield {\ncapacity 50/s\nclass crawlers {\nmatch header User-Agent *bot*\nshare 30%\n}\n}", 4, []string{"class is set without a concurrency limit; want concurrency as well"}},
	{"a queue without a limit", "shield 5/s {\nqueue 5\n}", 3, []string{"queue is set without a concurrency limit; want concurrency as well"}},
	{"a queue of a minute", "shield {\nconcurrency 5\nqueue 5 timeout 2m\n}", 4, []string{"queue timeout is 2m0s; want more than 0, to 1m0s"}},
	{"a class without a share", "shield {\nconcurrency 5\nclass gold {\nmatch path /\n}\n}", 4, []string{`class "gold" has no share; want one`}},
	{"a share above all", "shield {\nconcurrency 5\nclass gold {\nshare 120%\n}\n}", 5, []string{`share is "120%"; want more than 0% and at most 100%, like 70%`}},
	{"a class without a limit", "shield 5/s {\nclass critical {\nmatch path /\n}\n}", 3, []string{"class", "want concurrency as well"}},
	{"a time-out without a unit", "shield 5/s {\ntimeout 30\n}", 3, []string{`timeout is "30"; want a duration`}},
	{"a time-out of days", "shield 5/s {\ntimeout 48h\n}", 3, []string{"timeout is 48h0m0s; want 1ms to 24h"}},

	// Answers, and what is remembered.
	{"dry run", "shield 5/s {\nmode dryrun\n}", 3, []string{`mode is "dryrun"; want enforce or observe`}},
	{"a wrong status", "shield 5/s {\npushback {\nstatus 200\n}\n}", 4, []string{"status is 200; want 400 to 599"}},
	{"two minutes", "shield 5/s {\npushback {\nmax 2m\n}\n}", 4, []string{"max is 2m0s; want"}},
	{"half a second", "shield 5/s {\npushback {\nmax 1.5s\n}\n}", 4, []string{"max is 1.5s; want"}},
	{"a body that is none", "shield 5/s {\npushback {\nbody json\n}\n}", 4, []string{`body is "json"; want`}},
	{"true", "shield 5/s {\npushback {\ndither true\n}\n}", 4, []string{`dither is "true"; want on or off`}},
	{"a writer that is none", "shield 5/s {\npushback {\nrespond caddy\n}\n}", 4, []string{`respond is "caddy"; want auto, direct or error`}},
	{"a short secret", "shield 5/s {\nretries {\ntickets on\nsecret abc\n}\n}", 5, []string{"secret", "want at least 16"}},
	{"a secret without tickets", "shield 5/s {\nretries {\nsecret abcdefghijklmnopqrst\n}\n}", 4, []string{"secret is set, and tickets are off; want both or neither"}},
	{"too few records", "shield 5/s {\nretries {\nmax_clients 5\n}\n}", 4, []string{"max_clients is 5; want 1024 to"}},
	{"a name with a blank", "shield 5/s {\nname \"my shop\"\n}", 3, []string{`name is "my shop"; want 1 to 64 letters`}},
	{"no value", "shield 5/s {\nmode\n}", 3, []string{"mode has no value; want one"}},
}

// Each mistake is refused while the Caddyfile still has lines, so that the error names the right
// one, and says what is wanted.
func TestMistakesNameTheirLine(t *testing.T) {
	if len(mistakes) < 100 {
		t.Errorf("%d mistakes", len(mistakes))
	}
	for _, m := range mistakes {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(":80 {\n"+m.site+"\n}\n"), map[string]any{"filename": "Caddyfile"})
		refused(t, m.name, err, m.line, m.want)
	}
}

// refused checks that an error has a short prefix, the words and the line.
func refused(t *testing.T, name string, err error, line int, want []string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", name)
		return
	}
	text, prefixed := strings.CutPrefix(err.Error(), "parsing caddyfile tokens for 'shield': ")
	if !prefixed {
		t.Errorf("%s: %q is behind a longer prefix", name, text)
	}
	for _, want := range append(want, "want", ", at Caddyfile:"+string(rune('0'+line))) {
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
			[]string{`mode is "x"; want enforce or observe, at Caddyfile:3`, "capacity: burst is 0; want more, or leave it out for the default, at Caddyfile:4", "zone \"z\": burst is 0; want more, or leave it out for the default, at Caddyfile:7"}},
		{"a zone of two sites", ":80 {\n\tshield {\n\t\tzone z {\n\t\t\trate 5/m\n\t\t}\n\t}\n}\n:81 {\n\tshield {\n\t\tzone z {\n\t\t\trate 5/s\n\t\t}\n\t}\n}",
			[]string{`zone "z" is defined twice: with per "1m0s" at Caddyfile:3, and with per "1s" at Caddyfile:10; want one definition, or two names, at Caddyfile:10`}},
		{"a zone twice in one shield", ":80 {\n\tshield 5/s {\n\t\tzone z {\n\t\t\trate 5/s\n\t\t}\n\t\tzone z {\n\t\t\trate 6/s\n\t\t}\n\t}\n}",
			[]string{`zone "z" is defined twice: with rate 5 at Caddyfile:3, and with rate 6 at Caddyfile:6; want one definition, or two names, at Caddyfile:6`}},
		{"a shield of two sites", ":80 {\n\tshield {\n\t\tname s\n\t\tcapacity 5/s\n\t}\n}\n:81 {\n\tshield {\n\t\tname s\n\t\tcapacity 6/s\n\t}\n}",
			[]string{`shield "s" is defined twice: with capacity {"rate":5,"per":"1s"} at Caddyfile:2, and with capacity {"rate":6,"per":"1s"} at Caddyfile:8; want`, ", at Caddyfile:8"}},
		{"the store", "{\n\tshield {\n\t\tmode observe\n\t\tstore redis a:b {\n\t\t\treplicas 0\n\t\t}\n\t}\n}\n:80 {\n\tshield 5/s\n}", []string{"secret is missing; want at least 16 bytes, the same in all replicas, such as the output of openssl rand -hex 16, at Caddyfile:4", "replicas is 0; want", ", at Caddyfile:5", `"a:b"`}},
		{"the global option", "{\n\tshield {\n\t\tmode dryrun\n\t}\n}\n:80 {\n\tshield 5/s\n}", []string{`mode is "dryrun"; want enforce or observe, at Caddyfile:3`}},
	} {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(c.text), map[string]any{"filename": "Caddyfile"})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error is %v; want %q in it", c.name, err, want)
			}
		}
	}
}

// A process that loads what it adapts knows the values of placeholders, and errors of them have lines.
func TestMistakesInValuesNameTheirLine(t *testing.T) {
	AdaptToLoad()
	t.Cleanup(func() { adaptsToLoad = false })
	t.Setenv("SHIELD_TEST_SHORT", "abc")
	for _, m := range []struct {
		name, site string
		line       int
		want       []string
	}{
		{"a variable that is not set", "shield 5/s {\nretries {\ntickets on\nsecret {env.SHIELD_TEST_NONE}\n}\n}", 5, []string{"secret has an empty or unknown placeholder, {env.SHIELD_TEST_NONE}; want {env.NAME} or {file./path} with a value"}},
		{"a variable that is short", "shield 5/s {\nretries {\ntickets on\nsecret {env.SHIELD_TEST_SHORT}\n}\n}", 5, []string{"secret has 3 bytes; want at least 16"}},
		{"a file that is missing", "shield 5/s {\nretries {\ntickets on\nsecret {file./no/such}\n}\n}", 5, []string{"placeholder, {file./no/such}; want"}},
		{"a network that is not set", "shield {\nzone z {\nrate 5/s\nmatch client_ip {env.SHIELD_TEST_NONE}\n}\n}", 5, []string{"match: client_ip:", "want addresses or networks"}},
	} {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(":80 {\n"+m.site+"\n}\n"), map[string]any{"filename": "Caddyfile"})
		refused(t, m.name, err, m.line, m.want)
	}
	const store = "{\n\tshield {\n\t\tstore redis 127.0.0.1 {\n\t\t\tsecret {env.SHIELD_TEST_SHORT}\n\t\t}\n\t}\n}\n:80 {\n\tshield 5/s\n}"
	_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(store), map[string]any{"filename": "Caddyfile"})
	if err == nil || !strings.Contains(err.Error(), "want at least 16") || !strings.Contains(err.Error(), "at Caddyfile:4") {
		t.Errorf("the store's secret: error is %v", err)
	}
}

// Good Caddyfiles are adapted: options that depend on the place where the server runs are
// judged there, and shields without a name are not taken for one.
func TestAdapterRefusesNothingGood(t *testing.T) {
	for name, text := range map[string]string{
		"secrets that are known later":           ":80 {\n\tshield {\n\t\tname s\n\t\tcapacity 5/s\n\t\tretries {\n\t\t\ttickets on\n\t\t\tsecret {env.A}\n\t\t}\n\t}\n}\n:81 {\n\tshield {\n\t\tname s\n\t\tcapacity 5/s\n\t\tretries {\n\t\t\ttickets on\n\t\t\tsecret {file./b}\n\t\t}\n\t}\n}",
		"two that differ, without names":         ":80 {\n\tshield 5/s\n}\n:81 {\n\tshield 6/s {\n\t\tmode observe\n\t\tcapacity 5/s\n\t}\n}",
		"matchers that are known later":          ":80 {\n\tshield {\n\t\tzone z {\n\t\t\tmatch client_ip {env.NO_SUCH}\n\t\t\tmatch {\n\t\t\t\tpath /a *.php\n\t\t\t\tnot header X y\n\t\t\t}\n\t\t\tmatch `{path}.startsWith(\"/\")`\n\t\t\tmatch file /no/such\n\t\t\tmatch path_regexp [0-9]{2}\n\t\t\trate 5/s\n\t\t}\n\t}\n}",
		"arguments that are named like matchers": ":80 {\n\tshield {\n\t\tzone z {\n\t\t\trate 5/s\n\t\t\tmatch path /method /path\n\t\t\tmatch header host example.com\n\t\t\tmatch header_regexp path host ^a\n\t\t\tmatch vars_regexp file path ^/a\n\t\t\tmatch path_regexp path ^/a\n\t\t\tmatch vars path /x\n\t\t\tmatch host path example.com\n\t\t\tmatch host example.com path\n\t\t\tmatch file path method\n\t\t\tmatch method GET M-SEARCH\n\t\t\tmatch expression method('GET') && path('/host') || {query.a} == \"b\"\n\t\t\tmatch host {file./a/host} {env.HOST}\n\t\t}\n\t}\n}",
		"shared, with a store":                   "{\n\tshield {\n\t\tstore redis 127.0.0.1 {\n\t\t\tsecret {env.A}\n\t\t}\n\t}\n}\n:80 {\n\tshield {\n\t\tcapacity 5/s\n\t\tshared on\n\t}\n}",
		"one in a snippet, used twice":           "(s) {\n\tshield {\n\t\tname s\n\t\tcapacity 5/s\n\t}\n}\n:80 {\n\timport s\n}\n:81 {\n\timport s\n}",
		"a placeholder of another's making":      ":80 {\n\tshield {\n\t\tzone z {\n\t\t\trate 5/s\n\t\t\tkey {vars.tenant}{http.auth.user.id}\n\t\t}\n\t}\n}",
	} {
		if _, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A shield that no request reaches is reported when the config is loaded, or validated.
func TestUnreachedShields(t *testing.T) {
	const s, answer = "shield {\nname NAME\nzone NAME {\nrate 5/s\n}\n}\n", "respond ok\n"
	named := func(name string) string { return strings.ReplaceAll(s, "NAME", name) }
	for _, c := range []struct{ name, site, want string }{
		{"in the order of directives", answer + named("a"), ""},
		{"behind an answer in a route", "route {\n" + answer + named("a") + "}", "a static_response"},
		{"behind a proxy in a route", "route {\nreverse_proxy 127.0.0.1:9\n" + named("a") + "}", "a reverse_proxy"},
		{"before it", "route {\n" + named("a") + answer + "}", ""},
		{"behind an answer to some", "route {\nrespond /b ok\n" + named("a") + answer + "}", ""},
		{"in handle, after a route", "route {\n" + answer + "route {\n" + named("a") + "}\n" + named("b") + "}", "a static_response, b static_response"},
		{"behind files that may be missing", "route {\nfile_server {\npass_thru\n}\n" + named("a") + "}", ""},
		{"behind files", "route {\nfile_server\n" + named("a") + "}", "a file_server"},
		{"in one of two blocks", "route {\nhandle /b {\n" + answer + "}\nhandle {\n" + named("a") + answer + "}\n}", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "shield.log")
			serveSite(t, fmt.Sprintf("{ %s\n log shield {\n output file %s\n include shield\n }\n}\n", globalOptions, file)+bound+c.site+"\n}")
			_ = caddy.Stop() // closes the log
			var found []string
			for _, entry := range logEntries(t, file) {
				if entry["level"] == "warn" && entry["handler"] != nil && entry["server"] == "srv0" {
					found = append(found, fmt.Sprint(entry["shield"], " ", entry["handler"]))
				}
			}
			if got := strings.Join(found, ", "); got != c.want {
				t.Errorf("warned of %q, want %q", got, c.want)
			}
		})
	}
}

// Placeholders and files of a store are judged when the config is loaded, not when it is adapted.
func TestStoreOfAnotherMachine(t *testing.T) {
	const text = "{\n\tshield {\n\t\tstore redis {env.NO_A} {env.NO_B} {\n\t\t\tsentinel {env.NO_S}\n\t\t\tusername {env.NO_U}\n\t\t\tpassword {file./no/p}\n\t\t\tsecret {env.NO_X}\n\t\t\tprefix {env.NO_P}\n\t\t\ttls /no/ca\n\t\t}\n\t}\n}\n:80 {\n\tshield 5/s\n}"
	if _, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"}); err != nil {
		t.Error(err)
	}
}
