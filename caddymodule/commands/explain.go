package commands

import (
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

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
