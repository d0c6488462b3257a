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
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

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
	tables := map[string][]map[string]string{}
	for _, object := range objects {
		name := fmt.Sprint(cmp.Or(object["name"], object["address"]))
		add := func(table string, value any) {
			row := map[string]string{}
			if flatten(row, "", value); len(row) > 0 {
				row[""] = name
				tables[table] = append(tables[table], row)
			}
		}
		for _, beside := range []string{"name", "address", "says", "level", "settings"} { // shown elsewhere
			delete(object, beside)
		}
		for field, value := range object {
			switch value := value.(type) {
			case map[string]any:
				add(field, value)
			case []any:
				for _, one := range value {
					add(field, one)
				}
			default:
				continue
			}
			delete(object, field)
		}
		add("", object)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, of := range slices.Sorted(maps.Keys(tables)) {
		if head := cmp.Or(of, title); head != "" {
			printTable(t, head, tables[of])
		}
	}
	return t.Flush()
}

// printTable prints rows of named cells. The cell without a name says what the row is of.
func printTable(t *tabwriter.Writer, title string, rows []map[string]string) {
	columns := map[string]bool{}
	for _, row := range rows {
		for name := range row {
			columns[name] = true
		}
	}
	first := []string{"client", "name", ""} // of what the row is
	names := slices.SortedFunc(maps.Keys(columns), func(a, b string) int {
		return cmp.Or(cmp.Compare(slices.Index(first, b), slices.Index(first, a)), cmp.Compare(a, b))
	})
	fmt.Fprintln(t, strings.ToUpper(title+strings.Join(names, "\t")))
	for _, row := range rows {
		for _, name := range names {
			fmt.Fprint(t, adminapi.Shown(cmp.Or(row[name], "-")), "\t")
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t)
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

// printStatus writes what each shield does in a sentence, and then all that has a field that is not 0.
func printStatus(w io.Writer, status *adminapi.Status) error {
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

// printStore shows the store and what replicas share, and returns an error unless it answers.
func printStore(w io.Writer, status *adminapi.Status) error {
	if status.Store == nil {
		return errors.New("the running config has no store")
	}
	var shared []map[string]any
	for _, s := range status.Shields {
		shared = append(shared, map[string]any{"name": s.Name, "sharing": s.Sharing})
	}
	for _, z := range status.Zones {
		shared = append(shared, map[string]any{"name": z.Name, "sharing": z.Sharing})
	}
	if err := cmp.Or(printTables(w, "store", []any{status.Store}), printTables(w, "", shared)); err != nil || status.Store.Up {
		return err
	}
	return errors.New("the store isn't responding in time")
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
		return "", fmt.Errorf("the page is at %s, which no browser can open; forward a port to it, or have it listen on one", page)
	}
	if ip := net.ParseIP(at.Host); at.Host == "" || ip != nil && ip.IsUnspecified() {
		at.Host = "localhost"
	}
	return "http://" + at.JoinHostPort(0) + "/shield/", nil
}

// printWho shows the lists that have a client.
func printWho(w io.Writer, who *adminapi.WhoStatus) error {
	lists := slices.Clone(who.Shields)
	for _, z := range who.Zones {
		z.Name = "zone " + z.Name
		lists = append(lists, z)
	}
	if !slices.ContainsFunc(lists, func(l adminapi.WhoList) bool { return len(l.Rejected) > 0 }) {
		_, err := fmt.Fprintln(w, "No client was rejected in the last minute.")
		return err
	}
	return printTables(w, "", lists)
}

// printExplanations says what a request of the client would get of each shield, and then all that this is made of.
func printExplanations(w io.Writer, e *adminapi.ExplainStatus) error {
	for i := range e.Shields {
		fmt.Fprintf(w, "%s: a request of %s now %s.\n\n", e.Shields[i].Name, adminapi.Shown(e.Client), verdict(&e.Shields[i]))
		if err := printTables(w, "client", e.Shields[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// verdict says what a request would get.
func verdict(e *adminapi.ExplanationStatus) string {
	why := e.Reason
	if e.Zone != "" {
		why += " of zone " + e.Zone
	}
	switch {
	case e.Would == "queue":
		return "would wait for a moment: " + why
	case e.Would == "admit" && why != "":
		return "would be admitted, as the mode is observe; otherwise rejected: " + why
	case e.Would == "admit":
		return "would be admitted"
	case e.RetryAfter == 0:
		return fmt.Sprintf("would be rejected with %d and told not to come back: %s", e.Status, why)
	}
	return fmt.Sprintf("would be rejected with %d and Retry-After %d: %s", e.Status, e.RetryAfter, why)
}

// printForgiven says what was held against the client.
func printForgiven(w io.Writer, is *adminapi.ForgivenStatus) error {
	for _, s := range is.Shields {
		var what []string
		for _, z := range s.Zones {
			what = append(what, "its bucket in zone "+z)
		}
		if s.Promises > 0 {
			what = append(what, strings.TrimSuffix(fmt.Sprintf("%d appointments", s.Promises), map[bool]string{true: "s"}[s.Promises == 1]))
		}
		if s.Blocked {
			what = append(what, "its block")
		}
		fmt.Fprintf(w, "%s: %s is forgiven: %s.\n", s.Name, adminapi.Shown(is.Client), cmp.Or(strings.Join(what, ", "), "nothing was held against it"))
		for of, key := range s.Unknown {
			fmt.Fprintf(w, "%s: not in %s, whose key is %s\n", s.Name, of, key)
		}
	}
	return nil
}

func printOverrides(w io.Writer, list []adminapi.Override) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "No override is in force.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "OVERRIDE\tWHAT\tLEFT\tASKED BY")
	for i := range list {
		is := &list[i]
		left := time.Duration(is.Left * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(t, "%s\t%s\t%v\t%s\n", is.ID, overrideText(is), left, adminapi.Shown(is.By))
	}
	return t.Flush()
}

// overrideText says what an override does.
func overrideText(is *adminapi.Override) string {
	switch is.Kind {
	case "block":
		return fmt.Sprintf("%s is blocked in %s", adminapi.Shown(is.Client), is.Where())
	case "mode":
		return fmt.Sprintf("mode %s of %s", is.Value, is.Where())
	}
	return fmt.Sprintf("%s %s of %s", is.Setting, is.Value, is.Where())
}
