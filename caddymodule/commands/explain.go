package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [--shield <name>] [--address <interface>] [--json] <client>",
		Short: "Says what the limits say of a client now",
		Long: `
Asks the admin endpoint of a running instance what each limit says of one client:
its tokens in each zone, when it was told to come back, how it has kept that, its
requests in flight, and what a request would get now. A client is an address, or
the value of the header, cookie or the like by which the shield tells clients
apart. To ask changes nothing.
`,
		Args: Args(1, 1, oneClient),
		RunE: func(cmd *cobra.Command, args []string) error {
			return explain(cmd.OutOrStdout(), flagsOf(cmd), args[0])
		},
	}
	adminFlags(cmd)
	cmd.Flags().String("shield", "", "the name of one shield; otherwise all of them answer")
	return cmd
}

func explain(w io.Writer, flags caddycmd.Flags, client string) error {
	ask, err := json.Marshal(adminapi.ExplainRequest{Shield: flags.String("shield"), Client: client})
	if err != nil {
		return err
	}
	answer, _, err := askAdmin(flags, http.MethodPost, "/shield/explain", http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(ask))
	if err != nil {
		return err
	}
	if flags.Bool("json") {
		_, err = w.Write(answer)
		return err
	}
	var e adminapi.ExplainStatus
	if err := json.Unmarshal(answer, &e); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	for i := range e.Shields {
		if i > 0 {
			fmt.Fprintln(w)
		}
		printExplanation(w, e.Client, &e.Shields[i])
	}
	return nil
}

// printExplanation says it in sentences, the verdict first.
func printExplanation(w io.Writer, client string, e *adminapi.ExplanationStatus) {
	fmt.Fprintf(w, "%s: a request of %s now %s.\n", e.Name, adminapi.Shown(client), verdict(e))
	line := func(what, format string, args ...any) {
		fmt.Fprintf(w, "  %-13s%s\n", what, fmt.Sprintf(format, args...))
	}
	for _, z := range e.Zones {
		more := ""
		if z.Shared {
			more = "; the store may have more"
		}
		if z.Matches {
			more += "; it counts only requests that it matches"
		}
		line("zone", "%s: %s%s", z.Name, tokensText(z.BucketExplanation), more)
	}
	if e.Capacity != nil {
		line("capacity", "%s, for all clients", tokensText(*e.Capacity))
	}
	if c := e.Concurrency; c != nil {
		line("in flight", "%d of %d, %d of this client; %d of %d wait in the queue", c.InFlight, c.Limit, e.InFlight, c.Waiting, c.QueueSize)
	}
	if e.Blocked > 0 {
		line("block", "by an operator, for %.0f s", e.Blocked)
	}
	quota := false
	for _, z := range e.Zones {
		if z.Promises > 0 {
			quota = true
			line("appointment", "of zone %s: %s", z.Name, quotaText(e, &z))
		}
	}
	if _, unknown := e.Unknown["appointments"]; !unknown && (!quota || appointmentText(e) != "none") {
		of := ""
		if quota {
			of = "of the backend: "
		}
		line("appointment", "%s%s", of, appointmentText(e))
	}
	line("class", "%s", e.Class)
	for _, what := range slices.Sorted(maps.Keys(e.Unknown)) {
		line("unknown", "%s: its key is %s, which %s does not tell", what, e.Unknown[what], adminapi.Shown(client))
	}
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
		return "would be admitted, as the mode is observe; otherwise refused: " + why
	case e.Would == "admit":
		return "would be admitted"
	case e.RetryAfter == 0:
		return fmt.Sprintf("would be refused with %d and told not to come back: %s", e.Status, why)
	}
	return fmt.Sprintf("would be refused with %d and Retry-After %d: %s", e.Status, e.RetryAfter, why)
}

func tokensText(b adminapi.BucketExplanation) string {
	text := fmt.Sprintf("%d of %d tokens left", b.Tokens, b.Burst)
	if b.Wait > 0 {
		text += fmt.Sprintf(", enough for a request in %.1f s", b.Wait)
	}
	return text
}

// dueText says when appointments are due.
func dueText(promises int, first *float64) string {
	text := "none"
	switch {
	case first != nil && *first > 0:
		text = fmt.Sprintf("due in %.1f s", *first)
	case first != nil:
		text = fmt.Sprintf("due since %.1f s", -*first)
	}
	if promises > 1 {
		text += fmt.Sprintf(", the first of %d", promises)
	}
	return text
}

// quotaText says the appointments for the end of a quota. They are why a request may be told to
// wait for longer than its tokens take.
func quotaText(e *adminapi.ExplanationStatus, z *adminapi.ZoneExplanation) string {
	text := dueText(z.Promises, z.Promise)
	if e.Zone == z.Name && z.Promises > 1 && e.RetryAfter > 0 {
		text += fmt.Sprintf("; a request now is told to come after them, in %d s", e.RetryAfter)
	}
	return text
}

func appointmentText(e *adminapi.ExplanationStatus) string {
	text := dueText(e.Promises, e.Promise)
	if e.Promise == nil && e.Standing == "proven" {
		text += "; it has kept one before"
	}
	if e.Standing == "crowd" {
		text += "; several clients share this key"
	}
	if e.Kind != "" && e.Kind != "unknown" {
		text += "; its retries: " + e.Kind
	}
	return text
}
