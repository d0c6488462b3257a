package main

import "testing"

// Tables of costs have benchstat's figures, each in its row and column.
func TestCosts(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"handlers": {`goos: linux
                                    │     none     │               shield                │
                                    │  cpu-sec/op  │ cpu-sec/op   vs base                │
Admit/level=pipeline/next=respond-2   5.739µ ±  4%   7.069µ ± 5%  +23.17% (p=0.002 n=6)
Admit/level=pipeline/next=proxy-2     51.44µ ± ∞ ¹   53.05µ ± 9%        ~ (p=0.589 n=6)
geomean                               25.95µ         28.46µ        +9.67%

                                    │    none    │              shield               │
                                    │ allocs/op  │ allocs/op   vs base               │
Admit/level=pipeline/next=respond-2   50.00 ± 0%   50.00 ± 0%       ~ (p=1.000 n=6) ¹
¹ all samples are equal
`, `| benchmark | per request | none | shield |
|---|---|---:|---:|
| Admit, pipeline, respond | CPU | 5.739 µs | 7.069 µs (+23.17 %) |
| Admit, pipeline, proxy | CPU | 51.44 µs | 53.05 µs |
| Admit, pipeline, respond | allocations | 50 | 50 |

`},
		"parts": {`                                    │       shield        │
                                    │      allocs/op      │
Take/keys=1/admit/alone-2                0.000 ± 0%
Take/keys=1/admit/parallel-2             0.000 ± 0%
Write/known-2                            10.00 ± 0%
geomean                                             ¹

                                    │       shield        │
                                    │       sec/op        │
Take/keys=1/admit/alone-2                32.79n ±  3%
Take/keys=1/admit/parallel-2             42.09n ± 11%
Write/known-2                            327.4n ±  3%
`, "| benchmark | alone | parallel | allocations |\n|---|---:|---:|---:|\n" +
			"| `Take/keys=1/admit` | 32.79 ns | 42.09 ns | 0 |\n| `Write/known` | 327.4 ns |  | 10 |\n"},
	} {
		if got, err := costs[name](c.text); err != nil || got != c.want {
			t.Errorf("%s: got\n%s(%v), want\n%s", name, got, err, c.want)
		}
		if got, err := costs[name]("no table"); err == nil {
			t.Errorf("%s: no error for a text without a table, but %q", name, got)
		}
	}
	if got, err := handlerCosts("  │ none │ shield │\n  │ sec/op │ sec/op vs base │\nAdmit-2  5.739µ ± 4%\n"); err == nil {
		t.Errorf("no error for a row that lacks a value, but %q", got)
	}
}
