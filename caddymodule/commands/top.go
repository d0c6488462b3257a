package commands

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "top [--shield <name>] [--address <address>]",
		Example: `  $ shield top --shield shop`,
		Short:   "Watch a running shield in your terminal",
		Long: `
Watch the live page in your terminal. It shows one sentence on what is going on, the
last seconds of each figure, active overrides, and the clients rejected most. With
several shields, you see the figures of the one in the most trouble. To see those of
another, name it with --shield.

Press Ctrl-C to quit. In a pipe or script, use "status" instead.
`,
		Args: Args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !term.IsTerminal(int(os.Stdout.Fd())) {
				return fmt.Errorf(`stdout is not a terminal; use "%s status"`, cmd.Parent().CommandPath())
			}
			var last adminapi.Watch
			return follow(cmd, time.Second, func(watch adminapi.Watch, err error) {
				if err == nil {
					last = watch
				}
				width, height, _ := term.GetSize(int(os.Stdout.Fd()))
				text := topText(&last, err, cmp.Or(width, 80), cmp.Or(height, 24))
				// From the upper left corner, each line cut at the terminal's end, and what was below erased.
				fmt.Print("\x1b[?7l\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[K\n\x1b[J\x1b[?7h")
			})
		},
	}
	addressFlag(cmd)
	cmd.DisableFlagsInUseLine = true
	cmd.Flags().String("shield", "", "`name` of the shield to show")
	return cmd
}

// follow calls show with what the admin endpoint says in each second, or with why it does not answer; then it asks
// again after a pause, as at a reload, which ends the response. If the first request fails, it is over.
func follow(cmd *cobra.Command, pause time.Duration, show func(adminapi.Watch, error)) error {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	query := url.Values{"follow": {"1"}, "all": {"1"}, "last": {"300"}, "shield": {flags.String("shield")}} // more seconds than terminals are wide
	for first := true; ; first = false {
		resp, err := request{method: http.MethodGet, path: "/shield/live?" + query.Encode()}.send(flags)
		if err != nil && first {
			return err
		}
		if err == nil {
			for lines := json.NewDecoder(resp.Body); err == nil; {
				var watch adminapi.Watch
				if err = lines.Decode(&watch); err == nil {
					show(watch, nil)
				}
			}
			resp.Body.Close()
		}
		if !errors.Is(err, io.EOF) {
			show(adminapi.Watch{}, err)
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// colors of the terminal, by how much a sentence matters; the levels from the one that matters least.
var (
	levels = []oncall.Level{oncall.Good, oncall.Warn, oncall.Bad}
	colors = map[oncall.Level]string{oncall.Good: "\x1b[32m", oncall.Warn: "\x1b[33m", oncall.Bad: "\x1b[31m"}
)

// topText returns the screen for what was told last, and why nothing has been since, if so: no more lines than it has, of
// which the last is empty. The figures are those of the shield that is asked for, or that matters most.
func topText(watch *adminapi.Watch, err error, width, height int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "shield top  %s  %s", watch.Host, time.UnixMilli(watch.Now).Format(time.TimeOnly))
	if err != nil {
		fmt.Fprintf(&b, "  no response since then: %v", err)
	}
	b.WriteString("\n\n")
	var most *oncall.Situation
	for i := range watch.Shields {
		one := &watch.Shields[i]
		fmt.Fprintf(&b, "%s%s\x1b[0m\n", colors[one.Level], filled(one.Says, width))
		if one.Facts != nil && (most == nil || slices.Index(levels, one.Level) > slices.Index(levels, most.Level)) {
			most = one
		}
	}
	if most == nil {
		b.WriteString("The running config has no shield.\n")
	} else {
		fmt.Fprintf(&b, "\n%s\n", most.Name)
		writeCourses(&b, watch.Samples[most.Name].Columns, width)
	}
	if last := watch.Overrides[max(0, len(watch.Overrides)-3):]; len(last) > 0 { // the latest. Ours: the screen has room for the clients, too
		b.WriteString("\n")
		_ = printOverrides(&b, last)
	}
	if watch.Who != nil {
		b.WriteString("\n")
		_ = printWho(&b, watch.Who)
	}
	lines := strings.Split(b.String(), "\n")
	return strings.Join(lines[:max(0, min(len(lines), height)-1)], "\n")
}

// filled returns a text in lines of a width.
func filled(text string, width int) string {
	var b strings.Builder
	at := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case at > 0 && at+len(word) >= width:
			b.WriteByte('\n')
			at = 0
		case at > 0:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}

// writeCourses writes the columns of a history, by name, with their last value and their course until now.
func writeCourses(w io.Writer, columns map[string][]uint32, width int) {
	wide := max(1, width-37)
	for _, name := range slices.Sorted(maps.Keys(columns)) {
		values := columns[name]
		shown := values[max(0, len(values)-wide):]
		fmt.Fprintf(w, "%-21.21s%14d  %*s\n", name, values[len(values)-1], wide, oncall.Bars(shown, slices.Max(shown)))
	}
}
