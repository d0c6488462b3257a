// Package commands has the commands that ask a running instance over its admin endpoint, and change
// it. They are `caddy shield status` and so on in a Caddy with the plugin, and `shield status` in
// the program shield.
//
//	commands.go  the commands, and how each asks
//	tables.go    how responses are printed
package commands

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

// Add adds the commands to the parent that they have in the program, and gives all of the parent's
// commands FlagError. Their examples begin with path: "caddy shield" in a Caddy with the plugin.
func Add(parent *cobra.Command, path string) {
	parent.SetFlagErrorFunc(FlagError)
	parent.AddCommand(
		statusCommand(), whoCommand(), explainCommand(),
		forgiveCommand(), blockCommand(), setCommand(), modeCommand(), overridesCommand(),
	)
	for _, cmd := range parent.Commands() {
		cmd.Example = strings.ReplaceAll(cmd.Example, "$ shield ", "$ "+path+" ")
	}
}

// A request is one to the admin endpoint.
type request struct {
	method, path string
	body         any    // sent as JSON; nil: none
	part         string // the field of the response that is wanted; "": all
}

// asking has a command ask the admin endpoint, and show the response; with --json as it is. of is what the flag --shield means; "": the
// command has none.
func asking[Answer any](cmd *cobra.Command, of string, ask func(caddycmd.Flags, []string) (request, error), show func(io.Writer, *Answer) error) *cobra.Command {
	cmd.Flags().String("address", "", "`address` of the admin endpoint (default "+caddy.DefaultAdminListen+")")
	cmd.DisableFlagsInUseLine = true // Use has them
	cmd.Flags().Bool("json", false, "print the admin endpoint's JSON")
	if of != "" {
		cmd.Flags().String("shield", "", of)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		flags := caddycmd.Flags{FlagSet: cmd.Flags()}
		q, err := ask(flags, args)
		if err != nil {
			return err
		}
		resp, err := q.send(flags)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && q.part != "" {
			var all map[string]json.RawMessage
			err = json.Unmarshal(text, &all)
			text = []byte(cmp.Or(string(all[q.part]), "[]") + "\n")
		}
		if err == nil && flags.Bool("json") && len(text) > 0 {
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}
		answer := new(Answer)
		if err == nil && len(text) > 0 {
			err = json.Unmarshal(text, answer)
		}
		if err != nil {
			return fmt.Errorf("reading the response: %w", err)
		}
		return show(cmd.OutOrStdout(), answer)
	}
	return cmd
}

// send sends a request, and returns the response, for the caller to close. Errors are in the endpoint's words.
func (q request) send(flags caddycmd.Flags) (*http.Response, error) {
	address, err := caddycmd.DetermineAdminAPIAddress(flags.String("address"), nil, "", "")
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if q.body != nil {
		text, err := json.Marshal(q.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	resp, err := caddycmd.AdminAPIRequest(address, q.method, q.path, http.Header{"Content-Type": {"application/json"}}, body)
	if err != nil {
		if _, in, ok := strings.Cut(err.Error(), "HTTP "); ok { // Caddy's words around the endpoint's own
			var rejected struct{ Error string }
			_, said, _ := strings.Cut(in, ": ")
			if json.Unmarshal([]byte(said), &rejected) == nil && rejected.Error != "" {
				return nil, errors.New(rejected.Error)
			}
		}
		return nil, fmt.Errorf("the admin endpoint doesn't respond: %w; is shield running, and its admin endpoint at %s?", err, address)
	}
	return resp, nil
}

func statusCommand() *cobra.Command {
	page, store := false, false
	cmd := asking(&cobra.Command{
		Use:   "status [--url | --store | --json] [--address <address>]",
		Short: "Show what a running shield is doing",
		Long: `
Print one sentence about what each shield is doing. Below it, tables show the rates
of the last ten seconds, and the totals since a shield or zone was added to the config.

Use --url to get the address of the live page, which also shows the last ten minutes.
Use --json to read the numbers in a script. To check the store that replicas share, use
--store: the exit code is 1 if the store doesn't respond.

The first column of a table is the shield or zone, and its header is the table's name.
Fields that are 0 are left out. Here, shop has given 24 appointments, and the last of
them is in 1.8 s:

  LINE  APPOINTMENTS  BACKLOG_SECONDS  SPARE_PER_SECOND
  shop  24            1.812            8.127

The tables and their less obvious fields:

LATELY       rates per second, averaged over the last ten seconds
REJECTED     rejections by reason
OBSERVED     requests that were admitted only because of observe mode, by reason
WAITING      rejected clients that are expected to return
  OVER_SECONDS      time until the last of them has returned; -1: unknown
SEARCH       the adaptive limit: its last change, the reason, and the latency then
  BASELINE_SECONDS  the backend's latency without queueing
  DISCONNECTED      requests the backend still works on after the client disconnected
QUEUE        requests waiting for a permit, and what happened to earlier ones
CLASSES      decisions by class
  SHARE             part of the limit that a class can use while higher classes compete
                    for it
LINE         appointments of rejected clients
  BACKLOG_SECONDS   time until the last appointment
  DEFERRED          clients without an appointment
  SPARE_PER_SECOND  rejected clients per second that the backend can serve
  KEPT              clients that returned on time
  NO_SHOW           clients that didn't, including those that were LATE
  EARLY             clients that were admitted before their appointment (in "who", EARLY
                    counts rejections for returning too early)
  BROKEN            clients that were due, but were rejected again
CLIENTS      rejected clients on record, by how they retry
FAMILIES     rejected clients by software, according to the User-Agent
  TOLD              rejections with a Retry-After
FAST_REJECT  rejections sent by the listener wrapper
ZONE         quotas
  KEYS              clients that have used some of their quota
`,
		Args: Args(0, 0, "none"),
	}, "", func(caddycmd.Flags, []string) (request, error) {
		return request{method: http.MethodGet, path: "/shield/"}, nil
	}, func(w io.Writer, status *adminapi.Status) error {
		switch {
		case page:
			url, err := pageAt(status.Page)
			if err == nil {
				_, err = fmt.Fprintln(w, url)
			}
			return err
		case store:
			return printStore(w, status)
		}
		return printStatus(w, status)
	})
	cmd.Flags().BoolVar(&page, "url", false, "print the address of the live page")
	cmd.Flags().BoolVar(&store, "store", false, "check the store that replicas share, and fail if it doesn't respond")
	cmd.MarkFlagsMutuallyExclusive("url", "store", "json")
	return cmd
}

func whoCommand() *cobra.Command {
	cmd := asking(&cobra.Command{
		Use:     "who [--shield <name>] [--clients <n>] [--json] [--address <address>]",
		Example: `  $ shield who --shield shop --clients 20`,
		Short:   "List the clients that are rejected most",
		Long: `
List the clients rejected most often in the last minute, by shield and by zone. The
list includes how often they retried before their appointment. A second list has the
clients with the most requests in flight.
`,
		Args: Args(0, 0, "none"),
	}, "`name` of the only shield to list, with its zones", func(flags caddycmd.Flags, _ []string) (request, error) {
		n := flags.Int("clients")
		if n < 1 || n > 100 { // the endpoint would call it n
			return request{}, fmt.Errorf("--clients is %d; use 1 to 100", n)
		}
		query := url.Values{"n": {strconv.Itoa(n)}, "shield": {flags.String("shield")}}
		return request{method: http.MethodGet, path: "/shield/who?" + query.Encode()}, nil
	}, printWho)
	cmd.Flags().Int("clients", 10, "how many clients to show in each list, 1 to 100")
	return cmd
}

func explainCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "explain [--shield <name>] [--json] [--address <address>] <client>",
		Example: `  $ shield explain 203.0.113.7
  $ shield explain --shield api "key-of-a-customer"`,
		Short: "Explain why a client is being rejected",
		Long: `
Explain what would happen to a client's next request, and why. You see the client's
tokens in each zone, its appointment, how it kept earlier ones, and its requests in
flight. Asking changes nothing.

Identify the client the way the shield does, usually by address. If a zone's key is a
header or cookie, use the value of that header or cookie. Limits whose key can't be
derived from the value you gave are listed as UNKNOWN.

The first line is the verdict. The first column of each table is the shield, and its
header is the table's name. Fields that are 0 are left out.
`,
		Args: Args(1, 1, oneClient),
	}, "`name` of one shield to ask, instead of all", aboutClient("explain"), printExplanations)
}

// aboutClient asks an endpoint about the client that is the only argument.
func aboutClient(endpoint string) func(caddycmd.Flags, []string) (request, error) {
	return func(flags caddycmd.Flags, args []string) (request, error) {
		return request{method: http.MethodPost, path: "/shield/" + endpoint, body: adminapi.ExplainRequest{Client: args[0], Shield: flags.String("shield")}}, nil
	}
}

// changing is in the help of all commands that change a running instance.
const changing = `
The admin endpoint accepts the change only from the same machine, or from a client
with a certificate. It logs each change.
`

// lasting is in that of those whose changes end.
const lasting = changing + `
The config stays as it is. The change ends when its time is up, when you end it with
"overrides end", or when shield restarts.
`

// oneOrAll says of which shields something is changed.
const oneOrAll = "`name` of one shield to change, instead of all"

func forgiveCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use:     "forgive [--shield <name>] [--json] [--address <address>] <client>",
		Example: `  $ shield forgive 203.0.113.7`,
		Short:   "Reset a client's quotas, lift its block, and drop its appointment",
		Long: `
Reset a client, so that shield treats it as new. This refills its quotas, lifts its
block, and drops its appointment along with its record of early retries. The
appointment's slot goes to the next rejected client.
` + changing,
		Args: Args(1, 1, oneClient),
	}, oneOrAll, aboutClient("forgive"), printForgiven)
}

func blockCommand() *cobra.Command {
	return overriding(&cobra.Command{
		Use:     "block --for <duration> [--shield <name>] [--json] [--address <address>] <client>",
		Example: `  $ shield block --for 30m 203.0.113.7`,
		Short:   "Reject all requests of a client for a limited time",
		Long: `
Reject every request of a client with 429. The Retry-After says how long the block
lasts. Requests already in flight continue.
` + lasting,
		Args: Args(1, 1, oneClient),
	}, oneOrAll, func(args []string) adminapi.OverrideRequest {
		return adminapi.OverrideRequest{Kind: "block", ExplainRequest: adminapi.ExplainRequest{Client: args[0]}}
	})
}

func setCommand() *cobra.Command {
	return overriding(&cobra.Command{
		Use: "set --for <duration> [--json] [--address <address>] <shield> {capacity | concurrency | <zone> rate} <value>",
		Example: `  $ shield set --for 1h shop capacity 300/s
  $ shield set --for 10m shop clients rate 5/s burst 20`,
		Short: "Change a limit for a limited time",
		Long: `
Change the capacity of a shield, its concurrency, or the rate of one of its zones.
Write the value as in a config: 300/s, 300/s burst 50, or 20 for concurrency. If you
leave out the burst, the config's burst applies. If the config has none either, you
get the default burst of the new rate.

This can't change a limit that replicas share. Change the config of every replica
instead.
` + lasting,
		Args: Args(3, math.MaxInt, "a shield, what to set and its value, like shop capacity 300/s, or shop clients rate 5/s"),
	}, "", func(args []string) adminapi.OverrideRequest {
		setting, value := args[1], args[2:]
		if value[0] == "rate" {
			setting, value = setting+" rate", value[1:]
		}
		return adminapi.OverrideRequest{Kind: "set", ExplainRequest: adminapi.ExplainRequest{Shield: args[0]}, Setting: setting, Value: strings.Join(value, " ")}
	})
}

func modeCommand() *cobra.Command {
	return overriding(&cobra.Command{
		Use:     "mode --for <duration> [--shield <name>] [--json] [--address <address>] {observe | enforce}",
		Example: `  $ shield mode --for 10m --shield shop observe`,
		Short:   "Switch to observe or enforce mode for a limited time",
		Long: `
Switch the mode of all shields, or of one. In observe mode, shield admits every
request and counts those it would have rejected. In enforce mode, it rejects them.
` + lasting,
		Args: Args(1, 1, "observe or enforce"),
	}, oneOrAll, func(args []string) adminapi.OverrideRequest {
		return adminapi.OverrideRequest{Kind: "mode", Value: args[0]}
	})
}

// overriding makes a command of what it asks the admin endpoint to put in force for a while.
func overriding(cmd *cobra.Command, of string, ask func(args []string) adminapi.OverrideRequest) *cobra.Command {
	asking(cmd, of, func(flags caddycmd.Flags, args []string) (request, error) {
		body := ask(args)
		body.For = flags.String("for")
		if of != "" {
			body.Shield = flags.String("shield")
		}
		return request{method: http.MethodPost, path: "/shield/overrides", body: body}, nil
	}, func(w io.Writer, is *adminapi.Override) error {
		_, err := fmt.Fprintf(w, "%s: %s, until %s.\nTo end it early: %s overrides end %[1]s\n",
			is.ID, overrideText(is), is.Until.Local().Format(time.DateTime), cmd.Parent().CommandPath())
		return err
	})
	cmd.Flags().String("for", "", "`duration` after which it ends, 1s to 24h")
	return cmd
}

func overridesCommand() *cobra.Command {
	ended := ""
	return asking(&cobra.Command{
		Use: "overrides [--json] [--address <address>] [end <id>]",
		Example: `  $ shield overrides
  $ shield overrides end 3`,
		Short: "List temporary blocks and changes, or end one",
		Long: `
List the active blocks, limit changes, and mode changes. Each has a number, the time
left, and who set it. To end one early, add "end" and its number. The admin endpoint
accepts that only from the same machine, or from a client with a certificate.
`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) == 2 && args[0] == "end" {
				return nil
			}
			return fmt.Errorf("arguments are %q; use none, or end and a number", args)
		},
	}, "", func(_ caddycmd.Flags, args []string) (request, error) {
		if len(args) == 0 {
			return request{method: http.MethodGet, path: "/shield/", part: "overrides"}, nil
		}
		ended = args[1]
		return request{method: http.MethodDelete, path: "/shield/overrides/" + url.PathEscape(ended)}, nil
	}, func(w io.Writer, list *[]adminapi.Override) error {
		if ended != "" {
			_, err := fmt.Fprintf(w, "%s has ended.\n", ended)
			return err
		}
		return printOverrides(w, *list)
	})
}

// FlagError says what a flag of a command is and what it is for, or where the flags are listed. It is for cobra's SetFlagErrorFunc.
func FlagError(cmd *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		kind, known := kinds[wrong.GetFlag().Value.Type()]
		if !known {
			return fmt.Errorf("--%s is %q; use %s", wrong.GetFlag().Name, wrong.GetValue(), wrong.GetFlag().Usage)
		}
		return fmt.Errorf("--%s is %q; use %s: %s", wrong.GetFlag().Name, wrong.GetValue(), kind, wrong.GetFlag().Usage)
	}
	return fmt.Errorf("%w; %s --help lists the flags", err, cmd.CommandPath())
}

// kinds are the values of flags, by type, whose usage says what they are for, but not what they look like.
var kinds = map[string]string{
	"int": "a whole number", "uint64": "a whole number", "number": "a number", "float64": "a number", "bool": "true or false",
	"duration": "a duration like 10s", "time": "a time like 10s", "rate": "a rate",
}

// NoSuchCommand are the arguments of a command that has none but commands.
func NoSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("%s has no command %q; use %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
}

// Args checks how many arguments a command has. The error ends with want.
func Args(least, most int, want string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n == 0 && least > 0:
			return fmt.Errorf("%s is missing an argument; use %s", cmd.CommandPath(), want)
		case n < least || n > most:
			return fmt.Errorf("arguments are %q; use %s", args, want)
		}
		return nil
	}
}

// oneClient is what commands want that are about a client.
const oneClient = "one client, like 192.0.2.7, or its key in quotes"
