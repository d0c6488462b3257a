package caddymodule

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
)

// The kinds of overrides.
const (
	overrideBlock = "block"
	overrideSet   = "set"
	overrideMode  = "mode"
)

// Bounds of overrides: how long each lasts, and how many there are of those that are no blocks,
// which [shield.MaxBlocks] bounds. Ours: the config is the place for what lasts for days, and for
// more than a person can keep in mind.
const (
	minOverride  = time.Second
	maxOverride  = 24 * time.Hour
	maxOverrides = 100
)

// An override is one in force.
type override struct {
	adminapi.Override
	client clientName    // of a block: the text in Override may be masked
	until  time.Duration // as shield.Now has it
	timer  *time.Timer
	apply  applied
}

// covers reports whether an override is of a shield.
func (o *override) covers(name string) bool {
	return o.Shield == name || o.Shield == "" && !slices.Contains(o.Except, name)
}

// same reports whether two overrides are of the same thing, so that the later one replaces the other.
func (o *override) same(b *override) bool {
	return o.Kind == b.Kind && o.Shield == b.Shield && o.client.text == b.client.text && o.Setting == b.Setting
}

// String says what is in force, for people.
func (o *override) String() string {
	what := strings.TrimSpace(cmp.Or(adminapi.Shown(o.Client), o.Setting) + " " + o.Value)
	return fmt.Sprintf("%s of %s: %s", o.Kind, cmp.Or(o.Shield, o.Where()), what)
}

// told returns what others read without the lock. It must be called with it.
func (o *override) told(now time.Duration) adminapi.Override {
	one := o.Override
	one.Left = max(0.1, tenths(o.until-now))
	one.Until = shield.At(o.until) // the clock may have been set since
	return one
}

// overrides are all that operators have changed for a while. They outlive configs and
// not the process: they end with the last config that has shields. A reload keeps those whose
// shield and setting the new config has.
type overrides struct {
	mu      sync.Mutex // guards what follows
	app     *App       // they are applied to its handlers; nil: there is none
	list    []*override
	unfit   []*override // ended as the app that begins has no place for them; again in force if it cannot start
	made    int
	version int
	latest  string // change, for people
}

var changes overrides

// etag names the state of the list, in this process. It must be called with the lock.
func (o *overrides) etag() string { return fmt.Sprintf(`"%s-%d"`, boot, o.version) }

// read returns what is in force.
func (o *overrides) read(now time.Duration) (list []adminapi.Override, etag string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list = []adminapi.Override{}
	for _, is := range o.list {
		if is.until > now {
			list = append(list, is.told(now))
		}
	}
	return list, o.etag()
}

// of returns how many overrides concern a shield, by kind.
func (o *overrides) of(name string) map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := map[string]int{overrideBlock: 0, overrideSet: 0, overrideMode: 0}
	for _, is := range o.list {
		if is.covers(name) {
			n[is.Kind]++
		}
	}
	return n
}

// check returns an error if match is an ETag that is not the list's; "*" is any. It must be called with the lock.
func (o *overrides) check(match string) error {
	if match == "" || match == "*" || match == o.etag() { // RFC 9110, section 13.1.1
		return nil
	}
	return badRequest(http.StatusPreconditionFailed, "the overrides have changed since they were read: %s; want them read again", cmp.Or(o.latest, "the process is another one"))
}

// add puts an override in force, and returns the one that it replaces, if any. match is an ETag that
// must be the list's, or "".
func (o *overrides) add(now time.Duration, app *App, is *override, match string) (replaced *adminapi.Override, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.check(match); err != nil {
		return nil, err
	}
	if app != o.app {
		return nil, badRequest(http.StatusServiceUnavailable, "the config is being reloaded; want the change again in a moment")
	}
	kept := slices.DeleteFunc(slices.Clone(o.list), func(b *override) bool { return b.same(is) })
	blocks, others := 0, 0
	for _, b := range kept {
		if b.Kind == overrideBlock {
			blocks++
		} else {
			others++
		}
	}
	switch {
	case is.Kind == overrideBlock && blocks >= shield.MaxBlocks:
		return nil, badRequest(http.StatusConflict, "%d clients are blocked; want at most %d", blocks, shield.MaxBlocks)
	case is.Kind != overrideBlock && others >= maxOverrides:
		return nil, badRequest(http.StatusConflict, "%d other overrides are in force; want at most %d", others, maxOverrides)
	}
	if err := app.tryOverride(kept, is); err != nil {
		return nil, badRequest(http.StatusBadRequest, "%w", err)
	}
	for _, b := range o.list {
		if b.same(is) {
			b.timer.Stop()
			replaced = new(b.told(now))
		}
	}
	o.made++
	is.ID = strconv.Itoa(o.made)
	o.list = append(kept, is)
	o.changed(now)
	is.timer = time.AfterFunc(is.until-now, func() { o.end(is, "its time is over") })
	o.tell("an override begins", is, "by "+is.By)
	return replaced, nil
}

// changed applies the list after a change. It must be called with the lock.
func (o *overrides) changed(now time.Duration) {
	o.version++
	if o.app != nil {
		o.app.override(now, o.list)
	}
}

// drop ends those that f says, and tells why. It must be called with the lock.
func (o *overrides) drop(now time.Duration, why string, f func(*override) bool) (ended []*override) {
	for _, is := range o.list {
		if f(is) {
			is.timer.Stop()
			ended = append(ended, is)
			o.tell("an override has ended", is, why)
		}
	}
	if len(ended) == 0 {
		return nil
	}
	o.list = slices.DeleteFunc(slices.Clone(o.list), func(is *override) bool { return slices.Contains(ended, is) })
	if o.app != nil {
		for _, is := range ended {
			o.app.unblock(now, is)
		}
	}
	o.changed(now)
	return ended
}

// end ends one override, if it is still in force.
func (o *overrides) end(is *override, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(shield.Now(), why, func(b *override) bool { return b == is })
}

// except ends a block of all shields in one of them, and returns the block that goes on. That is another
// one, as the answers to requests may still be written from the old one. It must be called with the lock.
func (o *overrides) except(now time.Duration, is *override, name string) *override {
	rest, gone := new(*is), new(*is)
	rest.Except, gone.Shield = append(slices.Clone(is.Except), name), name
	is.timer.Stop()
	rest.timer = time.AfterFunc(is.until-now, func() { o.end(rest, "its time is over") })
	o.list = slices.Clone(o.list)
	o.list[slices.Index(o.list, is)] = rest
	o.tell("an override has ended in one shield", gone, "the client is forgiven")
	o.app.unblock(now, gone)
	o.changed(now)
	return rest
}

// remove ends the override of an ID.
func (o *overrides) remove(id, match, by string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.check(match); err != nil {
		return err
	}
	if ended := o.drop(shield.Now(), "ended by "+by, func(b *override) bool { return b.ID == id }); len(ended) == 0 {
		return badRequest(http.StatusNotFound, "override is %.40q; want the ID of one in force", id)
	}
	return nil
}

// A pardon is what forgiving a client does to its blocks.
type pardon struct {
	of        map[string]bool     // the shields in which it was blocked
	ended     []adminapi.Override // blocks that are gone
	continued []adminapi.Override // blocks of all shields that go on in the others
}

// forgive ends the blocks of a client that concern a shield, or any if the name is "". A block of all
// shields goes on in those that the client is not forgiven by. match is as in add.
func (o *overrides) forgive(name string, c clientName, match string) (p pardon, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.check(match); err != nil {
		return p, err
	}
	p.of = map[string]bool{}
	if o.app == nil {
		return p, nil
	}
	now, handlers := shield.Now(), o.app.roster().handlers
	blocks := func(is *override, c clientName, in func(*Handler) bool) (any bool) {
		for _, h := range handlers {
			a, _ := h.asks(is.client)
			b, _ := h.asks(c)
			if is.Kind == overrideBlock && is.covers(h.Name) && in(h) && a.Client != shield.NoKey && a.Client == b.Client {
				any, p.of[h.Name] = true, true
			}
		}
		return any
	}
	var whole, part []*override
	for _, is := range o.list {
		switch {
		case !blocks(is, c, func(h *Handler) bool { return name == "" || h.Name == name }):
		case name == "" || is.Shield != "" || !o.app.blocksBeside(is, name):
			whole = append(whole, is)
		default:
			part = append(part, is)
		}
	}
	for _, is := range part {
		p.continued = append(p.continued, o.except(now, is, name).told(now))
	}
	for _, is := range o.drop(now, "the client is forgiven", func(is *override) bool { return slices.Contains(whole, is) }) {
		p.ended = append(p.ended, is.told(now))
	}
	return p, nil
}

// adopt applies the overrides to the handlers of an app that begins to serve. Those that it has
// no place for end.
func (o *overrides) adopt(a *App) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.app
	o.app = a
	now := shield.Now()
	o.unfit = nil
	if len(o.list) == 0 {
		return
	}
	was := before.blocked(o.list)
	var fit []*override
	for _, is := range o.list {
		if a.tryOverride(fit, is) == nil {
			fit = append(fit, is)
		}
	}
	o.unfit = o.drop(now, "the config has no such shield or setting any more", func(is *override) bool { return !slices.Contains(fit, is) })
	o.changed(now)
	is := a.blocked(o.list)
	for at, h := range was {
		if _, ok := is[at]; !ok && !h.shown.shields[0].live { // a shield of the config tells clients apart otherwise now
			h.guard().Unblock(now, at.client)
		}
	}
}

// show applies the blocks to Live shields of an app that have changed.
func (o *overrides) show(a *App, now time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.app == a && len(o.list) > 0 {
		a.override(now, o.list)
	}
}

// restore puts the overrides in the list again that a config has ended that could not be started.
func (o *overrides) restore() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := shield.Now()
	for _, is := range o.unfit {
		if is.until > now {
			is.timer = time.AfterFunc(is.until-now, func() { o.end(is, "its time is over") })
			o.list = append(o.list, is)
			o.tell("an override is in force again", is, "the new config could not be started")
		}
	}
	slices.SortStableFunc(o.list, func(a, b *override) int { return a.Since.Compare(b.Since) }) // the later one counts
}

// leave ends the overrides with the app, unless another one serves: the next one, or the one before if
// the config could not be started.
func (o *overrides) leave(a *App) {
	o.mu.Lock()
	current := o.app == a
	if !current {
		o.unfit = nil // the next config serves
	}
	o.mu.Unlock()
	if !current {
		return
	}
	if other, _ := runningApp(); other != nil && other != a {
		o.restore()
		o.adopt(other)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.app == a {
		o.drop(shield.Now(), "the config has no shield any more", func(*override) bool { return true })
		o.app = nil
	}
}

// tell logs what has become of an override, and why, and remembers it for those who do not know
// yet. It must be called with the lock.
func (o *overrides) tell(message string, is *override, why string) {
	o.latest = fmt.Sprintf("%s (%v, %s)", message, is, why)
	if o.app != nil {
		o.app.logger.Info(message,
			zap.String("id", is.ID), zap.String("kind", is.Kind), zap.String("shield", cmp.Or(is.Shield, "all")), zap.String("client", is.Client),
			zap.String("setting", is.Setting), zap.String("value", is.Value), zap.Time("until", is.Until), zap.String("by", is.By), zap.String("why", why),
		)
	}
}

func (o *overrides) log(message, name, client, by string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.app != nil {
		o.app.logger.Info(message, zap.String("shield", cmp.Or(name, "all")), zap.String("client", client), zap.String("by", by))
	}
}

// anonymise takes the names of clients out.
func anonymise(list []adminapi.Override) {
	for i := range list {
		if list[i].Client != "" {
			list[i].Client = "not shown here"
		}
	}
}

// readOverrides answers with what is in force.
func readOverrides(w http.ResponseWriter, r *http.Request) error {
	app, err := runningApp()
	if err != nil {
		return err
	}
	name := r.URL.Query().Get("shield")
	if name != "" {
		if _, err := app.named(name); err != nil {
			return err
		}
	}
	status, etag := app.overrides(shield.Now(), name, mayChange(r))
	status.ReadOnly = status.ReadOnly || !mayPost(r)
	w.Header().Set("Etag", etag)
	return writeJSON(w, http.StatusOK, status)
}

// overrides returns what is in force, with its ETag, and what can be set of a shield, if there is a name.
func (a *App) overrides(now time.Duration, name string, mayChange bool) (*adminapi.OverridesStatus, string) {
	list, etag := changes.read(now)
	if !mayChange {
		anonymise(list)
	}
	status := &adminapi.OverridesStatus{Overrides: list, ReadOnly: !mayChange}
	if name != "" {
		status.Settings = a.settings(name)
	}
	return status, etag
}

func serveOverrides(w http.ResponseWriter, r *http.Request) error {
	switch r.Method {
	case http.MethodGet:
		return readOverrides(w, r)
	case http.MethodPost:
		if r.Context().Value(trial{}) != nil {
			w.WriteHeader(http.StatusNoContent)
			return nil
		}
	default:
		return badRequest(http.StatusMethodNotAllowed, "method is %s; want GET or POST", r.Method)
	}
	var ask struct {
		Kind    string `json:"kind"`
		Shield  string `json:"shield"`
		Client  string `json:"client"`
		Handle  string `json:"handle"` // of GET /shield/who, in place of the client
		Setting string `json:"setting"`
		Value   string `json:"value"`
		For     string `json:"for"`
	}
	if err := readChange(w, r, &ask); err != nil {
		return err
	}
	app, err := runningApp()
	if err != nil {
		return err
	}
	if _, err := app.named(ask.Shield); err != nil {
		return err
	}
	d, err := caddy.ParseDuration(ask.For)
	if err != nil || d < minOverride || d > maxOverride {
		return badRequest(http.StatusBadRequest, "for is %.40q; want 1s to 24h", ask.For)
	}
	c, err := app.client(ask.Client, ask.Handle)
	if err != nil {
		return err
	}
	now := shield.Now()
	is := &override{client: c, until: now + d, Override: adminapi.Override{
		Kind: ask.Kind, Shield: ask.Shield, Client: c.shown, Setting: strings.TrimSpace(ask.Setting), Value: strings.TrimSpace(ask.Value),
		Since: shield.At(now), Until: shield.At(now + d), Left: d.Seconds(), By: askedBy(r),
	}}
	if is.apply, err = is.read(); err != nil {
		return badRequest(http.StatusBadRequest, "%w", err)
	}
	replaced, err := changes.add(now, app, is, r.Header.Get("If-Match"))
	if err != nil {
		return err
	}
	_, etag := changes.read(now)
	w.Header().Set("Etag", etag)
	begun := adminapi.OverrideBegun{Override: is.Override, Replaces: replaced}
	if is.Kind == overrideBlock && is.Shield == "" {
		begun.Without = app.without(c)
	}
	return writeJSON(w, http.StatusCreated, begun)
}

// without returns the names of the shields that cannot tell by its name which requests are a client's.
func (a *App) without(c clientName) (names []string) {
	for _, h := range a.roster().handlers {
		name := h.shown.shields[0].name
		if q, _ := h.asks(c); q.Client == shield.NoKey && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// serveOverride ends one.
func serveOverride(w http.ResponseWriter, r *http.Request) error {
	switch {
	case r.Method != http.MethodDelete:
		return badRequest(http.StatusMethodNotAllowed, "method is %s; want DELETE", r.Method)
	case !mayChange(r):
		return errReadOnly
	}
	if err := changes.remove(strings.TrimPrefix(r.URL.Path, "/shield/overrides/"), r.Header.Get("If-Match"), askedBy(r)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
