// Package commands has the commands that ask a running instance over its admin endpoint, and change
// it. They are `caddy shield status` and so on in a Caddy with the plugin, and `shield status` in
// the program shield.
package commands

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// Add adds the commands to the parent that they have in the program, and gives all of the parent's
// commands FlagError.
func Add(parent *cobra.Command) {
	parent.SetFlagErrorFunc(FlagError)
	parent.AddCommand(
		statusCommand(), topCommand(), whoCommand(), explainCommand(),
		forgiveCommand(), blockCommand(), setCommand(), modeCommand(), overridesCommand(),
	)
}

// flagsOf returns the flags of a command.
func flagsOf(cmd *cobra.Command) caddycmd.Flags { return caddycmd.Flags{FlagSet: cmd.Flags()} }

// adminFlags adds the flags of all commands that ask the admin endpoint.
func adminFlags(cmd *cobra.Command) {
	cmd.Flags().String("address", "", "address of the admin endpoint, if it is not "+caddy.DefaultAdminListen)
	cmd.Flags().Bool("json", false, "print the JSON of the admin endpoint")
}

// openAdmin sends a request to the admin endpoint, with a body as JSON unless it is nil, and returns its
// answer, for the caller to close. Errors are in the endpoint's words.
func openAdmin(flags caddycmd.Flags, method, path string, body any) (*http.Response, error) {
	address, err := caddycmd.DetermineAdminAPIAddress(flags.String("address"), nil, "", "")
	if err != nil {
		return nil, err
	}
	var header http.Header
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		header, in = http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(text)
	}
	resp, err := caddycmd.AdminAPIRequest(address, method, path, header, in)
	if err != nil {
		text := err.Error()
		if _, in, ok := strings.Cut(text, "HTTP "); ok { // Caddy's words around the endpoint's own
			var rejected struct{ Error string }
			_, said, _ := strings.Cut(in, ": ")
			if json.Unmarshal([]byte(said), &rejected) == nil && rejected.Error != "" {
				return nil, errors.New(rejected.Error)
			}
		}
		return nil, fmt.Errorf("asking the admin endpoint: %w; is shield running, and its admin endpoint at %s?", err, address)
	}
	return resp, nil
}

// ask asks the admin endpoint on behalf of a command, and reads the response into to, unless that is nil. With --json it
// prints it instead, and is done.
func ask(cmd *cobra.Command, method, path string, body, to any) (done bool, err error) {
	resp, err := openAdmin(flagsOf(cmd), method, path, body)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if to != nil && flagsOf(cmd).Bool("json") {
		_, err = io.Copy(cmd.OutOrStdout(), resp.Body)
		return true, err
	}
	if to == nil {
		return false, nil
	}
	if err := json.NewDecoder(resp.Body).Decode(to); err != nil {
		return false, fmt.Errorf("reading the response: %w", err)
	}
	return false, nil
}
