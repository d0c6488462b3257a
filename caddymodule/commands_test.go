package caddymodule

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
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

// A Caddy with the plugin has the commands of a running instance.
func TestCommandsOfThePlugin(t *testing.T) {
	admin := freeAddr(t)
	start(t, setup{handlers: watched, admin: admin})
	for _, c := range []struct{ line, want string }{
		{"status", `^shop is receiving no requests\.\n(.|\n)*\nCAPACITY .*\nshop +5 +1s +5 `},
		{"status --json", `^\{"read_only":false,"shields":\[\{"name":"shop"`},
		{"status --url --json", `^Error: .*\[url store json\].*\[json url\] were all set\n$`},
		{"status --store --json", `^Error: .*\[json store\] were all set\n$`},
		{"status --store --url", `^Error: .*\[store url\] were all set\n$`},
		{"who", `^No client was rejected in the last minute\.\n$`},
		{"explain 192.0.2.1", `^shop: a request from 192.0.2.1 now would be admitted\.\n`},
		{"set shop capacity 3/s --for 10m", `^\d+: capacity 3/s of shield shop, until \S+ \S+\.\nTo end it early: caddy shield overrides end \d+\n$`},
		{"set shop capacity 4/s --for 9m", `^\d+: capacity 4/s of shield shop, until \S+ \S+\.\nTo end `},
		{"set shop capacity 4/s --for 9m --json", `^\{"id":"\d+",.*"value":"4/s",`},
		{"block 192.0.2.1 --for 9m", `^\d+: 192.0.2.1 is blocked in shield shop, until \S+ \S+\.\nTo end it early: `},
		{"forgive 192.0.2.1", `^shop: 192.0.2.1 is forgiven: its block\.\n$`},
		{"block 192.0.2.1 --for 48h", `^Error: for is "48h"; use 1s to 24h, like 10m\n`},
		{"mode observ --for 9m", `^Error: mode is "observ"; use enforce or observe\n`},
		{"who --clients 0", `^Error: --clients is 0; use 1 to 100\n$`},
		{"who --clients x", `^Error: --clients is "x"; use a whole number: how many clients to show in each list, 1 to 100\n$`},
		{"status --json=maybe", `^Error: --json is "maybe"; use true or false: print the admin endpoint's JSON\n$`},
		{"who --help", `\n  \$ caddy shield who --shield shop --clients 20\n`},
		{"mode observe --for 9m", `^\d+: mode observe of shield shop`},
		{"overrides", `^OVERRIDE +WHAT .*\n\d+ +capacity 4/s of shield shop .*\n\d+ +mode observe of shield shop `},
	} {
		if out := pluginSays(admin, c.line); !regexp.MustCompile(c.want).MatchString(out) {
			t.Errorf("caddy shield %s:\n%swant %s", c.line, out, c.want)
		}
	}
	help := pluginSays("", "")
	for name := range strings.FieldsSeq("status who explain forgive block set mode overrides") {
		if !strings.Contains(help, "\n  "+name+" ") {
			t.Errorf("the help has no %s:\n%s", name, help)
		}
	}
	if out := pluginSays("", "stauts"); !strings.HasPrefix(out, "Error: caddy shield has no command \"stauts\"; use block, explain, ") {
		t.Errorf("an unknown command: %s", out)
	}
}
