// Package commands has the commands that ask a running instance over its admin endpoint, and change
// it. They are `caddy shield status` and so on in a Caddy with the plugin, and `shield status` in
// the program shield.
package commands

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
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

// notMatched is the answer to a change of overrides that are not the ones that were read.
type notMatched struct{ error }

// openAdmin sends a request to the admin endpoint, and returns its answer, for the caller to close. Errors
// are in the endpoint's words.
func openAdmin(flags caddycmd.Flags, method, path string, header http.Header, body io.Reader) (*http.Response, error) {
	address, err := caddycmd.DetermineAdminAPIAddress(flags.String("address"), nil, "", "")
	if err != nil {
		return nil, err
	}
	resp, err := caddycmd.AdminAPIRequest(address, method, path, header, body)
	if err != nil {
		text := err.Error()
		if _, in, ok := strings.Cut(text, "HTTP "); ok { // Caddy's words around the endpoint's own
			var refused struct{ Error string }
			status, said, _ := strings.Cut(in, ": ")
			if json.Unmarshal([]byte(said), &refused) == nil && refused.Error != "" {
				err = errors.New(refused.Error)
				if status == strconv.Itoa(http.StatusPreconditionFailed) {
					err = notMatched{err}
				}
				return nil, err
			}
		}
		return nil, fmt.Errorf("asking the admin endpoint: %w; is shield running, and its admin endpoint at %s?", err, address)
	}
	return resp, nil
}

// askAdmin is openAdmin for a whole answer.
func askAdmin(flags caddycmd.Flags, method, path string, header http.Header, body io.Reader) (answer []byte, _ http.Header, err error) {
	resp, err := openAdmin(flags, method, path, header, body)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return answer, resp.Header, err
}

// readAdmin reads an answer of the admin endpoint.
func readAdmin(flags caddycmd.Flags, path string, to any) error {
	answer, _, err := askAdmin(flags, http.MethodGet, path, nil, nil)
	if err == nil {
		err = json.Unmarshal(answer, to)
	}
	return err
}
