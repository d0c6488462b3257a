package caddymodule

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
)

// A BuildInfo says which shield a program has. Fields that the build does not know are "unknown".
type BuildInfo struct {
	Version string // v0.1.0, or Go's pseudo-version between releases, with +dirty after changes; "(devel)" without a repository
	Commit  string // of Git, 12 digits
	Date    string // of the commit, in UTC: 2026-11-23T09:51:12Z
}

// String is the version, with commit and date where they are known.
func (b BuildInfo) String() string {
	if b.Commit == unknown {
		return b.Version
	}
	return fmt.Sprintf("%s (%s, %s)", b.Version, b.Commit, b.Date)
}

const unknown = "unknown"

// Build says which shield this program has. It is what Go has written into it.
var Build = sync.OnceValue(func() BuildInfo {
	info, _ := debug.ReadBuildInfo()
	return buildOf(cmp.Or(info, new(debug.BuildInfo)))
})

// buildOf returns what info says of shield. Go knows the commit of the program's own module only,
// so it is unknown in a Caddy that has shield as a plugin.
func buildOf(info *debug.BuildInfo) BuildInfo {
	const path = "github.com/herdshield/shield"
	is := BuildInfo{unknown, unknown, unknown}
	if info.Main.Path != path && !strings.HasPrefix(info.Main.Path, path+"/") { // one of its own modules
		for _, m := range info.Deps {
			if m.Path == path {
				is.Version = cmp.Or(m.Version, unknown)
			}
		}
		return is
	}
	is.Version = cmp.Or(info.Main.Version, unknown)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			is.Commit = s.Value[:min(12, len(s.Value))]
		case "vcs.time":
			is.Date = s.Value
		}
	}
	return is
}
