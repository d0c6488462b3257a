package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

// changing is what the help of all commands says that change a running instance.
const changing = `
The change is made over the admin endpoint, which takes it from the machine itself
or from a client with a certificate, and is logged there. It is gone at its end,
or at a restart.
`

func forgiveCommand() *cobra.Command {
	return changeCommand(&cobra.Command{
		Use:   "forgive [--shield <name>] <client>",
		Short: "Makes a new client of a client",
		Long:  "\nFills the client's buckets, and forgets its appointment, its early returns and its\nblock, in all zones and shields or in one. Its slot is the next client's.\n" + changing,
		Args:  Args(1, 1, oneClient),
		RunE:  func(cmd *cobra.Command, args []string) error { return forgive(cmd, args[0]) },
	})
}

func blockCommand() *cobra.Command {
	return overrideCommand(&cobra.Command{
		Use:   "block --for <duration> [--shield <name>] <client>",
		Short: "Rejects all requests of a client for a while",
		Long:  "\nAnswers all requests of a client with 429 and the rest of the time as Retry-After,\nin all shields or in one. Requests in flight go on.\n" + changing,
		Args:  Args(1, 1, oneClient),
	}, func(f caddycmd.Flags, args []string) adminapi.OverrideRequest {
		return adminapi.OverrideRequest{Kind: "block", Client: args[0], Shield: f.String("shield")}
	})
}

func setCommand() *cobra.Command {
	return overrideCommand(&cobra.Command{
		Use:   "set --for <duration> <shield> capacity|concurrency|<zone> rate <value>",
		Short: "Changes a limit of a shield for a while",
		Long: `
Sets the capacity (300/s, or 300/s burst 50), the concurrency (20), or the rate of
a zone, as the config would. A rate without a burst has the config's, or, if that
has none, the default of the new rate. Limits that replicas share cannot be
changed in one of them.
` + changing,
		Args: Args(3, math.MaxInt, "a shield, what to set and its value, like shop capacity 300/s, or shop per_client rate 5/s"),
	}, func(_ caddycmd.Flags, args []string) adminapi.OverrideRequest {
		setting, value := args[1], args[2:]
		if value[0] == "rate" {
			setting, value = setting+" rate", value[1:]
		}
		return adminapi.OverrideRequest{Kind: "set", Shield: args[0], Setting: setting, Value: strings.Join(value, " ")}
	})
}

func modeCommand() *cobra.Command {
	return overrideCommand(&cobra.Command{
		Use:   "mode --for <duration> [--shield <name>] observe|enforce",
		Short: "Has shields reject no request for a while, or reject again",
		Long:  "\nSets the mode of all shields or of one: observe rejects no request, and counts those\nthat would have been rejected.\n" + changing,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] != "observe" && args[0] != "enforce" {
				return fmt.Errorf("mode is %q%s; want observe or enforce", args[0], Meant("", Near(args[0], []string{"observe", "enforce"})))
			}
			return Args(1, 1, "observe or enforce")(cmd, args)
		},
	}, func(f caddycmd.Flags, args []string) adminapi.OverrideRequest {
		return adminapi.OverrideRequest{Kind: "mode", Value: args[0], Shield: f.String("shield")}
	})
}

func overridesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "overrides [end <id>]",
		Short: "Shows what is blocked or changed for a while, or ends it",
		Long:  "\nLists the blocks and changes that are in force, with who has asked for them; \"end\"\nends one by its number.\n" + changing,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) == 2 && args[0] == "end" {
				return nil
			}
			return fmt.Errorf("arguments are %q; want none, or end and a number", args)
		},
		RunE: overrides,
	}
	adminFlags(cmd)
	return cmd
}

// changeCommand adds what all commands have that change something of shields.
func changeCommand(cmd *cobra.Command) *cobra.Command {
	adminFlags(cmd)
	if cmd.Name() != "set" {
		cmd.Flags().String("shield", "", "the name of one shield; otherwise it is for all of them")
	}
	return cmd
}

// overrideCommand makes a command of what it asks the admin endpoint for.
func overrideCommand(cmd *cobra.Command, request func(caddycmd.Flags, []string) adminapi.OverrideRequest) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body := request(flagsOf(cmd), args)
		body.For = flagsOf(cmd).String("for")
		if d, err := caddy.ParseDuration(body.For); err != nil || d < time.Second || d > 24*time.Hour {
			return fmt.Errorf("--for is %q; want how long it lasts, 1s to 24h, like 10m", body.For)
		}
		var is adminapi.Override
		if done, err := ask(cmd, http.MethodPost, "/shield/overrides", body, &is); done || err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, until %s.\nTo end it before: %s overrides end %[1]s\n",
			is.ID, overrideText(&is), is.Until.Local().Format(time.DateTime), cmd.Parent().CommandPath())
		return err
	}
	cmd.Flags().String("for", "", "how long it lasts: 1s to 24h")
	return changeCommand(cmd)
}

func forgive(cmd *cobra.Command, client string) error {
	var is adminapi.ForgivenStatus
	if done, err := ask(cmd, http.MethodPost, "/shield/forgive", adminapi.ExplainRequest{Client: client, Shield: flagsOf(cmd).String("shield")}, &is); done || err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	for _, s := range is.Shields {
		var what []string
		for _, z := range s.Zones {
			what = append(what, "its bucket in zone "+z)
		}
		if s.Promises > 0 {
			what = append(what, plural(s.Promises, "appointment", "appointments"))
		}
		if s.Blocked {
			what = append(what, "its block")
		}
		if len(what) == 0 {
			what = []string{"nothing was held against it"}
		}
		fmt.Fprintf(w, "%s: %s is forgiven: %s.\n", s.Name, adminapi.Shown(is.Client), strings.Join(what, ", "))
		for of, key := range s.Unknown {
			fmt.Fprintf(w, "%s: not in %s, whose key is %s\n", s.Name, of, key)
		}
	}
	return nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

func overrides(cmd *cobra.Command, args []string) error {
	w := cmd.OutOrStdout()
	if len(args) > 0 {
		_, err := ask(cmd, http.MethodDelete, "/shield/overrides/"+url.PathEscape(args[1]), nil, nil)
		if err == nil {
			_, err = fmt.Fprintf(w, "%s has ended.\n", args[1])
		}
		return err
	}
	resp, err := openAdmin(flagsOf(cmd), http.MethodGet, "/shield/", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var is adminapi.Status
	if err := json.NewDecoder(resp.Body).Decode(&is); err != nil {
		return err
	}
	if flagsOf(cmd).Bool("json") {
		return json.NewEncoder(w).Encode(is.Overrides)
	}
	return printOverrides(w, is.Overrides)
}

func printOverrides(w io.Writer, list []adminapi.Override) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "No override is in force.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "OVERRIDE\tWHAT\tLEFT\tASKED BY")
	for i := range list {
		is := &list[i]
		left := time.Duration(is.Left * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(t, "%s\t%s\t%v\t%s\n", is.ID, overrideText(is), left, adminapi.Shown(is.By))
	}
	return t.Flush()
}

// overrideText says what an override does.
func overrideText(is *adminapi.Override) string {
	switch is.Kind {
	case "block":
		return fmt.Sprintf("%s is blocked in %s", adminapi.Shown(is.Client), is.Where())
	case "mode":
		return fmt.Sprintf("mode %s of %s", is.Value, is.Where())
	}
	return fmt.Sprintf("%s %s of %s", is.Setting, is.Value, is.Where())
}
