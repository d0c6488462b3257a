package redis

import (
	_ "embed"

	"github.com/herdshield/shield/share"
)

//go:embed units.lua
var unitsText string

// leaseScript is one replica's exchange about one unit, and unitsScript lists what replicas share under a name.
var leaseScript, unitsScript = newScript(share.Script), newScript(unitsText)
