package commands

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top [--address <interface>] [--shield <name>]",
		Short: "Shows what a running shield does, second by second",
		Long: `
Shows the live page of a running instance in a terminal: what is going on in one
sentence, the last seconds of each figure, the overrides in force, and the clients
that are rejected most. The figures are those of one shield: that of --shield, or
the one that matters most at the beginning. Ctrl-C ends it.
It needs a terminal; the command status prints to anything.
`,
		Args: Args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !term.IsTerminal(int(os.Stdout.Fd())) {
				return fmt.Errorf(`the output is no terminal; want one, or "%s status"`, cmd.Parent().CommandPath())
			}
			screen := topScreen{chosen: flagsOf(cmd).String("shield")}
			return follow(cmd, time.Second, func(watch adminapi.Watch, err error) error {
				if err := screen.take(watch, err); err != nil {
					return err
				}
				width, height, _ := term.GetSize(int(os.Stdout.Fd()))
				// From the upper left corner, each line cut at the terminal's end, and what was below erased.
				text := strings.ReplaceAll(screen.text(cmp.Or(width, 80), cmp.Or(height, 24)), "\n", "\x1b[K\n")
				_, err = fmt.Print("\x1b[?7l\x1b[H" + text + "\x1b[K\n\x1b[J\x1b[?7h")
				return err
			})
		},
	}
	cmd.Flags().String("address", "", "address of the admin endpoint, if it is not "+caddy.DefaultAdminListen)
	cmd.Flags().String("shield", "", "the shield whose figures are shown")
	return cmd
}

// topShows is how many seconds are asked for: more than terminals are wide.
const topShows = 300

// follow calls show with what the admin endpoint says in each second, or with why it does not answer; then it asks
// again after a pause, as at a reload, which ends the response. If the first request fails, or show, it is over.
func follow(cmd *cobra.Command, pause time.Duration, show func(adminapi.Watch, error) error) error {
	for first := true; ; first = false {
		resp, err := openAdmin(flagsOf(cmd), http.MethodGet, fmt.Sprintf("/shield/live?follow=1&all=1&last=%d", topShows), nil)
		if err == nil {
			for lines := json.NewDecoder(resp.Body); err == nil; {
				var watch adminapi.Watch
				if err = lines.Decode(&watch); err != nil {
					break
				}
				if failed := show(watch, nil); failed != nil {
					resp.Body.Close()
					return failed
				}
			}
			resp.Body.Close()
		} else if first {
			return err
		}
		if !errors.Is(err, io.EOF) {
			if err := show(adminapi.Watch{}, err); err != nil {
				return err
			}
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// A topScreen is what top shows.
type topScreen struct {
	watch  adminapi.Watch
	err    error  // of the last second; nil: it was told
	chosen string // shield; "": the one that matters most
}

// take takes what was told. The state before stays if there is an error. The result is an error of the arguments.
func (s *topScreen) take(watch adminapi.Watch, err error) error {
	first := s.watch.Boot == ""
	if s.err = err; err != nil {
		return nil
	}
	s.watch = watch
	levels := []oncall.Level{oncall.Good, oncall.Warn, oncall.Bad}
	if list := watch.Shields; s.chosen == "" && len(list) > 0 {
		s.chosen = slices.MaxFunc(list, func(a, b oncall.Situation) int {
			return cmp.Compare(slices.Index(levels, a.Level), slices.Index(levels, b.Level))
		}).Name
	}
	if s.chosen != "" && first && s.shield() == nil {
		var names []string
		for _, one := range watch.Shields {
			names = append(names, one.Name)
		}
		return fmt.Errorf("--shield is %q; want one of %s", s.chosen, strings.Join(names, ", "))
	}
	return nil
}

// shield returns the chosen one; nil if there is none.
func (s *topScreen) shield() *oncall.Situation {
	i := slices.IndexFunc(s.watch.Shields, func(one oncall.Situation) bool { return one.Name == s.chosen })
	if i < 0 {
		return nil
	}
	return &s.watch.Shields[i]
}

// colors of the terminal, by how much a sentence matters.
var colors = map[oncall.Level]string{oncall.Good: "\x1b[32m", oncall.Warn: "\x1b[33m", oncall.Bad: "\x1b[31m"}

// text returns the screen: no more lines than it has, of which the last is empty.
func (s *topScreen) text(width, height int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "shield top  %s  %s", s.watch.Host, time.UnixMilli(s.watch.Now).Format(time.TimeOnly))
	if s.err != nil {
		fmt.Fprintf(&b, "  no response since then: %v", s.err)
	}
	b.WriteString("\n\n")
	for i := range s.watch.Shields {
		one := &s.watch.Shields[i]
		says := one.Says
		if one.Observes() {
			says += " (mode " + one.Mode + ")"
		}
		for line := range wrapped(says, width) {
			fmt.Fprintf(&b, "%s%s\x1b[0m\n", colors[one.Level], line)
		}
	}
	switch one := s.shield(); {
	case len(s.watch.Shields) == 0:
		b.WriteString("The running config has no shield.\n")
	case one == nil || one.Facts == nil: // a config without it has been loaded
		fmt.Fprintf(&b, "\nThe running config has no shield %q any more.\n", s.chosen)
	default:
		fmt.Fprintf(&b, "\n%s\n", one.Name)
		s.figures(&b, one, width)
		s.lists(&b, one.Name)
	}
	lines := strings.Split(b.String(), "\n")
	return strings.Join(lines[:max(0, min(len(lines), height)-1)], "\n")
}

// wrapped returns the lines of a text.
func wrapped(text string, width int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(text) > width {
			cut := strings.LastIndexByte(text[:width], ' ')
			if cut < 1 {
				cut = width
			}
			if !yield(text[:cut]) {
				return
			}
			text = strings.TrimSpace(text[cut:])
		}
		yield(text)
	}
}

// figures has the columns of the history that are not all zero, by name, with their course until now, and what waits.
func (s *topScreen) figures(w io.Writer, one *oncall.Situation, width int) {
	samples := s.watch.Samples[one.Name].Columns
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		values := samples[name]
		wide := max(0, width-37)
		bars := make([]int, wide) // to the right
		for i := range min(wide, len(values)) {
			bars[wide-1-i] = int(values[len(values)-1-i])
		}
		course := ""
		if wide > 0 {
			course = oncall.Bars(bars, slices.Max(bars))
		}
		fmt.Fprintf(w, "%-21.21s%14d  %s\n", name, values[len(values)-1], course)
	}
	told := func(what, value string) { fmt.Fprintf(w, "%-21s%14s\n", what, value) }
	if limit := one.Limit(); limit != "" {
		told("limit in flight", limit)
	}
	if w := one.Waiting; w != nil {
		told("waiting", fmt.Sprintf("%.0f clients; the end is %s", w.Clients, w.Until()))
	}
	if h := one.Herd; h != nil {
		told("herd", fmt.Sprintf("%s of %.0f", h.Kind, h.Size))
	}
	if share := one.Sharing; share != nil && share.Alone {
		told("replicas", fmt.Sprintf("%d alone: the store does not answer", share.Replicas))
	} else if share != nil {
		told("replicas", fmt.Sprintf("%d together", share.Replicas))
	}
}

// topOverrides is how many overrides are shown. Ours: the screen has room for the clients, too.
const topOverrides = 3

// lists has what the commands overrides and who print of a shield: the latest overrides, and the clients.
func (s *topScreen) lists(w io.Writer, shield string) {
	mine := slices.DeleteFunc(slices.Clone(s.watch.Overrides), func(is adminapi.Override) bool { return !slices.Contains(is.Shields, shield) })
	if mine = mine[max(0, len(mine)-topOverrides):]; len(mine) > 0 {
		fmt.Fprintln(w)
		_ = printOverrides(w, mine)
	}
	if who := s.watch.Who; who != nil {
		only := slices.DeleteFunc(slices.Clone(who.Shields), func(w adminapi.WhoShield) bool { return w.Name != shield })
		fmt.Fprintln(w)
		_ = printWho(w, &adminapi.WhoStatus{Shields: only})
	}
}
