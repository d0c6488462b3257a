package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "status",
		Usage: "[--address <interface>] [--json] [--open] [--store]",
		Short: "Shows what a running shield does",
		Long: `
Asks the admin endpoint of a running instance for its limits, the requests in
flight, and the decisions since each zone and shield came into the config; and
how an adaptive limit was found. If clients were refused over a limit: the times
that they were promised, how many kept them, and how they retry. If replicas
share a store: whether it answers, and how many replicas there are; with --store,
nothing else, and the exit code is 1 unless it does. With --open, only the address
of the page that shows the same in a browser, and the last ten minutes.
`,
		CobraFunc: func(cmd *cobra.Command) {
			demo.Root().Example = examples
			cmd.Flags().String("address", "", "address of the admin endpoint, if it is not "+caddy.DefaultAdminListen)
			cmd.Flags().Bool("json", false, "print the JSON of the admin endpoint")
			cmd.Flags().Bool("open", false, "print the address of the page for a browser")
			cmd.Flags().Bool("store", false, "show the store that replicas share, and fail unless it answers")
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
	if flags.Bool("open") {
		return printPage(w, address)
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
	if flags.Bool("store") {
		return printStore(w, status)
	}
	return printStatus(w, status)
}

// printStore shows the store, and returns an error unless it answers.
func printStore(w io.Writer, status caddymodule.Status) error {
	if status.Store == nil {
		return errors.New("the running config has no store")
	}
	if err := printSections(w, storeText, status); err != nil || status.Store.Up {
		return err
	}
	return errors.New("the store does not answer in time")
}

// storeText shows what replicas share.
var storeText = template.Must(template.New("store").Funcs(template.FuncMap{"ms1": ms1, "trips": trips}).Parse(`
{{- define "sharing"}}{{.Replicas}} │ {{if .Alone}}ALONE{{else}}together{{end}} │ {{.Unit}}{{range .Others}}
 │ {{.Replicas}} │ DIFFER │ {{.What}}{{end}}{{end}}
{{- with .Store}}STORE │ PREFIX │ STATE │ ROUND TRIP │ ALONE IN ALL │ EXCHANGES │ LAST ERROR
{{.Address}} │ {{.Prefix}} │ {{if .Up}}up{{else}}LOST{{end}} for {{printf "%.0f s" .ForSeconds}} │ {{ms1 .RTTSeconds}} │ {{printf "%.1f s" .AloneSeconds}} │ {{trips .Exchanges}} │ {{.Error}}
{{end}}
SHARED │ REPLICAS │ STATE │ UNIT
{{range .Shields}}{{$s := .}}{{with .Sharing}}{{$s.Name}} │ {{template "sharing" .}}
{{end}}{{end}}{{range .Zones}}{{$z := .}}{{with .Sharing}}{{$z.Name}} │ {{template "sharing" .}}
{{end}}{{end}}`))

// statusText shows a status in sections. Bars separate cells.
var statusText = template.Must(template.New("status").Funcs(template.FuncMap{
	"ms": ms, "rate": rateText, "kept": kept, "counts": parts[int], "reasons": parts[uint64], "sum": sum[uint64], "remembered": remembered,
	"percent": func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) },
	"mean":    func(seconds float64, n uint64) float64 { return seconds / float64(max(1, n)) },
}).Parse(`SHIELD │ MODE │ CAPACITY │ IN FLIGHT │ ADMITTED │ REFUSED │ OBSERVED
{{range $s := .Shields}}{{.Name}} │ {{.Mode}} │ {{with .Capacity}}{{rate .}}{{else}}-{{end}} │
{{- if .Concurrency}}{{.InFlight}} of {{.Concurrency}}{{else}}-{{end}} │ {{.Admitted}} │ {{reasons .Refused}} │ {{reasons .Observed}} │
{{- if .Overloaded}}OVERLOADED{{end}}{{with .PausedSeconds}}{{if $s.Overloaded}}, {{end}}{{printf "LEFT ALONE for %.1f s" .}}{{end}}
{{end}}
LIMIT │ BY │ IN FLIGHT │ LAST CHANGE │ LATENCY │ BASELINE │ GHOSTS │ FAILURES │ PAUSES
{{range $s := .Shields}}{{with .Search}}{{$s.Name}} │ {{.By}}{{with .TargetSeconds}} {{ms .}}{{end}} │ {{$s.InFlight}} of {{$s.Concurrency}} │
{{- with .Last}}{{printf "%.0f s ago, %d to %d: %s" .SecondsAgo .From .To .Reason}} │
{{- ms .LatencySeconds}} │ {{with .BaselineSeconds}}{{ms .}}{{else}}-{{end}}{{else}}none yet │ - │ -{{end}} │
{{- .Ghosts}} │ {{$s.Failures}} │ {{$s.Pauses}}
{{end}}{{end}}
QUEUE │ WAITING │ ADMITTED │ TIMEOUT │ DROPPED │ GONE │ MEAN WAIT
{{range $s := .Shields}}{{with .Queue}}{{$waited := sum .Admitted .Timeout .Dropped .Gone}}{{if or $waited .Length}}{{$s.Name}} │
{{- .Length}} of {{.Size}} │ {{.Admitted}} │ {{.Timeout}} │ {{.Dropped}} │ {{.Gone}} │ {{mean .WaitSeconds $waited | ms}}
{{end}}{{end}}{{end}}
CLASS │ OF │ SHARE │ ADMITTED │ REFUSED │ OBSERVED
{{range $s := .Shields}}{{range .Classes}}{{.Name}} │ {{$s.Name}} │ {{percent .Share}} │ {{.Admitted}} │ {{.Refused}} │ {{.Observed}}
{{end}}{{end}}
CALENDAR │ BACKLOG │ DEFERRED │ SPARE │ HELD │ PROMISED │ KEPT │ LATE │ NO-SHOW │ BROKEN │ EARLY
{{range $s := .Shields}}{{with .Calendar}}{{if or .Promises .Deferrals}}{{$s.Name}} │ {{printf "%.1f s" .BacklogSeconds}} │ {{.Deferred}} │
{{- printf "%.1f/s" .Spare}} │ {{$s.Held}} │ {{.Promises}} │ {{kept .Kept .NoShow}} │ {{.Late}} │ {{.NoShow}} │ {{.Broken}} │
{{- index $s.Refused "early"}} refused{{with .Early}}, {{.}} admitted{{end}}
{{end}}{{end}}{{end}}
DOOR │ REFUSED AT THE DOOR
{{range .Shields}}{{if .Door}}{{.Name}} │ {{reasons .Door}}
{{end}}{{end}}
HERD │ KIND │ SIZE │ PERIOD │ PHASE
{{range $s := .Shields}}{{with .Herd}}{{$s.Name}} │ {{.Kind}} │ {{printf "%.0f" .Size}}
{{- if .Period}} requests │ {{.Period}} s │ {{printf "%.1f s" .Phase}}{{else}} clients │ - │ -{{end}}
{{end}}{{end}}
CLIENTS │ REMEMBERED │ BY POLICY
{{range .Shields}}{{if .Clients}}{{.Name}} │ {{remembered .Clients}} of {{.MaxClients}} │ {{counts .Clients}}
{{end}}{{end}}
ZONE │ KEY │ RATE │ KEYS │ ADMITTED │ REFUSED │ OBSERVED
{{range .Zones}}{{.Name}} │ {{.Key}} │ {{rate .RateStatus}} │ {{.Keys}} of {{.MaxKeys}} │ {{.Admitted}} │ {{.Refused}} │ {{.Observed}} │
{{- if or .Evicted .Shared}}{{.Evicted}} forgotten early, {{.Shared}} without room: raise max_keys{{end}}
{{end}}`))

// printStatus writes the sections that have a line below the head.
func printStatus(w io.Writer, status caddymodule.Status) error {
	if len(status.Shields) == 0 {
		_, err := fmt.Fprintln(w, "The running config has no shield.")
		return err
	}
	err := printSections(w, statusText, status)
	if err == nil && status.Store != nil {
		fmt.Fprintln(w)
		err = printSections(w, storeText, status)
	}
	return err
}

func printSections(w io.Writer, as *template.Template, status caddymodule.Status) error {
	var text strings.Builder
	if err := as.Execute(&text, status); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, section := range strings.Split(strings.TrimSpace(text.String()), "\n\n") {
		if !strings.Contains(section, "\n") {
			continue
		}
		if i > 0 {
			fmt.Fprintln(t)
		}
		for line := range strings.Lines(section) {
			for cell := range strings.SplitSeq(strings.TrimSpace(line), "│") {
				fmt.Fprint(t, strings.TrimSpace(cell), "\t")
			}
			fmt.Fprintln(t)
		}
	}
	return t.Flush()
}

// ms1 shows a short time.
func ms1(seconds float64) string { return fmt.Sprintf("%.1f ms", 1000*seconds) }

// trips lists how many exchanges there were, by outcome.
func trips(byKind map[string]map[string]uint64) string {
	all := map[string]uint64{}
	for _, kind := range byKind {
		for outcome, n := range kind {
			all[outcome] += n
		}
	}
	return parts(all)
}

func ms(seconds float64) string { return fmt.Sprintf("%.0f ms", 1000*seconds) }

func rateText(r caddymodule.RateStatus) string {
	per := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(r.Per, "1"), "0s"), "0m")
	return fmt.Sprintf("%v/%s burst %d", r.Rate, per, r.Burst)
}

// kept is the share of past promises that clients have kept.
func kept(kept, noShow uint64) string {
	if kept+noShow == 0 {
		return "-"
	}
	return fmt.Sprintf("%d %%", 100*kept/(kept+noShow))
}

func sum[T int | uint64](counts ...T) (total T) {
	for _, n := range counts {
		total += n
	}
	return total
}

func remembered(clients map[string]int) int { return sum(slices.Collect(maps.Values(clients))...) }

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
