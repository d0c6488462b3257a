package caddymodule

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield"
)

// pluginSays runs `caddy shield` with a line of arguments, as a Caddy has it whose only plugin is this
// package, and returns what it prints.
func pluginSays(address, line string) string {
	root := &cobra.Command{Use: "caddy", SilenceUsage: true}
	parent := &cobra.Command{Use: "shield"}
	caddycmd.Commands()["shield"].CobraFunc(parent)
	root.AddCommand(parent)
	args := append([]string{"shield"}, strings.Fields(line)...)
	if address != "" {
		args = append(args, "--address", address)
	}
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	_ = root.Execute() // it prints the error
	return out.String()
}

// A Caddy with the plugin has the commands of a running instance, and they say what one change of a
// person ends of another's.
func TestCommandsOfThePlugin(t *testing.T) {
	admin := freeAddr(t)
	start(t, setup{handlers: watched, admin: admin})
	for _, c := range []struct{ line, want string }{
		{"status", `(?m)^NOW (.|\n)*^shop +enforce +5/s burst 5 `},
		{"status --json", `^\{"shields":\[\{"name":"shop"`},
		{"who", `^No client was refused in the last minute\.\n$`},
		{"explain 192.0.2.1", `^shop: a request of 192.0.2.1 now would be admitted\.\n`},
		{"top", `want one, or "caddy shield status --watch"\n$`},
		{"set shop capacity 3/s --for 10m", `^\d+: capacity 3/s of shield shop, until \S+ \S+\.\nTo end it before: caddy shield overrides end \d+\n$`},
		{"set shop capacity 4/s --for 9m", `^\d+: capacity 4/s of shield shop, until \S+ \S+\.\nIt replaces \d+: capacity 3/s of shield shop, until \S+ \S+, which 127.0.0.1:\d+.* asked for\.\nTo end `},
		{"set shop capacity 4/s --for 9m --json", `^\{"id":"\d+",.*"value":"4/s",.*"replaces":\{"id":"\d+",.*"value":"4/s",`},
		{"block 192.0.2.1 --for 9m", `^\d+: 192.0.2.1 is blocked in all shields, until \S+ \S+\.\nTo end it before: `},
		{"forgive 192.0.2.1", `^shop: 192.0.2.1 is forgiven: its block\.\nThis ends \d+: 192.0.2.1 is blocked in all shields, until \S+ \S+, which 127.0.0.1:\d+.* asked for\.\n$`},
		{"mode observe --for 9m", `^\d+: mode observe of all shields`},
		{"overrides", `^OVERRIDE +WHAT .*\n\d+ +capacity 4/s of shield shop .*\n\d+ +mode observe of all shields `},
	} {
		if out := pluginSays(admin, c.line); !regexp.MustCompile(c.want).MatchString(out) {
			t.Errorf("caddy shield %s:\n%swant %s", c.line, out, c.want)
		}
	}
	help := pluginSays("", "")
	for name := range strings.FieldsSeq("status top who explain forgive block set mode overrides") {
		if !strings.Contains(help, "\n  "+name+" ") {
			t.Errorf("the help has no %s:\n%s", name, help)
		}
	}
	if out := pluginSays("", "stauts"); !strings.HasPrefix(out, "Error: caddy shield has no command \"stauts\" (did you mean status?); want block, explain, ") {
		t.Errorf("an unknown command: %s", out)
	}
}

// To forgive a client in one shield says which block goes on in the others.
func TestForgiveCommandInOneShield(t *testing.T) {
	admin := freeAddr(t)
	start(t, setup{handlers: `{"handler": "shield", "name": "a", "capacity": {"rate": 5}}, {"handler": "shield", "name": "b", "capacity": {"rate": 5}},` + respondOK, admin: admin})
	for _, c := range []struct{ line, want string }{
		{"block 192.0.2.1 --for 9m", `^\d+: 192.0.2.1 is blocked in all shields, until `},
		{"forgive 192.0.2.1 --shield a", `^a: 192.0.2.1 is forgiven: its block\.\nWhat goes on is \d+: 192.0.2.1 is blocked in all shields except a, until \S+ \S+, which 127.0.0.1:\d+.* asked for\.\nTo end it: caddy shield overrides end \d+\n$`},
		{"overrides", `\n\d+ +192.0.2.1 is blocked in all shields except a `},
		{"forgive --help", `With --shield,\na block in all shields goes on in the others\.`},
	} {
		if out := pluginSays(admin, c.line); !regexp.MustCompile(c.want).MatchString(out) {
			t.Errorf("caddy shield %s:\n%swant %s", c.line, out, c.want)
		}
	}
}

// A command does nothing if another person changes something after it has read what is in force.
func TestCommandsUndoNoOtherChange(t *testing.T) {
	admin := freeAddr(t)
	start(t, setup{handlers: watched, admin: admin})
	demand(t, `{"kind": "block", "client": "192.0.2.1", "for": "1h"}`)
	target := &url.URL{Scheme: "http", Host: admin}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header.Set("Origin", target.String())
	}}
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			demand(t, `{"kind": "set", "shield": "shop", "setting": "capacity", "value": "9/s", "for": "1h"}`)
		}
		forward.ServeHTTP(w, r)
	}))
	defer between.Close()
	for _, line := range []string{"set shop capacity 3/s --for 10m", "mode observe --for 10m", "block 192.0.2.1 --for 10m", "forgive 192.0.2.1"} {
		const want = `^Error: the overrides have changed since they were read: an override begins \(set of shop: capacity 9/s, by 127.0.0.1:\d+\); want them read again with "caddy shield overrides": this change is not made\n$`
		if out := pluginSays(between.Listener.Addr().String(), line); !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("caddy shield %s:\n%swant %s", line, out, want)
		}
	}
	list, _ := changes.read(shield.Now())
	if len(list) != 2 || list[0].Client != "192.0.2.1" || list[0].Left < 3000 || list[1].Value != "9/s" {
		t.Errorf("in force are %+v", list)
	}
}
