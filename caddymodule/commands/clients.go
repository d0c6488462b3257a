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

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
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
		RunE: func(cmd *cobra.Command, args []string) error { return explain(cmd, args[0]) },
	}
	adminFlags(cmd)
	cmd.Flags().String("shield", "", "the name of one shield; otherwise all of them answer")
	return cmd
}

func explain(cmd *cobra.Command, client string) error {
	var e adminapi.ExplainStatus
	body := adminapi.ExplainRequest{Shield: flagsOf(cmd).String("shield"), Client: client}
	if done, err := ask(cmd, http.MethodPost, "/shield/explain", body, &e); done || err != nil {
		return err
	}
	for i := range e.Shields {
		if err := printExplanation(cmd.OutOrStdout(), e.Client, &e.Shields[i]); err != nil {
			return err
		}
	}
	return nil
}

// printExplanation says the verdict, and then all that it is made of.
func printExplanation(w io.Writer, client string, e *adminapi.ExplanationStatus) error {
	fmt.Fprintf(w, "%s: a request of %s now %s.\n\n", e.Name, adminapi.Shown(client), verdict(e))
	return printTables(w, "client", []any{e})
}

// verdict says what a request would get.
func verdict(e *adminapi.ExplanationStatus) string {
	why := e.Reason
	if e.Zone != "" {
		why += " of zone " + e.Zone
	}
	switch {
	case e.Would == "queue":
		return "would wait in the queue"
	case e.Would == "admit" && why != "":
		return "would be admitted, as the mode is observe; otherwise rejected: " + why
	case e.Would == "admit":
		return "would be admitted"
	case e.RetryAfter == 0:
		return fmt.Sprintf("would be rejected with %d and told not to come back: %s", e.Status, why)
	}
	return fmt.Sprintf("would be rejected with %d and Retry-After %d: %s", e.Status, e.RetryAfter, why)
}
