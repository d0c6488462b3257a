package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/herdshield/shield"
)

// nameless is the name under which a shield without one is checked, before its server is
// known.
const nameless = "-nameless-"

// checkLines makes the checks of Provision while the Caddyfile is still there, so that the
// errors have lines. Provision alone judges matchers and values of placeholders, which another
// machine may have. The shields of one Caddyfile are compared with each other.
func checkLines(helper httpcaddyfile.Helper, h *Handler) error {
	app, ok := helper.State["shield"].(*App)
	if !ok {
		app = &App{adapts: true}
		if global, ok := helper.Option("shield").(httpcaddyfile.App); ok {
			if err := json.Unmarshal(global.Value, app); err != nil {
				return err
			}
		}
		helper.State["shield"] = app
	}
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	one := new(Handler) // a copy, because checks write defaults out
	if err := json.Unmarshal(b, one); err != nil {
		return err
	}
	if one.Retries != nil && strings.Contains(one.Retries.Secret, "{") {
		one.Retries.Secret = "stands for a secret that is known later"
	}
	d := helper.Dispenser
	d.Reset()
	d.Next()
	all := place{token: d.Token()}
	d.RemainingArgs() // of the first line
	all.block = placesIn(d)
	c, err := app.Check(one, nameless)
	if err == nil {
		_, err = shield.New(c, nil)
	}
	return all.blame(err, fmt.Sprintf("shield %q: ", one.Name), fmt.Sprintf("zone %q: ", one.Name+"/per_client"))
}

// A place is where an option stands in a Caddyfile.
type place struct {
	word  string // as errors begin: burst, or zone "a"
	token caddyfile.Token
	block []place
}

// placesIn returns the options in the block that the dispenser stands before, if there is one.
func placesIn(d *caddyfile.Dispenser) (block []place) {
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		p := place{word: d.Val(), token: d.Token()}
		args := d.RemainingArgs()
		if (p.word == "zone" || p.word == "class") && len(args) > 0 {
			block = slices.Insert(block, 0, p) // for errors about all of them
			p.word = fmt.Sprintf("%s %q", p.word, args[0])
		}
		p.block = placesIn(d)
		block = append(block, p)
	}
	numberMatches(block)
	return block
}

// numberMatches gives sets of matchers their numbers, as in errors, if there are several.
func numberMatches(block []place) {
	var sets []*place
	for i := range block {
		if block[i].word == "match" {
			sets = append(sets, &block[i])
		}
	}
	for i, set := range sets {
		if len(sets) > 1 {
			set.word = fmt.Sprintf("match %d", i+1)
		}
	}
}

// blame returns err with the line of each option that is wrong. Every line of err's text is an
// error that begins with the option, as all of the project's do: `zone "a": burst is 0; ...`.
// The prefixes, which say less than the line, are taken off.
func (p *place) blame(err error, prefixes ...string) error {
	if err == nil {
		return nil
	}
	var errs []error
	for text := range strings.Lines(err.Error()) {
		text = strings.TrimSpace(text)
		for _, prefix := range prefixes {
			text = strings.TrimPrefix(text, prefix)
		}
		d := caddyfile.NewDispenser([]caddyfile.Token{p.of(text)})
		d.Next()
		errs = append(errs, d.Err(text))
	}
	return errors.Join(errs...)
}

// of returns the token of the option that a text begins with: of several, the last.
func (p *place) of(text string) caddyfile.Token {
	for _, in := range slices.Backward(p.block) {
		rest, ok := strings.CutPrefix(text, in.word)
		if ok && strings.IndexAny(rest, ": ") == 0 {
			return in.of(strings.TrimLeft(rest, ": "))
		}
	}
	return p.token
}
