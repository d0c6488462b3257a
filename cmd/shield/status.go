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
	blank := "" // before a section
	begin := func(head string) line {
		above := blank + strings.ReplaceAll(head, "|", "\t") + "\t\n"
		blank = "\n"
		return func(cells ...any) {
			fmt.Fprint(t, above)
			above = ""
			for _, cell := range cells {
				fmt.Fprint(t, cell, "\t")
			}
			fmt.Fprintln(t)
		}
	}
	for _, section := range sections {
		write := begin(section.head)
		for _, s := range status.Shields {
			section.lines(s, write)
		}
	}
	write := begin("ZONE|KEY|RATE|KEYS|ADMITTED|REFUSED|OBSERVED")
	for _, z := range status.Zones {
		pressure := ""
		if z.Evicted+z.Shared > 0 {
			pressure = fmt.Sprintf("%d forgotten early, %d without room: raise max_keys", z.Evicted, z.Shared)
		}
		write(z.Name, z.Key, rate(z.RateStatus), fmt.Sprintf("%d of %d", z.Keys, z.MaxKeys), z.Admitted, z.Refused, z.Observed, pressure)
	}
	t.Flush()
}

// A line writes the cells of a line, the first of a section below its head.
type line func(cells ...any)

// sections show the shields, each under a head if it has a line.
var sections = []struct {
	head  string
	lines func(s caddymodule.ShieldStatus, write line)
}{
	{"SHIELD|MODE|CAPACITY|IN FLIGHT|ADMITTED|REFUSED|OBSERVED", shieldLine},
	{"LIMIT|BY|IN FLIGHT|LAST CHANGE|LATENCY|BASELINE|GHOSTS|FAILURES|PAUSES", limitLine},
	{"QUEUE|WAITING|ADMITTED|TIMEOUT|DROPPED|GONE|MEAN WAIT", queueLine},
	{"CLASS|OF|SHARE|ADMITTED|REFUSED|OBSERVED", classLines},
	{"CALENDAR|BACKLOG|DEFERRED|SPARE|HELD|PROMISED|KEPT|LATE|NO-SHOW|BROKEN|EARLY", calendarLine},
	{"HERD|KIND|SIZE|PERIOD|PHASE", herdLine},
	{"CLIENTS|REMEMBERED|BY POLICY", clientsLine},
}

func shieldLine(s caddymodule.ShieldStatus, write line) {
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
	write(s.Name, s.Mode, capacity, inFlight, s.Admitted, parts(s.Refused), parts(s.Observed), strings.Join(overloaded, ", "))
}

// limitLine shows how an adaptive limit was found.
func limitLine(s caddymodule.ShieldStatus, write line) {
	if s.Search == nil {
		return
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
	write(s.Name, by, fmt.Sprintf("%d of %d", s.InFlight, s.Concurrency), change, latency, baseline, s.Search.Ghosts, s.Failures, s.Pauses)
}

// queueLine shows how requests waited in a queue, if any did.
func queueLine(s caddymodule.ShieldStatus, write line) {
	q := cmp.Or(s.Queue, new(caddymodule.QueueStatus))
	waited := q.Admitted + q.Timeout + q.Dropped + q.Gone
	if waited+uint64(q.Length) > 0 {
		write(s.Name, fmt.Sprintf("%d of %d", q.Length, q.Size), q.Admitted, q.Timeout, q.Dropped, q.Gone, ms(q.WaitSeconds/float64(max(1, waited))))
	}
}

func classLines(s caddymodule.ShieldStatus, write line) {
	for _, c := range s.Classes {
		write(c.Name, s.Name, fmt.Sprintf("%.0f %%", 100*c.Share), c.Admitted, c.Refused, c.Observed)
	}
}

// calendarLine shows the promises to refused clients, if there were any.
func calendarLine(s caddymodule.ShieldStatus, write line) {
	c := s.Calendar
	if c == nil || c.Promises+c.Deferrals == 0 {
		return
	}
	kept, early := "-", fmt.Sprintf("%d refused", s.Refused["early"])
	if n := c.Kept + c.NoShow; n > 0 {
		kept = fmt.Sprintf("%d %%", 100*c.Kept/n)
	}
	if c.Early > 0 {
		early += fmt.Sprintf(", %d admitted", c.Early)
	}
	write(s.Name, fmt.Sprintf("%.1f s", c.BacklogSeconds), c.Deferred, fmt.Sprintf("%.1f/s", c.Spare), s.Held,
		c.Promises, kept, c.Late, c.NoShow, c.Broken, early)
}

func herdLine(s caddymodule.ShieldStatus, write line) {
	if h := s.Herd; h != nil && h.Period > 0 {
		write(s.Name, h.Kind, fmt.Sprintf("%.0f requests", h.Size), fmt.Sprintf("%g s", h.Period), fmt.Sprintf("%.1f s", h.Phase))
	} else if h != nil {
		write(s.Name, h.Kind, fmt.Sprintf("%.0f clients", h.Size), "-", "-")
	}
}

// clientsLine shows how many refused clients are remembered, and how they retry.
func clientsLine(s caddymodule.ShieldStatus, write line) {
	remembered := 0
	for _, n := range s.Clients {
		remembered += n
	}
	if len(s.Clients) > 0 {
		write(s.Name, fmt.Sprintf("%d of %d", remembered, s.MaxClients), parts(s.Clients))
	}
}

func ms(seconds float64) string { return fmt.Sprintf("%.0f ms", 1000*seconds) }

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
