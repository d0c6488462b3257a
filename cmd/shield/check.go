package main

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/internal/configfile"
)

// checkBefore has Caddy's commands that load a config check its shields first. Caddy's errors of a
// module begin with all modules around it, and it names no line of JSON.
func checkBefore(root *cobra.Command) {
	for _, c := range root.Commands() {
		switch c.Name() {
		case "run", "validate":
			c.PreRunE = func(cmd *cobra.Command, _ []string) error {
				caddymodule.AdaptToLoad()
				return checkJSON(cmd)
			}
		case "reload": // the values of placeholders are those of another process
			c.PreRunE = func(cmd *cobra.Command, _ []string) error { return checkJSON(cmd) }
		}
	}
}

// checkJSON returns what is wrong with the shields of --config if that is Caddy's JSON.
func checkJSON(cmd *cobra.Command) error {
	value := func(flag string) string {
		if f := cmd.Flags().Lookup(flag); f != nil {
			return f.Value.String()
		}
		return ""
	}
	file := value("config")
	if file == "" || file == "-" || value("adapter") != "" || value("resume") == "true" {
		return nil
	}
	base := strings.ToLower(filepath.Base(file))
	if strings.HasPrefix(base, "caddyfile") || strings.HasSuffix(base, ".caddyfile") {
		return nil
	}
	text, err := readAtMost(file, maxConfig)
	if err != nil || !json.Valid(text) && filepath.Ext(base) != ".json" {
		return nil // Caddy says what is wrong
	}
	return configfile.Check(file, text)
}
