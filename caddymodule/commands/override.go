package commands

import (
	"bytes"
	"encoding/json"
	"errors"
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
		Short: "Makes a stranger of a client",
		Long:  "\nFills the client's buckets, and forgets its appointment, its early returns and its\nblock, in all zones and shields or in one. Its slot is the next client's. With --shield,\na block in all shields goes on in the others.\n" + changing,
		Args:  Args(1, 1, oneClient),
		RunE:  func(cmd *cobra.Command, args []string) error { return forgive(cmd, args[0]) },
	})
}

func blockCommand() *cobra.Command {
	return overrideCommand(&cobra.Command{
		Use:   "block --for <duration> [--shield <name>] <client>",
		Short: "Refuses all requests of a client for a while",
		Long:  "\nAnswers all requests of a client with 429 and the rest of the time as Retry-After,\nin all shields or in one. Requests in flight go on.\n" + changing,
		Args:  Args(1, 1, oneClient),
	}, func(f caddycmd.Flags, args []string) map[string]string {
		return map[string]string{"kind": "block", "client": args[0], "shield": f.String("shield")}
	})
}

func setCommand() *cobra.Command {
	return overrideCommand(&cobra.Command{
		Use:   "set --for <duration> <shield> capacity|concurrency|queue|<zone> rate <value>",
		Short: "Changes a limit of a shield for a while",
		Long: `
Sets the capacity (300/s, or 300/s burst 50), the concurrency (20), the size of
the queue (32), or the rate of a zone, as the config would. A rate without a burst
has the config's, or, if that has none, the default of the new rate. Limits that
replicas share cannot be changed in one of them.
` + changing,
		Args: Args(3, math.MaxInt, "a shield, what to set and its value, like shop capacity 300/s, or shop per_client rate 5/s"),
	}, func(_ caddycmd.Flags, args []string) map[string]string {
		setting, value := args[1], args[2:]
		if value[0] == "rate" {
			setting, value = setting+" rate", value[1:]
		}
		return map[string]string{"kind": "set", "shield": args[0], "setting": setting, "value": strings.Join(value, " ")}
	})
}

func modeCommand() *cobra.Command {
	return overrideCommand(&cobra.Command{
		Use:   "mode --for <duration> [--shield <name>] observe|enforce",
		Short: "Has shields refuse no request for a while, or refuse again",
		Long:  "\nSets the mode of all shields or of one: observe refuses no request, and counts those\nthat would have been refused.\n" + changing,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] != "observe" && args[0] != "enforce" {
				return fmt.Errorf("mode is %q%s; want observe or enforce", args[0], Meant("", Near(args[0], []string{"observe", "enforce"})))
			}
			return Args(1, 1, "observe or enforce")(cmd, args)
		},
	}, func(f caddycmd.Flags, args []string) map[string]string {
		return map[string]string{"kind": "mode", "value": args[0], "shield": f.String("shield")}
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
		RunE: func(cmd *cobra.Command, args []string) error {
			return overrides(cmd.OutOrStdout(), flagsOf(cmd), args)
		},
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
func overrideCommand(cmd *cobra.Command, ask func(caddycmd.Flags, []string) map[string]string) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body := ask(flagsOf(cmd), args)
		body["for"] = flagsOf(cmd).String("for")
		if d, err := caddy.ParseDuration(body["for"]); err != nil || d < time.Second || d > 24*time.Hour {
			return fmt.Errorf("--for is %q; want how long it lasts, 1s to 24h, like 10m", body["for"])
		}
		var is adminapi.OverrideBegun
		if done, err := change(cmd, "/shield/overrides", body, &is); done || err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		fmt.Fprintf(w, "%s: %s, until %s.\n", is.ID, overrideText(&is.Override), is.Until.Local().Format(time.DateTime))
		if is.Replaces != nil {
			fmt.Fprintf(w, "It replaces %s\n", ended(is.Replaces))
		}
		if len(is.Without) > 0 {
			fmt.Fprintf(w, "It does nothing in %s: clients have other names there.\n", strings.Join(is.Without, ", "))
		}
		fmt.Fprintf(w, "To end it before: %s overrides end %s\n", cmd.Parent().CommandPath(), is.ID)
		return nil
	}
	cmd.Flags().String("for", "", "how long it lasts: 1s to 24h")
	return changeCommand(cmd)
}

// change posts a change, unless another person changes something at the same time. It is done if
// the answer has been printed as it is.
func change(cmd *cobra.Command, path string, body, answer any) (done bool, err error) {
	f := flagsOf(cmd)
	text, err := json.Marshal(body)
	if err != nil {
		return false, err
	}
	_, read, err := askAdmin(f, http.MethodGet, "/shield/overrides", nil, nil)
	if err != nil {
		return false, err
	}
	said, _, err := askAdmin(f, http.MethodPost, path, http.Header{
		"Content-Type": {"application/json"}, "If-Match": {read.Get("Etag")},
	}, bytes.NewReader(text))
	if _, changed := errors.AsType[notMatched](err); changed {
		return false, fmt.Errorf("%w with \"%s overrides\": this change is not made", err, cmd.Parent().CommandPath())
	}
	if err != nil {
		return false, err
	}
	if f.Bool("json") {
		_, err = cmd.OutOrStdout().Write(said)
		return true, err
	}
	return false, json.Unmarshal(said, answer)
}

func forgive(cmd *cobra.Command, client string) error {
	var is adminapi.ForgivenStatus
	if done, err := change(cmd, "/shield/forgive", map[string]string{"client": client, "shield": flagsOf(cmd).String("shield")}, &is); done || err != nil {
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
	for i := range is.Ended {
		fmt.Fprintf(w, "This ends %s\n", ended(&is.Ended[i]))
	}
	for i := range is.Continued {
		fmt.Fprintf(w, "What goes on is %s\n", ended(&is.Continued[i]))
		fmt.Fprintf(w, "To end it: %s overrides end %s\n", cmd.Parent().CommandPath(), is.Continued[i].ID)
	}
	return nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

func overrides(w io.Writer, f caddycmd.Flags, args []string) error {
	if len(args) > 0 {
		if _, _, err := askAdmin(f, http.MethodDelete, "/shield/overrides/"+url.PathEscape(args[1]), nil, nil); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "%s has ended.\n", args[1])
		return err
	}
	answer, _, err := askAdmin(f, http.MethodGet, "/shield/overrides", nil, nil)
	if err != nil {
		return err
	}
	if f.Bool("json") {
		_, err = w.Write(answer)
		return err
	}
	var is adminapi.OverridesStatus
	if err := json.Unmarshal(answer, &is); err != nil {
		return err
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

// ended says what an override is that another change ends, in all shields or in some, and who had asked for it.
func ended(is *adminapi.Override) string {
	return fmt.Sprintf("%s: %s, until %s, which %s asked for.", is.ID, overrideText(is), is.Until.Local().Format(time.DateTime), adminapi.Shown(is.By))
}
