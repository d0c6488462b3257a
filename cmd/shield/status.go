package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "status",
		Usage: "[--address <interface>] [--json]",
		Short: "Shows what a running shield does",
		Long: `
Asks the admin endpoint of a running instance for its limits, the requests in
flight, and the decisions since each zone and shield came into the config; and
how an adaptive limit was found. If clients were refused over a limit: the times
that they were promised, how many kept them, and how they retry.
`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Flags().String("address", "", "address of the admin endpoint, if it is not "+caddy.DefaultAdminListen)
			cmd.Flags().Bool("json", false, "print the JSON of the admin endpoint")
			cmd.Args = cobra.NoArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error {
				return showStatus(cmd.OutOrStdout(), caddycmd.Flags{FlagSet: cmd.Flags()})
			}
		},
	})
}

func showStatus(w io.Writer, flags caddycmd.Flags) error {
	address, err := caddycmd.DetermineAdminAPIAddress(flags.String("address"), nil, "", "")
	if err != nil {
		return err
	}
	resp, err := caddycmd.AdminAPIRequest(address, http.MethodGet, "/shield/", nil, nil)
	if err != nil {
		return fmt.Errorf("asking for the status: %w; is shield running, and its admin endpoint at %s?", err, address)
	}
	defer resp.Body.Close()
	if flags.Bool("json") {
		_, err = io.Copy(w, resp.Body)
		return err
	}
	var status caddymodule.Status
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		return fmt.Errorf("reading the status from %s: %w", address, err)
	}
	printStatus(w, status)
	return nil
}

func printStatus(w io.Writer, status caddymodule.Status) {
	if len(status.Shields) == 0 {
		fmt.Fprintln(w, "There is no shield in the running config.")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...any) {
		for _, cell := range cells {
			fmt.Fprint(t, cell, "\t")
		}
		fmt.Fprintln(t)
	}
	row("SHIELD", "MODE", "CAPACITY", "IN FLIGHT", "ADMITTED", "REFUSED", "OBSERVED")
	for _, s := range status.Shields {
		capacity, inFlight, overloaded := "-", "-", []string(nil)
		if s.Capacity != nil {
			capacity = rate(*s.Capacity)
		}
		if s.Concurrency > 0 {
			inFlight = fmt.Sprintf("%d of %d", s.InFlight, s.Concurrency)
		}
		if s.Overloaded {
			overloaded = append(overloaded, "OVERLOADED")
		}
		if s.PausedSeconds > 0 {
			overloaded = append(overloaded, fmt.Sprintf("LEFT ALONE for %.1f s", s.PausedSeconds))
		}
		row(s.Name, s.Mode, capacity, inFlight, s.Admitted, parts(s.Refused), parts(s.Observed), strings.Join(overloaded, ", "))
	}
	printLimits(row, status.Shields)
	printQueues(row, status.Shields)
	printClasses(row, status.Shields)
	printCalendars(row, status.Shields)
	printHerds(row, status.Shields)
	printClients(row, status.Shields)
	zone := section(row, "ZONE", "KEY", "RATE", "KEYS", "ADMITTED", "REFUSED", "OBSERVED")
	for _, z := range status.Zones {
		pressure := ""
		if z.Evicted+z.Shared > 0 {
			pressure = fmt.Sprintf("%d forgotten early, %d without room: raise max_keys", z.Evicted, z.Shared)
		}
		zone(z.Name, z.Key, rate(z.RateStatus), fmt.Sprintf("%d of %d", z.Keys, z.MaxKeys), z.Admitted, z.Refused, z.Observed, pressure)
	}
	t.Flush()
}

// section returns a function that writes a row, the first below a head.
func section(row func(...any), head ...any) func(...any) {
	return func(cells ...any) {
		if head != nil {
			row()
			row(head...)
			head = nil
		}
		row(cells...)
	}
}

// printLimits shows how adaptive limits were found.
func printLimits(row func(...any), shields []caddymodule.ShieldStatus) {
	line := section(row, "LIMIT", "BY", "IN FLIGHT", "LAST CHANGE", "LATENCY", "BASELINE", "GHOSTS", "FAILURES", "PAUSES")
	for _, s := range shields {
		if s.Search == nil {
			continue
		}
		by, change, latency, baseline := s.Search.By, "none yet", "-", "-"
		if s.Search.TargetSeconds > 0 {
			by += " " + ms(s.Search.TargetSeconds)
		}
		if c := s.Search.Last; c != nil {
			change = fmt.Sprintf("%.0f s ago, %d to %d: %s", c.SecondsAgo, c.From, c.To, c.Reason)
			latency = ms(c.LatencySeconds)
			if c.BaselineSeconds > 0 {
				baseline = ms(c.BaselineSeconds)
			}
		}
		line(s.Name, by, fmt.Sprintf("%d of %d", s.InFlight, s.Concurrency), change, latency, baseline, s.Search.Ghosts, s.Failures, s.Pauses)
	}
}

func ms(seconds float64) string { return fmt.Sprintf("%.0f ms", 1000*seconds) }

// printQueues shows how requests waited in queues, of shields where any did.
func printQueues(row func(...any), shields []caddymodule.ShieldStatus) {
	line := section(row, "QUEUE", "WAITING", "ADMITTED", "TIMEOUT", "DROPPED", "GONE", "MEAN WAIT")
	for _, s := range shields {
		q := s.Queue
		if q == nil {
			continue
		}
		waited := q.Admitted + q.Timeout + q.Dropped + q.Gone
		if waited+uint64(q.Length) == 0 {
			continue
		}
		line(s.Name, fmt.Sprintf("%d of %d", q.Length, q.Size), q.Admitted, q.Timeout, q.Dropped, q.Gone, ms(q.WaitSeconds/float64(max(1, waited))))
	}
}

// printClasses shows the decisions by priority class.
func printClasses(row func(...any), shields []caddymodule.ShieldStatus) {
	line := section(row, "CLASS", "OF", "SHARE", "ADMITTED", "REFUSED", "OBSERVED")
	for _, s := range shields {
		for _, c := range s.Classes {
			line(c.Name, s.Name, fmt.Sprintf("%.0f %%", 100*c.Share), c.Admitted, c.Refused, c.Observed)
		}
	}
}

// printCalendars shows the promises to refused clients, of shields that made any.
func printCalendars(row func(...any), shields []caddymodule.ShieldStatus) {
	line := section(row, "CALENDAR", "BACKLOG", "DEFERRED", "SPARE", "HELD", "PROMISED", "KEPT", "LATE", "NO-SHOW", "BROKEN", "EARLY")
	for _, s := range shields {
		c := s.Calendar
		if c == nil || c.Promises+c.Deferrals == 0 {
			continue
		}
		kept, early := "-", fmt.Sprintf("%d refused", s.Refused["early"])
		if n := c.Kept + c.NoShow; n > 0 {
			kept = fmt.Sprintf("%d %%", 100*c.Kept/n)
		}
		if c.Early > 0 {
			early += fmt.Sprintf(", %d admitted", c.Early)
		}
		line(s.Name, fmt.Sprintf("%.1f s", c.BacklogSeconds), c.Deferred, fmt.Sprintf("%.1f/s", c.Spare), s.Held,
			c.Promises, kept, c.Late, c.NoShow, c.Broken, early)
	}
}

// printHerds shows the herds that shields have found.
func printHerds(row func(...any), shields []caddymodule.ShieldStatus) {
	line := section(row, "HERD", "KIND", "SIZE", "PERIOD", "PHASE")
	for _, s := range shields {
		if s.Herd == nil {
			continue
		}
		size, period, phase := fmt.Sprintf("%.0f clients", s.Herd.Size), "-", "-"
		if s.Herd.Period > 0 {
			size, period, phase = fmt.Sprintf("%.0f requests", s.Herd.Size), fmt.Sprintf("%g s", s.Herd.Period), fmt.Sprintf("%.1f s", s.Herd.Phase)
		}
		line(s.Name, s.Herd.Kind, size, period, phase)
	}
}

// printClients shows how many refused clients are remembered, and how they retry.
func printClients(row func(...any), shields []caddymodule.ShieldStatus) {
	line := section(row, "CLIENTS", "REMEMBERED", "BY POLICY")
	for _, s := range shields {
		if len(s.Clients) == 0 {
			continue
		}
		remembered := 0
		for _, n := range s.Clients {
			remembered += n
		}
		line(s.Name, fmt.Sprintf("%d of %d", remembered, s.MaxClients), parts(s.Clients))
	}
}

func rate(r caddymodule.RateStatus) string {
	per := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(r.Per, "1"), "0s"), "0m")
	return fmt.Sprintf("%v/%s burst %d", r.Rate, per, r.Burst)
}

// parts lists counts with their names, the largest first.
func parts[T int | uint64](n map[string]T) string {
	names := slices.Collect(maps.Keys(n))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b)) })
	var list []string
	for _, name := range names {
		if n[name] > 0 {
			list = append(list, fmt.Sprintf("%d %s", n[name], name))
		}
	}
	if len(list) == 0 {
		return "0"
	}
	return strings.Join(list, ", ")
}
