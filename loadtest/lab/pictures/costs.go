package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A cost is a row of benchstat: a median for each column, of one unit.
type cost struct {
	name, unit string
	values     []string // "5.739 µs", with the change from the first column: "7.069 µs (+23.17%)"
}

var (
	// benchstat writes a median with its confidence interval, then the change if it is significant.
	medianOf = regexp.MustCompile(`([0-9.]+)([a-zA-Zµ]*) ± +(?:[0-9]+%|∞)(?: +[¹²])?(?: +([~+-][0-9.]*%?) \(p=[^)]*\))?`)
	cpus     = regexp.MustCompile(`-[0-9]+$`)
	suffixes = map[string]string{"sec/op": "s", "cpu-sec/op": "s"}
)

// readCosts reads what benchstat prints as text, and returns the names of the columns of each of
// its files or values, and the rows.
func readCosts(text string) (columns [][]string, rows [][]cost, err error) {
	var header []string
	unit := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if fields := strings.Split(line, "│"); len(fields) > 2 {
			var names []string
			for _, field := range fields[1 : len(fields)-1] {
				names = append(names, strings.TrimSpace(field))
			}
			if strings.Contains(line, "/op") {
				unit = strings.Fields(names[0])[0]
			} else if header = names; len(columns) == 0 || !slices.Equal(header, columns[len(columns)-1]) {
				columns, rows = append(columns, header), append(rows, nil)
			}
			continue
		}
		name, _, _ := strings.Cut(line, " ")
		medians := medianOf.FindAllStringSubmatch(line, -1)
		if len(medians) == 0 || name == "geomean" {
			continue
		}
		if len(medians) != len(header) {
			return nil, nil, fmt.Errorf("%q has %d values; must be %d", line, len(medians), len(header))
		}
		row := cost{name: cpus.ReplaceAllString(name, ""), unit: unit}
		for _, m := range medians {
			value := m[1]
			if s := m[2] + suffixes[unit]; s != "" {
				value += " " + s
			} else if value = strings.TrimRight(strings.TrimRight(value, "0"), "."); value == "" {
				value = "0"
			}
			if m[3] != "" && m[3] != "~" {
				value += " (" + m[3] + ")"
			}
			row.values = append(row.values, value)
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], row)
	}
	if len(rows) == 0 {
		return nil, nil, errors.New("benchstat has printed no table")
	}
	return columns, rows, nil
}

// handlerCosts are the tables of benchmarks of several handlers: rows of CPU time and of allocations.
func handlerCosts(text string) (string, error) {
	columns, rows, err := readCosts(text)
	var b strings.Builder
	for i, names := range columns {
		fmt.Fprintf(&b, "| benchmark | per request | %s |\n|---|---|%s\n", strings.Join(names, " | "), strings.Repeat("---:|", len(names)))
		for _, unit := range []string{"cpu-sec/op", "allocs/op"} {
			for _, row := range rows[i] {
				if row.unit == unit {
					name := strings.NewReplacer("next=", "", "/", ", ").Replace(row.name)
					fmt.Fprintf(&b, "| %s | %s | %s |\n", name, map[string]string{"cpu-sec/op": "CPU", "allocs/op": "allocations"}[unit], strings.Join(row.values, " | "))
				}
			}
		}
		b.WriteString("\n")
	}
	return b.String(), err
}

// partCosts is the table of benchmarks that run alone and in parallel: a row for each benchmark.
func partCosts(text string) (string, error) {
	_, rows, err := readCosts(text)
	var names []string
	cells := map[string]*[3]string{} // time alone, time in parallel, allocations
	for _, row := range slices.Concat(rows...) {
		name := strings.Replace(strings.Replace(row.name, "/alone", "", 1), "/parallel", "", 1)
		if cells[name] == nil {
			names, cells[name] = append(names, name), new([3]string)
		}
		switch c := cells[name]; {
		case row.unit == "allocs/op":
			c[2] = row.values[0]
		case strings.Contains(row.name, "/parallel"):
			c[1] = row.values[0]
		default:
			c[0] = row.values[0]
		}
	}
	var b strings.Builder
	b.WriteString("| benchmark | alone | parallel | allocations |\n|---|---:|---:|---:|\n")
	for _, name := range names {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, strings.Join(cells[name][:], " | "))
	}
	return b.String(), err
}
