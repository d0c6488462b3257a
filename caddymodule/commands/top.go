package commands

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top [--address <interface>] [--shield <name>]",
		Short: "Shows what a running shield does, second by second",
		Long: `
Shows the live page of a running instance in a terminal: what is going on in one
sentence, the last seconds of each figure, the overrides in force, and the clients
that are refused most.
It needs a terminal; the command status --watch prints to anything.

Keys: left and right choose the shield, q ends.
`,
		Args: Args(0, 0, "none"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !term.IsTerminal(int(os.Stdout.Fd())) {
				return fmt.Errorf(`the output is no terminal; want one, or "%s status --watch"`, cmd.Parent().CommandPath())
			}
			flags := flagsOf(cmd)
			t := &top{flags: flags, screen: topScreen{chosen: flags.String("shield")}}
			if err := t.first(); err != nil {
				return err
			}
			_, err := tea.NewProgram(t).Run()
			return err
		},
	}
	cmd.Flags().String("address", "", "address of the admin endpoint, if it is not "+caddy.DefaultAdminListen)
	cmd.Flags().String("shield", "", "the shield to begin with")
	return cmd
}

// top is the program: it follows the endpoint live, and shows what it is told each second.
type top struct {
	flags  caddycmd.Flags // of the command
	screen topScreen
	live   io.ReadCloser // the answer that it follows; nil: none
	lines  *json.Decoder // of live
}

// topShows is how many seconds are asked for: more than terminals are wide.
const topShows = 300

// told is what the admin endpoint says in a second.
type told struct {
	watch adminapi.Watch
	err   error // io.EOF: the answer has ended, as at a reload
}

// first asks for the first time, so that mistakes in the arguments end the command.
func (t *top) first() error {
	answer := t.ask()
	if answer.err != nil {
		return answer.err
	}
	t.screen.take(answer)
	if c := t.screen.chosen; c != "" && t.screen.shield() == nil {
		return fmt.Errorf("--shield is %q; want one of %s", c, t.screen.names())
	}
	return nil
}

// ask returns what the endpoint says next. It begins to follow, if it does not yet.
func (t *top) ask() (answer told) {
	if t.live == nil {
		resp, err := openAdmin(t.flags, http.MethodGet, fmt.Sprintf("/shield/live?follow=1&all=1&last=%d", topShows), nil, nil)
		if err != nil {
			return told{err: err}
		}
		t.live, t.lines = resp.Body, json.NewDecoder(resp.Body)
	}
	if answer.err = t.lines.Decode(&answer.watch); answer.err != nil {
		t.live.Close()
		t.live = nil
	}
	return answer
}

func (t *top) next() tea.Msg { return t.ask() }

// Init implements tea.Model.
func (t *top) Init() tea.Cmd { return t.next }

// Update implements tea.Model.
func (t *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case told:
		if msg.err == nil {
			t.screen.take(msg)
			return t, t.next
		}
		if !errors.Is(msg.err, io.EOF) {
			t.screen.take(msg)
		}
		return t, tea.Tick(time.Second, func(time.Time) tea.Msg { return t.ask() })
	case tea.WindowSizeMsg:
		t.screen.width, t.screen.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return t, tea.Quit
		case "left", "h", "shift+tab":
			t.screen.choose(-1)
		case "right", "l", "tab":
			t.screen.choose(+1)
		}
	}
	return t, nil
}

// View implements tea.Model.
func (t *top) View() tea.View {
	view := tea.NewView(t.screen.String())
	view.AltScreen = true
	view.WindowTitle = "shield top"
	return view
}
