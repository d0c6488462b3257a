// Command shield is Caddy with the shield handler built in, and with more commands. proxy
// puts the shield before one backend without a config file. demo shows the effect of shield,
// simulate that of a config. loadtest tries a running server. status and others ask a running
// instance: see package commands.
package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	_ "time/tzdata" // for images without a zone database

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard" // what every Caddy can do
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule" // and http.handlers.shield
	"github.com/herdshield/shield/caddymodule/commands"
)

// gcPercent is how much garbage there may be for 100 bytes in use. Measured with 400: a
// proxied request takes 9% less of the CPU than with Go's 100, and the process 113 MB in
// place of 71.
const gcPercent = 400

// profileEvery is how many bytes are allocated for one sample of heap profiles. With Go's 512 KiB
// it takes 1% of the CPU of proxied requests to walk the stacks, as each allocates 15 KiB.
const profileEvery = 4 << 20

// tuneMemory sets what the environment does not say in GOGC, GOMEMLIMIT and GODEBUG. Memory that
// runs short is collected more often: at nine tenths of what the container, or the machine, has.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		runtime.MemProfileRate = profileEvery
	}
	// Without a limit that can be read there is none, as in Caddy, which does the same in run.
	_, _ = memlimit.Set(memlimit.WithProvider(memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)))
}

func main() {
	tuneMemory()
	caddy.CustomBinaryName = "shield"
	caddy.CustomVersion = "shield " + caddymodule.Version() + " on Caddy" // Caddy's own follows
	caddy.CustomLongDescription = `shield is a rate limiter and load shedder for fragile backends. It limits what
each client and all clients together can send. Each rejected client gets its own
Retry-After, so that retries come back spread out instead of as a thundering herd.

shield is Caddy plus one handler, so everything a Caddyfile can do works here as well:
"shield run" serves a Caddyfile, and "shield validate" checks one.`
	caddycmd.Main()
}

// absent are Caddy's commands that shield lacks. The first is what a Caddy with the plugin has for the commands
// that are at the root here. The others replace the program with one from Caddy's build service, which knows
// no main program but Caddy's: they crash in this one, or would end as a Caddy without shield's commands.
var absent = []string{"shield", "upgrade", "add-package", "remove-package"}

// shapeRoot gives the root command the program's examples, and the commands of a running instance, which a
// Caddy with the plugin has as `caddy shield status` and so on. Caddy gives no access to its root but as the
// parent of a command that is registered already, as demo is before simulate.
func shapeRoot(root *cobra.Command) {
	root.Example = examples
	for _, c := range root.Commands() {
		if slices.Contains(absent, c.Name()) {
			root.RemoveCommand(c)
		}
	}
	commands.Add(root, "shield")
}

// examples replace Caddy's in shield --help.
const examples = `  $ shield demo                                    see what it is good for
  $ shield proxy --from :8080 --to 127.0.0.1:9000 --rate 50/s
  $ shield run --config Caddyfile
  $ shield status
  $ shield simulate --compare Caddyfile none       see what it would do to your clients
  $ shield loadtest http://127.0.0.1:8080/ --herd 1000`
