// Command shield is Caddy with the shield handler built in, and commands of its
// own: proxy puts the shield before one backend without a config file, status
// shows what a running instance does, demo shows what it is good for, simulate what
// a config would do, and loadtest what a running server does.
package main

import (
	"runtime/debug"
	_ "time/tzdata" // for images without a zone database

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard" // what every Caddy can do

	_ "github.com/herdshield/shield/caddymodule" // http.handlers.shield
)

func main() {
	caddy.CustomBinaryName = "shield"
	if build, ok := debug.ReadBuildInfo(); ok {
		caddy.CustomVersion = "shield " + build.Main.Version + " on Caddy" // Caddy's own follows
	}
	caddy.CustomLongDescription = `shield stands in front of a fragile backend. It limits what single clients and
all clients together may send, and tells each refused client when to come back.

It is Caddy with one more handler, so everything that Caddy does works here too:
"shield run" serves a Caddyfile, "shield validate" checks one.

  $ shield demo                                    see what it is good for
  $ shield proxy --from :8080 --to 127.0.0.1:9000 --rate 50/s
  $ shield run --config Caddyfile
  $ shield status
  $ shield simulate --compare Caddyfile none       what it would do to your clients
  $ shield loadtest http://127.0.0.1:8080/ --herd 1000`
	caddycmd.Main()
}
