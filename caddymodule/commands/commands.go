// Package commands has the commands that ask a running instance over its admin endpoint, and change
// it. They are `caddy shield status` and so on in a Caddy with the plugin, and `shield status` in
// the program shield.
//
//	commands.go  the commands, and how each asks
//	top.go       the command that goes on
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
// commands FlagError.
func Add(parent *cobra.Command) {
	parent.SetFlagErrorFunc(FlagError)
	parent.AddCommand(
		statusCommand(), topCommand(), whoCommand(), explainCommand(),
		forgiveCommand(), blockCommand(), setCommand(), modeCommand(), overridesCommand(),
	)
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
	addressFlag(cmd)
	cmd.Flags().Bool("json", false, "print the JSON of the admin endpoint")
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

// addressFlag adds the flag of all commands.
func addressFlag(cmd *cobra.Command) {
	cmd.Flags().String("address", "", "address of the admin endpoint, if it is not "+caddy.DefaultAdminListen)
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
		return nil, fmt.Errorf("asking the admin endpoint: %w; is shield running, and its admin endpoint at %s?", err, address)
	}
	return resp, nil
}

func statusCommand() *cobra.Command {
	open, store := false, false
	cmd := asking(&cobra.Command{
		Use:   "status [--address <interface>] [--json] [--open] [--store]",
		Short: "Shows what a running shield does",
		Long: `
Asks the admin endpoint of a running instance. First comes what goes on now, in
one sentence; then the rates of the last ten seconds, and the totals since each
zone and shield came into the config.

With --json it prints the JSON of the admin endpoint. With --store it shows the
store that replicas share, and the exit code is 1 unless it answers. With --open
it prints the address of the page that shows the same in a browser, and the last
ten minutes. The command top shows that page in the terminal.

The tables have the fields of that JSON that are not 0: one has the plain fields
of all shields, and each other one the fields of one object in them.

LATELY    rates per second of the last ten seconds
WAITING   rejected clients that are to come back; OVER_SECONDS: until the last of
          them will have done so, -1: that cannot be told
REJECTED  by reason; OBSERVED: admitted, but would have been rejected
SEARCH    how an adaptive limit was found: its last change and why; the latency of
          the backend, the baseline without queueing there; DISCONNECTED: requests whose
          client is gone, but on which the backend still works
QUEUE     requests that wait for a permit in flight, and how those before have left
CLASSES   decisions by class; SHARE: of the limit, while higher classes need it all
LINE      the appointments: the backlog until the last of them; DEFERRED clients
          have none; SPARE: rejected clients that the backend can serve; KEPT, LATE,
          NO_SHOW: how clients came; BROKEN: they came on time and were rejected;
          EARLY: before their time
FAST_REJECT  rejections that the listener wrapper has answered
CLIENTS   rejected clients that are remembered, by how they retry
ZONE      quotas; KEYS: clients that have used some of theirs
`,
		Args: Args(0, 0, "none"),
	}, "", func(caddycmd.Flags, []string) (request, error) {
		return request{method: http.MethodGet, path: "/shield/"}, nil
	}, func(w io.Writer, status *adminapi.Status) error {
		switch {
		case open:
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
	cmd.Flags().BoolVar(&open, "open", false, "print the address of the page for a browser")
	cmd.Flags().BoolVar(&store, "store", false, "show the store that replicas share, and fail unless it answers")
	return cmd
}

func whoCommand() *cobra.Command {
	cmd := asking(&cobra.Command{
		Use:   "who [--shield <name>] [--clients <n>] [--json] [--address <interface>]",
		Short: "Shows which clients a running shield rejects most",
		Long: `
Asks the admin endpoint of a running instance which clients were rejected most
often in the last minute, by shield and by zone; how often they came before their
time; and which have the most requests in flight.
`,
		Args: Args(0, 0, "none"),
	}, "show one shield and its zones only", func(flags caddycmd.Flags, _ []string) (request, error) {
		query := url.Values{"n": {strconv.Itoa(flags.Int("clients"))}, "shield": {flags.String("shield")}}
		return request{method: http.MethodGet, path: "/shield/who?" + query.Encode()}, nil
	}, printWho)
	cmd.Flags().Int("clients", 10, "how many clients each list has, 1 to 100")
	return cmd
}

func explainCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use:   "explain [--shield <name>] [--address <interface>] [--json] <client>",
		Short: "Says what the limits say of a client now",
		Long: `
Asks the admin endpoint of a running instance what each limit says of one client:
what a request would get now, its tokens in each zone, when it was told to come
back, how it has kept that, and its requests in flight. A client is an address, or
the value of the header, cookie or the like by which the shield tells clients
apart. To ask changes nothing. A limit is UNKNOWN whose key the name does not
tell; the tables have the fields of --json that are not 0.
`,
		Args: Args(1, 1, oneClient),
	}, "the name of one shield; otherwise all of them answer", aboutClient("explain"), printExplanations)
}

// aboutClient asks an endpoint about the client that is the only argument.
func aboutClient(endpoint string) func(caddycmd.Flags, []string) (request, error) {
	return func(flags caddycmd.Flags, args []string) (request, error) {
		return request{method: http.MethodPost, path: "/shield/" + endpoint, body: adminapi.ExplainRequest{Client: args[0], Shield: flags.String("shield")}}, nil
	}
}

// changing is what the help of all commands says that change a running instance.
const changing = `
The change is made over the admin endpoint, which takes it from the machine itself
or from a client with a certificate, and is logged there. It is gone at its end,
or at a restart.
`

// oneOrAll says of which shields something is changed.
const oneOrAll = "the name of one shield; otherwise all of them"

func forgiveCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use:   "forgive [--shield <name>] <client>",
		Short: "Makes a new client of a client",
		Long:  "\nFills the client's buckets, and forgets its appointment, its early returns and its\nblock, in all zones and shields or in one. Its slot is the next client's.\n" + changing,
		Args:  Args(1, 1, oneClient),
	}, oneOrAll, aboutClient("forgive"), printForgiven)
}

func blockCommand() *cobra.Command {
	return overriding(&cobra.Command{
		Use:   "block --for <duration> [--shield <name>] <client>",
		Short: "Rejects all requests of a client for a while",
		Long:  "\nAnswers all requests of a client with 429 and the rest of the time as Retry-After,\nin all shields or in one. Requests in flight go on.\n" + changing,
		Args:  Args(1, 1, oneClient),
	}, oneOrAll, func(args []string) adminapi.OverrideRequest {
		return adminapi.OverrideRequest{Kind: "block", ExplainRequest: adminapi.ExplainRequest{Client: args[0]}}
	})
}

func setCommand() *cobra.Command {
	return overriding(&cobra.Command{
		Use:   "set --for <duration> <shield> capacity|concurrency|<zone> rate <value>",
		Short: "Changes a limit of a shield for a while",
		Long: `
Sets the capacity (300/s, or 300/s burst 50), the concurrency (20), or the rate of
a zone, as the config would. A rate without a burst has the config's, or, if that
has none, the default of the new rate. Limits that replicas share cannot be
changed in one of them.
` + changing,
		Args: Args(3, math.MaxInt, "a shield, what to set and its value, like shop capacity 300/s, or shop per_client rate 5/s"),
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
		Use:   "mode --for <duration> [--shield <name>] observe|enforce",
		Short: "Has shields reject no request for a while, or reject again",
		Long:  "\nSets the mode of all shields or of one: observe rejects no request, and counts those\nthat would have been rejected.\n" + changing,
		Args:  Args(1, 1, "observe or enforce"),
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
	cmd.Flags().String("for", "", "how long it lasts: 1s to 24h")
	return cmd
}

func overridesCommand() *cobra.Command {
	ended := ""
	return asking(&cobra.Command{
		Use:   "overrides [end <id>]",
		Short: "Shows what is blocked or changed for a while, or ends it",
		Long:  "\nLists the blocks and changes that are in force, with who has asked for them; \"end\"\nends one by its number.\n" + changing,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) == 2 && args[0] == "end" {
				return nil
			}
			return fmt.Errorf("arguments are %q; want none, or end and a number", args)
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
		return fmt.Errorf("--%s is %q; want %s", wrong.GetFlag().Name, wrong.GetValue(), wrong.GetFlag().Usage)
	}
	return fmt.Errorf("%w; want flags as in %s --help", err, cmd.CommandPath())
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
	return fmt.Errorf("%s has no command %q; want %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
}

// Args checks how many arguments a command has. want says which: it ends the error.
func Args(least, most int, want string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n == 0 && least > 0:
			return fmt.Errorf("%s has no arguments; want %s", cmd.CommandPath(), want)
		case n < least || n > most:
			return fmt.Errorf("arguments are %q; want %s", args, want)
		}
		return nil
	}
}

// oneClient is what commands want that are about a client.
const oneClient = "one client, like 192.0.2.7, or the value that tells it apart, in quotes"
