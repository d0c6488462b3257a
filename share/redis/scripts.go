package redis

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/herdshield/shield/share"
)

// Scripts are put together from files of one idea each: functions first, then what calls
// them.
var (
	//go:embed prelude.lua
	preludeText string
	//go:embed state.lua
	stateText string
	//go:embed slots.lua
	slotsText string
	//go:embed news.lua
	newsText string
	//go:embed plan.lua
	planText string
	//go:embed units.lua
	unitsText string
)

// planScript does what share.Model.Plan does.
var planScript = newScript(constants(share.Constants()), preludeText, stateText, slotsText, newsText, planText)

// leaseScript is one replica's exchange about one unit.
var leaseScript = newScript(share.Script)

// unitsScript lists what replicas share under a name.
var unitsScript = newScript(constants(share.Constants()), preludeText, unitsText)

// constants returns those of package share, as a script has them.
func constants(list []share.Constant) string {
	var b strings.Builder
	for _, c := range list {
		fmt.Fprintf(&b, "local %s = %d\n", c.Name, c.Value)
	}
	fmt.Fprintf(&b, "local longestWait = %d\n", longestWait.Milliseconds())
	return b.String()
}
