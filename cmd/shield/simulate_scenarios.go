package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A situation is a simulation with a name: flags that it sets unless they are given, and
// what it compares unless anything else is.
type situation struct {
	name, about string
	flags       string // as on the command line, each with a value
	compare     []string
	config      string // that "scenario" in compare stands for; "": none
}

// situations are what backends meet. A test plays each of them.
var situations = []situation{
	{
		name: "nat", about: "1,000 clients at once behind one address, beside others: a company, a CDN, a gateway. Each tries 4 times.",
		flags:   "--clients 1000 --addresses 1 --policy exact*4",
		compare: []string{"fixed:1", "shield"},
	},
	{
		name: "gateway", about: "Five times as many requests as the backend can serve, from ten addresses, by clients that never return.",
		flags:   "--clients 0 --background 800/s --background-addresses 10 --policy give-up --workers 8 --service 50ms --warmup 10s --duration 1m",
		compare: []string{"none", "shield", "shield-adaptive"},
	},
	{
		name: "flood", about: "200 new addresses per second that ask once and never return, beside 40 clients per second that come when they are told.",
		flags:   "--clients 0 --background 240/s --policy exact:40,give-up:200 --workers 10 --service 160ms --duration 2m",
		compare: []string{"fixed:1", "shield"},
	},
	{
		name: "quota", about: "One address that sends 20 times its quota from 20 s before a crowd of 600 comes to the end.",
		flags:   "--clients 600 --within 250ms --background 100/s --background-addresses 1 --background-policy give-up --workers 10 --service 160ms --warmup 20s --duration 1m",
		compare: []string{"shield", "scenario"},
		config:  "shield {\n\tzone per_client {\n\t\trate 5/s\n\t}\n\tcapacity 50/s burst 30\n}\n",
	},
	{
		name: "hangup", about: "Clients that hang up after 50 ms, before a backend that works on: 2.5 times as many as it can serve.",
		flags:   "--clients 0 --background 200/s --policy give-up --timeout 50ms --workers 8 --service 100ms --warmup 10s --duration 1m",
		compare: []string{"none", "scenario"},
		config:  "shield {\n\tconcurrency 8\n}\n",
	},
	{
		name: "stream", about: "Answers that stream for 10 s, as language models send them: twice as many as 20 workers can serve.",
		flags:   "--clients 0 --background 4/s --policy exact*4 --timeout 2m --workers 20 --service 10s --first-byte 300ms --warmup 1m --duration 3m",
		compare: []string{"none", "shield-adaptive", "scenario"},
		config:  "shield {\n\tconcurrency 20\n}\n",
	},
	{
		name: "impatient", about: "1,000 clients at once that wait for 250 ms only, and so do not hear a refusal that is held back for longer.",
		flags:   "--clients 1000 --timeout 250ms --distribution deterministic",
		compare: []string{"fixed:1", "shield"},
	},
}

func situationNames() string {
	var names []string
	for _, s := range situations {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// writeSituations explains all situations, for --scenario list.
func writeSituations(w io.Writer) error {
	var b strings.Builder
	for _, s := range situations {
		fmt.Fprintf(&b, "%s\n%s", s.name, indent(wrap(s.about, 76)))
		b.WriteString(indent(wrap("--compare "+strings.Join(s.compare, ",")+" "+s.flags, 76)))
		if s.config != "" {
			b.WriteString("  scenario is:\n" + indent(strings.ReplaceAll(s.config, "\t", "  ")))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func indent(text string) string {
	return "  " + strings.TrimSuffix(strings.ReplaceAll(text, "\n", "\n  "), "  ")
}

// situate sets those flags of the situation that are not given, and returns its config.
func (s *simulation) situate(args []string) (config string, err error) {
	if s.scenario == "" {
		return "", nil
	}
	i := slices.IndexFunc(situations, func(known situation) bool { return known.name == s.scenario })
	if i < 0 {
		return "", fmt.Errorf("--scenario is %q; want one of %s, or list", s.scenario, situationNames())
	}
	known := situations[i]
	for flag := range slices.Chunk(strings.Fields(known.flags), 2) {
		if name := strings.TrimPrefix(flag[0], "--"); !s.changed(name) {
			if err := s.set(name, flag[1]); err != nil {
				return "", err
			}
		}
	}
	if s.config == "" && len(s.compare)+len(args) == 0 {
		s.compare = known.compare
	}
	return known.config, nil
}
