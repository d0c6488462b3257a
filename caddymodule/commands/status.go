package commands

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [--address <interface>] [--json] [--open] [--store] [--watch]",
		Short: "Shows what a running shield does",
		Long: `
Asks the admin endpoint of a running instance. First comes what goes on now, in
one sentence and as rates of the last ten seconds; then the totals since each
zone and shield came into the config. Sections without content are left out.

With --watch it asks every two seconds, until it is ended. With --json it prints
the JSON of the admin endpoint, with --watch one line a second. With --store it
shows the store that replicas share, and the exit code is 1 unless it answers.
With --open it prints the address of the page that shows the same in a browser,
and the last ten minutes. The command top shows that page in the terminal.

NOW       rates per second of the last ten seconds; WAITING: refused clients that
          are to come back; UNTIL: when the last of them will have done so
SHIELD    the limits; ADMITTED, REFUSED by reason; OBSERVED: admitted, but would
          have been refused
LIMIT     how an adaptive limit was found: its last change and why; LATENCY of the
          backend, BASELINE without queueing there; GHOSTS: requests whose client
          is gone, but on which the backend still works
QUEUE     requests that wait for a place in flight, and how those before have left
CLASS     decisions by class; SHARE: of the limit, while higher classes need it all
LINE      the appointments: BACKLOG until the last of them; DEFERRED clients have
          none; SPARE: refused clients that the backend can serve; HELD: refusals
          held back for less than a second; KEPT, LATE, NO-SHOW: how clients came;
          BROKEN: they came on time and were refused; EARLY: before their time
DOOR      refusals that the listener wrapper has answered
CLIENTS   refused clients that are remembered, by how they retry
ZONE      quotas; KEYS: clients that have used some of theirs
`,
		Args: Args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showStatus(cmd.Context(), cmd.OutOrStdout(), flagsOf(cmd))
		},
	}
	adminFlags(cmd)
	cmd.Flags().Bool("open", false, "print the address of the page for a browser")
	cmd.Flags().Bool("store", false, "show the store that replicas share, and fail unless it answers")
	cmd.Flags().Bool("watch", false, "show it again and again")
	return cmd
}

const (
	// statusEvery is how often --watch shows the status, and jsonEvery how often as JSON.
	statusEvery = 2 * time.Second
	jsonEvery   = time.Second
)

// clearScreen has a terminal begin at its top.
const clearScreen = "\x1b[H\x1b[2J"

// showStatus shows the status once or, with --watch, until ctx is done.
func showStatus(ctx context.Context, w io.Writer, flags caddycmd.Flags) error {
	if flags.Bool("open") {
		address, err := caddycmd.DetermineAdminAPIAddress(flags.String("address"), nil, "", "")
		if err != nil {
			return err
		}
		return printPage(w, address)
	}
	show, every := statusNow, statusEvery
	switch {
	case flags.Bool("json"):
		show, every = statusJSON, jsonEvery
	case flags.Bool("store"):
		show = storeNow
	}
	if !flags.Bool("watch") {
		return show(w, flags)
	}
	out, isFile := w.(*os.File)
	before := ""
	if isFile && term.IsTerminal(int(out.Fd())) && !flags.Bool("json") {
		before = clearScreen
	}
	return repeat(ctx, w, every, before, func(w io.Writer) error { return show(w, flags) })
}

// repeat shows something again and again, each time after the same text, until ctx is done.
func repeat(ctx context.Context, w io.Writer, every time.Duration, before string, show func(io.Writer) error) error {
	for {
		b := bytes.NewBufferString(before) // so that a screen is written at once
		if err := show(b); err != nil {
			return err
		}
		if _, err := b.WriteTo(w); err != nil {
			return err
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return nil
		}
	}
}

func statusJSON(w io.Writer, flags caddycmd.Flags) error {
	answer, _, err := askAdmin(flags, http.MethodGet, "/shield/", nil, nil)
	if err == nil {
		_, err = w.Write(answer)
	}
	return err
}

func storeNow(w io.Writer, flags caddycmd.Flags) error {
	var status adminapi.Status
	if err := readAdmin(flags, "/shield/", &status); err != nil {
		return err
	}
	return printStore(w, status)
}

func statusNow(w io.Writer, flags caddycmd.Flags) error {
	var watch adminapi.Watch
	var status adminapi.Status
	// It asks for samples of seconds to come, which are none: the present rates are enough.
	live := "/shield/live?since=" + strconv.FormatUint(math.MaxUint32, 10)
	if err := cmp.Or(readAdmin(flags, live, &watch), readAdmin(flags, "/shield/", &status)); err != nil {
		return err
	}
	if err := printNow(w, watch); err != nil {
		return err
	}
	return printStatus(w, status)
}

// printNow shows what goes on: a sentence for each shield, and the rates.
func printNow(w io.Writer, watch adminapi.Watch) error {
	if len(watch.Shields) == 0 {
		return nil
	}
	for _, s := range watch.Shields {
		if _, err := fmt.Fprintln(w, s.Says); err != nil {
			return err
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nNOW\tARRIVALS\tADMITTED\tREFUSED\tWAITING\tUNTIL\n")
	for _, s := range watch.Shields {
		if d := s.ShieldDetails; d != nil {
			refused, mark := d.Lately.Refused, ""
			if s.Mode != "enforce" {
				refused, mark = d.Lately.Observed, " (observed)"
			}
			clients, until := waiting(d.Waiting)
			fmt.Fprintf(t, "%s\t%s\t%s\t%s%s\t%s\t%s\n", s.Name, each(d.Lately.Arrivals), each(d.Lately.Admitted), rates(refused), mark, clients, until)
		}
	}
	fmt.Fprintln(t)
	return t.Flush()
}

// each writes a rate.
func each(v float64) string { return fmt.Sprintf("%.1f/s", v) }

// rates lists rates with their names, the highest first.
func rates(of map[string]float64) string {
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	var list []string
	for _, name := range names {
		if of[name] > 0 {
			list = append(list, each(of[name])+" "+name)
		}
	}
	return cmp.Or(strings.Join(list, ", "), "0.0/s")
}

// waiting says how many clients are to come back, and when the last of them will have.
func waiting(w *adminapi.WaitingWatch) (clients, until string) {
	switch {
	case w == nil:
		return "0", "-"
	case w.Over < 0:
		return fmt.Sprintf("%.0f", w.Clients), "not known"
	}
	return fmt.Sprintf("%.0f", w.Clients), "in " + oncall.Time(time.Duration(w.Over*float64(time.Second)))
}

// printStore shows the store, and returns an error unless it answers.
func printStore(w io.Writer, status adminapi.Status) error {
	if status.Store == nil {
		return errors.New("the running config has no store")
	}
	if err := printSections(w, storeText, status); err != nil || status.Store.Up {
		return err
	}
	return errors.New("the store does not answer in time")
}

// storeText shows what replicas share.
var storeText = template.Must(template.New("store").Funcs(template.FuncMap{"ms1": ms1, "counts": parts[uint64]}).Parse(`
{{- define "sharing"}}{{.Replicas}} │ {{if .Alone}}ALONE{{else}}together{{end}} │ {{.Unit}}{{range .Others}}
 │ {{.Replicas}} │ DIFFER │ {{.What}}{{end}}{{end}}
{{- with .Store}}STORE │ PREFIX │ STATE │ ROUND TRIP │ ALONE IN ALL │ EXCHANGES │ LAST ERROR
{{.Address}} │ {{.Prefix}} │ {{if .Up}}up{{else}}LOST{{end}} for {{printf "%.0f s" .ForSeconds}} │ {{ms1 .RTTSeconds}} │ {{printf "%.1f s" .AloneSeconds}} │ {{counts .Exchanges}} │ {{.Error}}
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
LINE │ BACKLOG │ DEFERRED │ SPARE │ HELD │ PROMISED │ KEPT │ LATE │ NO-SHOW │ BROKEN │ EARLY
{{range $s := .Shields}}{{with .Line}}{{if or .Promises .Deferrals}}{{$s.Name}} │ {{printf "%.1f s" .BacklogSeconds}} │ {{.Deferred}} │
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
func printStatus(w io.Writer, status adminapi.Status) error {
	if len(status.Shields) == 0 {
		_, err := fmt.Fprintln(w, "The running config has no shield.")
		return err
	}
	err := printSections(w, statusText, status)
	if err == nil && len(status.Overrides) > 0 {
		fmt.Fprintln(w)
		err = printOverrides(w, status.Overrides)
	}
	if err == nil && status.Store != nil {
		fmt.Fprintln(w)
		err = printSections(w, storeText, status)
	}
	return err
}

func printSections(w io.Writer, as *template.Template, status adminapi.Status) error {
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

func ms(seconds float64) string { return fmt.Sprintf("%.0f ms", 1000*seconds) }

func rateText(r adminapi.RateStatus) string {
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
