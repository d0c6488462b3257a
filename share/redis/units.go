package redis

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// unitsEvery is how often replicas look whether others of the same name share something
// else: seldom, as that is a matter of configuration.
const unitsEvery = 3 * time.Second

// A Unit is what some replicas share under a name: those of another Unit have keys of
// their own.
type Unit struct {
	What     string `json:"what"`     // all that is defined alike
	Replicas int    `json:"replicas"` // that have it
}

// A unit is that of something that this replica shares.
type unit struct {
	kind, name string
	what       string
	sum        string // of what, and of the scripts' version
	tag        string // of all its keys: a Cluster keeps those together
	list       string // the key under which units of this name are listed

	mu    sync.Mutex // guards found
	found []Unit
}

// unit returns the unit of something of a kind: "b" for backends, "z" for
// zones. The name may be any text.
func (c *Client) unit(kind, name, what string, s *script) *unit {
	what += " script " + s.sum[:8]
	sum := sha256.Sum256([]byte(what))
	u := &unit{kind: kind, name: name, what: what, sum: hex.EncodeToString(sum[:8])}
	base := c.options.Prefix + ":" + kind + ":" + url.QueryEscape(name)
	u.tag, u.list = "shield:{"+base+":"+u.sum+"}", "shield:{"+base+"}:units"
	return u
}

func (u *unit) others() []Unit {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.found)
}

// lookAround looks for other units from time to time, and tells the shell.
func (c *Client) lookAround() {
	for every := time.NewTicker(unitsEvery); ; {
		select {
		case <-c.ctx.Done():
			every.Stop()
			return
		case <-every.C:
		}
		backends, zones := c.served()
		for _, b := range backends {
			if s := b.status(); !s.Alone {
				c.compare(b.unit, s.Replicas)
			}
		}
		for _, z := range zones {
			if s := z.status(c.shell.Now()); !s.Alone {
				c.compare(z.unit, s.Replicas)
			}
		}
	}
}

// compare lists a unit, and reads which others there are of the same name.
func (c *Client) compare(u *unit, replicas int) {
	ask, err := json.Marshal(map[string]any{"sum": u.sum, "what": u.what, "replicas": replicas})
	if err != nil {
		return
	}
	reply, err := c.run(c.ctx, unitsScript, []string{u.list}, string(ask))
	var answer struct{ Others []Unit }
	if err != nil || json.Unmarshal([]byte(reply), &answer) != nil {
		return // the next one is soon
	}
	slices.SortFunc(answer.Others, func(a, b Unit) int { return strings.Compare(a.What, b.What) })
	u.mu.Lock()
	differ := len(answer.Others) > 0 && len(u.found) == 0
	u.found = answer.Others
	u.mu.Unlock()
	if differ && c.shell.Differ != nil {
		c.shell.Differ(u.name, u.what, answer.Others)
	}
}
