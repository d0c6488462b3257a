package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/commands"
	"github.com/herdshield/shield/internal/convert"
	"github.com/herdshield/shield/loadtest/report"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "convert",
		Usage: "caddy-ratelimit|nginx <file>",
		Short: "Rewrites the limits of another server as a Caddyfile",
		Long: `
Reads the limits of another server and prints a Caddyfile with shields. Comments
at its top say what is better, what differs, and what could not be converted,
each with its line. The rest decides as before.

  caddy-ratelimit   a Caddyfile. Its rate_limit directives are replaced, and all
                    else is as it was
  nginx             nginx.conf, or a part of it, with the files that it includes:
                    limit_req and limit_conn, their zones and statuses, and what
                    map and geo say of their keys. What answers the requests is
                    yours to write

Exit code: 0 if there is a Caddyfile, even if something could not be converted;
how much that is stands on standard error.
`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Example = `  $ shield convert nginx /etc/nginx/nginx.conf >Caddyfile
  $ shield convert caddy-ratelimit Caddyfile >Caddyfile.new`
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				const want = "nginx or caddy-ratelimit, and a file"
				if from := []string{"nginx", "caddy-ratelimit"}; len(args) == 2 && !slices.Contains(from, args[0]) {
					return fmt.Errorf("%q is no server that is known; want %s", args[0], want)
				}
				return commands.Args(2, 2, want)(cmd, args)
			}
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				return convertFile(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], args[1])
			}
		},
	})
}

func convertFile(out, notes io.Writer, from, file string) error {
	r, err := func() (convert.Result, error) {
		if from == "nginx" {
			return convert.Nginx(file)
		}
		text, err := readAtMost(file, maxConfig)
		if err != nil {
			return convert.Result{}, err
		}
		return convert.CaddyRateLimit(file, text)
	}()
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w; want a file of %s", err, from)
	}
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, r.Caddyfile); err != nil {
		return err
	}
	if n := r.Missing(); n > 0 {
		fmt.Fprintf(notes, "Not everything could be converted: see %s under \"Not converted\" at the top.\n", report.Plural(n, "note", "notes"))
	}
	return nil
}
