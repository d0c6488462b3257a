package commands

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func whoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "who [--shield <name>] [--clients <n>] [--json] [--address <interface>]",
		Short: "Shows which clients a running shield rejects most",
		Long: `
Asks the admin endpoint of a running instance which clients were rejected most
often in the last minute, by shield and by zone; how often they came before their
time; and which have the most requests in flight.
`,
		Args: Args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return showWho(cmd) },
	}
	adminFlags(cmd)
	cmd.Flags().String("shield", "", "show one shield and its zones only")
	cmd.Flags().Int("clients", 10, "how many clients each list has, 1 to 100")
	return cmd
}

func showWho(cmd *cobra.Command) error {
	flags := flagsOf(cmd)
	if n := flags.Int("clients"); n < 1 || n > 100 {
		return fmt.Errorf("--clients is %d; want 1 to 100", n)
	}
	query := url.Values{"n": {strconv.Itoa(flags.Int("clients"))}}
	if name := flags.String("shield"); name != "" {
		query.Set("shield", name)
	}
	var who adminapi.WhoStatus
	if done, err := ask(cmd, http.MethodGet, "/shield/who?"+query.Encode(), nil, &who); done || err != nil {
		return err
	}
	return printWho(cmd.OutOrStdout(), &who)
}

// printWho shows the lists that have a client.
func printWho(w io.Writer, who *adminapi.WhoStatus) error {
	type zone struct {
		Name     string                    `json:"name"`
		Rejected []adminapi.RejectedClient `json:"rejected by zone"`
	}
	var zones []zone
	any := false
	for _, z := range who.Zones {
		zones = append(zones, zone(z))
		any = any || len(z.Rejected) > 0
	}
	for _, s := range who.Shields {
		any = any || len(s.Rejected)+len(s.InFlight) > 0
	}
	if !any {
		_, err := fmt.Fprintln(w, "No client was rejected in the last minute.")
		return err
	}
	return cmp.Or(printTables(w, "", who.Shields), printTables(w, "", zones))
}
