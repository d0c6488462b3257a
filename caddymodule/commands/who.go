package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func whoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "who [--shield <name>] [--clients <n>] [--json] [--address <interface>]",
		Short: "Shows which clients a running shield refuses most",
		Long: `
Asks the admin endpoint of a running instance which clients were refused most
often in the last minute, by shield and by zone; which of them came before their
time; and which have the most requests in flight.
`,
		Args: Args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return showWho(cmd.OutOrStdout(), flagsOf(cmd)) },
	}
	adminFlags(cmd)
	cmd.Flags().String("shield", "", "show one shield and its zones only")
	cmd.Flags().Int("clients", 10, "how many clients each list has, 1 to 100")
	return cmd
}

func showWho(w io.Writer, flags caddycmd.Flags) error {
	if n := flags.Int("clients"); n < 1 || n > 100 {
		return fmt.Errorf("--clients is %d; want 1 to 100", n)
	}
	query := url.Values{"n": {strconv.Itoa(flags.Int("clients"))}}
	if name := flags.String("shield"); name != "" {
		query.Set("shield", name)
	}
	answer, _, err := askAdmin(flags, http.MethodGet, "/shield/who?"+query.Encode(), nil, nil)
	if err != nil {
		return err
	}
	if flags.Bool("json") {
		_, err = w.Write(answer)
		return err
	}
	var who adminapi.WhoStatus
	if err := json.Unmarshal(answer, &who); err != nil {
		return err
	}
	return printWho(w, &who)
}

// printWho shows the lists that have a client.
func printWho(w io.Writer, who *adminapi.WhoStatus) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	sections := 0
	head := func(text string) {
		if sections > 0 {
			fmt.Fprintln(t)
		}
		sections++
		fmt.Fprintln(t, text)
	}
	table := func(title, of string, clients []adminapi.RefusedClient) {
		if len(clients) > 0 {
			head(title + "\tCLIENT\tLAST MINUTE\tPER SECOND\tLAST REASON\tCLASS\tAGENT\tPATH\t")
		}
		for _, c := range clients {
			fmt.Fprintf(t, "%s\t%s\t%d\t%.1f\t%s\t%s\t%s\t%s\t\n", of, adminapi.Shown(c.Client), c.LastMinute, c.PerSecond, c.Reason, c.Class, c.Agent, adminapi.Shown(c.Path))
		}
	}
	for _, s := range who.Shields {
		name := s.Name
		if s.Mode == "observe" {
			name += " (observes)"
		}
		table("REFUSED BY", name, s.Refused)
		table("EARLY AT", name, s.Early)
		if len(s.InFlight) > 0 {
			head("IN FLIGHT AT\tCLIENT\tREQUESTS\t")
		}
		for _, c := range s.InFlight {
			fmt.Fprintf(t, "%s\t%s\t%d\t\n", name, adminapi.Shown(c.Client), c.InFlight)
		}
	}
	for _, z := range who.Zones {
		table("REFUSED BY ZONE", z.Name, z.Refused)
	}
	if sections == 0 {
		fmt.Fprintln(t, "No client was refused in the last minute.")
	}
	return t.Flush()
}
