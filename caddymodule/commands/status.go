package commands

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [--address <interface>] [--json] [--open] [--store]",
		Short: "Shows what a running shield does",
		Long: `
Asks the admin endpoint of a running instance. First comes what goes on now, in
one sentence; then the rates of the last ten seconds, and the totals since each
zone and shield came into the config.

With --json it prints the JSON of the admin endpoint. With --store it shows the
store that replicas share, and the exit code is 1 unless it answers. With --open
it prints the address of the page that shows the same in a browser, and the last
ten minutes. The command top shows that page in the terminal.

The tables have the fields of that JSON that are not 0: one has the plain fields
of all shields, and each other one the fields of one object in them.

LATELY    rates per second of the last ten seconds
WAITING   rejected clients that are to come back; OVER_SECONDS: until the last of
          them will have done so, -1: that cannot be told
REJECTED  by reason; OBSERVED: admitted, but would have been rejected
SEARCH    how an adaptive limit was found: its last change and why; the latency of
          the backend, the baseline without queueing there; DISCONNECTED: requests whose
          client is gone, but on which the backend still works
QUEUE     requests that wait for a permit in flight, and how those before have left
CLASSES   decisions by class; SHARE: of the limit, while higher classes need it all
LINE      the appointments: the backlog until the last of them; DEFERRED clients
          have none; SPARE: rejected clients that the backend can serve; KEPT, LATE,
          NO_SHOW: how clients came; BROKEN: they came on time and were rejected;
          EARLY: before their time
FAST_REJECT  rejections that the listener wrapper has answered
CLIENTS   rejected clients that are remembered, by how they retry
ZONE      quotas; KEYS: clients that have used some of theirs
`,
		Args: Args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error { return showStatus(cmd) },
	}
	adminFlags(cmd)
	cmd.Flags().Bool("open", false, "print the address of the page for a browser")
	cmd.Flags().Bool("store", false, "show the store that replicas share, and fail unless it answers")
	return cmd
}

// showStatus shows the status, or a part of it.
func showStatus(cmd *cobra.Command) error {
	var status adminapi.Status
	if done, err := ask(cmd, http.MethodGet, "/shield/", nil, &status); done || err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	switch {
	case flagsOf(cmd).Bool("open"):
		url, err := pageAt(status.Page)
		if err == nil {
			_, err = fmt.Fprintln(w, url)
		}
		return err
	case flagsOf(cmd).Bool("store"):
		return printStore(w, status)
	}
	return printStatus(w, status)
}

// printStore shows the store and what replicas share, and returns an error unless it answers.
func printStore(w io.Writer, status adminapi.Status) error {
	if status.Store == nil {
		return errors.New("the running config has no store")
	}
	type sharing struct {
		Name    string          `json:"name"`
		Sharing *oncall.Sharing `json:"sharing,omitempty"`
	}
	var shared []sharing
	for _, s := range status.Shields {
		shared = append(shared, sharing{s.Name, s.Sharing})
	}
	for _, z := range status.Zones {
		shared = append(shared, sharing{z.Name, z.Sharing})
	}
	if err := cmp.Or(printTables(w, "store", []any{status.Store}), printTables(w, "", shared)); err != nil || status.Store.Up {
		return err
	}
	return errors.New("the store does not answer in time")
}

// printStatus writes what each shield does in a sentence, and then all that has a field that is not 0.
func printStatus(w io.Writer, status adminapi.Status) error {
	if len(status.Shields) == 0 {
		_, err := fmt.Fprintln(w, "The running config has no shield.")
		return err
	}
	for _, s := range status.Shields {
		if s.Says != "" {
			fmt.Fprintln(w, s.Says)
		}
	}
	fmt.Fprintln(w)
	err := cmp.Or(printTables(w, "shield", status.Shields), printTables(w, "zone", status.Zones))
	if err == nil && len(status.Overrides) > 0 {
		err = printOverrides(w, status.Overrides)
	}
	if err == nil && status.Store != nil {
		err = printTables(w, "store", []any{status.Store})
	}
	return err
}

// A table has rows of named cells.
type table []map[string]string

// printTables prints a list of objects: their plain fields as a table of that title, unless it is "", and the
// objects in them as one table each. The first column is the object's name, or its address.
func printTables(w io.Writer, title string, list any) error {
	text, err := json.Marshal(list)
	var objects []map[string]any
	if err == nil {
		err = json.Unmarshal(text, &objects)
	}
	if err != nil {
		return err
	}
	tables := map[string]table{}
	for _, object := range objects {
		name := fmt.Sprint(cmp.Or(object["name"], object["address"]))
		for _, beside := range []string{"name", "address", "says", "level", "settings"} { // shown elsewhere
			delete(object, beside)
		}
		plain := map[string]string{}
		for field, value := range object {
			switch value := value.(type) {
			case map[string]any:
				cells := map[string]string{}
				flatten(cells, "", value)
				tables[field] = tables[field].with(name, cells)
			case []any:
				for _, one := range value {
					cells := map[string]string{}
					flatten(cells, "", one)
					tables[field] = tables[field].with(name, cells)
				}
			default:
				flatten(plain, field, value)
			}
		}
		tables[""] = tables[""].with(name, plain)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, of := range slices.Sorted(maps.Keys(tables)) {
		if head := cmp.Or(of, title); head != "" && len(tables[of]) > 0 {
			tables[of].print(t, head)
		}
	}
	return t.Flush()
}

// with adds a row, unless it is empty.
func (t table) with(name string, cells map[string]string) table {
	if len(cells) == 0 {
		return t
	}
	cells[""] = name
	return append(t, cells)
}

func (t table) print(w io.Writer, title string) {
	columns := map[string]bool{}
	for _, row := range t {
		for name := range row {
			columns[name] = true
		}
	}
	first := []string{"client", "name", ""} // of what the row is
	names := slices.SortedFunc(maps.Keys(columns), func(a, b string) int {
		return cmp.Or(cmp.Compare(slices.Index(first, b), slices.Index(first, a)), cmp.Compare(a, b))
	})
	fmt.Fprintln(w, strings.ToUpper(title+strings.Join(names, "\t")))
	for _, row := range t {
		for _, name := range names {
			fmt.Fprint(w, adminapi.Shown(cmp.Or(row[name], "-")), "\t")
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

// flatten adds the cells of a value that is not 0; those of an object have the names of its fields, after a dot.
func flatten(cells map[string]string, name string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for field, value := range v {
			flatten(cells, strings.Trim(name+"."+field, "."), value)
		}
	case string:
		if v != "" && name != "handle" { // which is for programs
			cells[name] = v
		}
	case bool:
		if v {
			cells[name] = "yes"
		}
	case float64:
		if v != 0 {
			cells[name] = strconv.FormatFloat(v, 'g', 4, 64)
		}
		if v == math.Trunc(v) && v != 0 {
			cells[name] = strconv.FormatFloat(v, 'f', 0, 64)
		}
	case []any:
		for i, value := range v {
			flatten(cells, fmt.Sprint(name, ".", i+1), value)
		}
	}
}

// pageAt returns the address of the page in a browser. page is where the config has it; "": nowhere.
func pageAt(page string) (string, error) {
	if page == "" {
		return "", errors.New("the config has no page for browsers; add this to the global options of the Caddyfile:\n" +
			"\tshield {\n\t\tpage localhost:2020\n\t}")
	}
	at, err := caddy.ParseNetworkAddressWithDefaults(page, "tcp", 2020)
	if err != nil {
		return "", err
	}
	if at.IsUnixNetwork() {
		return "", fmt.Errorf("the page is at %s, where no browser gets; forward a port to it, or have it listen at one", page)
	}
	if ip := net.ParseIP(at.Host); at.Host == "" || ip != nil && ip.IsUnspecified() {
		at.Host = "localhost"
	}
	return "http://" + at.JoinHostPort(0) + "/shield/", nil
}
