// Command promql reads PromQL expressions, one per line, and prints for each the names of the metrics
// that it selects, one line each, separated by spaces. A line that is no PromQL is an error.
package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	failed := false
	for lines.Scan() {
		names, err := metrics(lines.Text())
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", lines.Text(), err)
			failed = true
		}
		fmt.Println(strings.Join(names, " "))
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		failed = true
	}
	if failed {
		os.Exit(1)
	}
}

// metrics returns the names of the metrics in a PromQL expression, sorted, each once.
func metrics(expression string) ([]string, error) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		return nil, err
	}
	var names []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names), nil
}
