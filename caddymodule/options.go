package caddymodule

import (
	"math"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// An option is one word of a block in a Caddyfile, with the function that takes its
// arguments and its own block. The dispenser stands at the word.
type option struct {
	word  string
	parse func(*caddyfile.Dispenser) error
}

// options are what a block may have, in the order of the documentation.
type options []option

// repeatable options may be given several times.
var repeatable = map[string]bool{"zone": true, "class": true, "match": true}

// parse parses the block after the present word, if there is one. No argument may be left
// before it.
func (all options) parse(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	seen := map[string]bool{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		word := d.Val()
		if seen[word] && !repeatable[word] {
			return d.Errf("%s is set twice; want it once", word)
		}
		seen[word] = true
		if err := all.parseOne(d, word); err != nil {
			return err
		}
	}
	return nil
}

func (all options) parseOne(d *caddyfile.Dispenser, word string) error {
	for _, o := range all {
		if o.word == word {
			return o.parse(d)
		}
	}
	words := all.words()
	want, last := strings.Join(words[:len(words)-1], ", "), words[len(words)-1]
	if want != "" {
		want += " or "
	}
	return d.Errf("unrecognized subdirective %q; want %s", word, want+last)
}

func (all options) words() (words []string) {
	for _, o := range all {
		words = append(words, o.word)
	}
	return words
}

// section parses a block without a name.
func section[T any](to **T, of func(*T) options) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		*to = new(T)
		return of(*to).parse(d)
	}
}

// named parses a block with a name, of which there may be several.
func named[T any](list *[]*T, name func(*T) *string, of func(*T) options) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		one := new(T)
		*list = append(*list, one)
		if err := text(name(one))(d); err != nil {
			return err
		}
		return of(one).parse(d)
	}
}

// text parses one argument.
func text(to *string) func(*caddyfile.Dispenser) error {
	return value(to, "", func(arg string) (string, bool) { return arg, true })
}

// number parses a whole number.
func number(to **int) func(*caddyfile.Dispenser) error {
	return value(to, "a whole number", asNumber)
}

// duration parses a duration.
func duration(to **caddy.Duration) func(*caddyfile.Dispenser) error {
	return value(to, "a duration like 5s", asDuration)
}

// onOff parses on or off.
func onOff(to **bool) func(*caddyfile.Dispenser) error {
	return value(to, "on or off", func(arg string) (*bool, bool) { return new(arg == "on"), arg == "on" || arg == "off" })
}

// optIn parses on or off where off is the default.
func optIn(to *bool) func(*caddyfile.Dispenser) error {
	return value(to, "on or off", func(arg string) (bool, bool) { return arg == "on", arg == "on" || arg == "off" })
}

// percentage parses a percentage as a part of 1.
func percentage(to **float64) func(*caddyfile.Dispenser) error {
	return value(to, "a percentage like 70%", func(arg string) (*float64, bool) {
		number, found := strings.CutSuffix(arg, "%")
		n, ok := asFloat(number)
		return new(n / 100), found && ok
	})
}

// value parses the only argument of an option. want says what it must be.
func value[T any](to *T, want string, parse func(string) (T, bool)) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		word, args := d.Val(), d.RemainingArgs()
		if len(args) != 1 {
			return d.ArgErr()
		}
		v, ok := parse(args[0])
		if !ok {
			return d.Errf("%s is %q; want %s", word, args[0], want)
		}
		*to = v
		return nil
	}
}

// template parses the template of a key, which may have several words.
func template(to *string) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		args := d.RemainingArgs()
		if len(args) == 0 {
			return d.ArgErr()
		}
		*to = strings.Join(args, " ")
		return nil
	}
}

// matchers parses one set of matchers.
func matchers(to *caddyhttp.RawMatcherSets) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		if d.NextArg() {
			if strings.HasPrefix(d.Val(), "@") {
				return d.Errf("match is %s, a named matcher; want its matchers written out here", d.Val())
			}
			d.Prev()
		}
		set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
		if err == nil {
			*to = append(*to, set)
		}
		return err
	}
}

func asNumber(arg string) (*int, bool) {
	n, err := strconv.Atoi(arg)
	return &n, err == nil
}

func asFloat(arg string) (float64, bool) {
	n, err := strconv.ParseFloat(arg, 64)
	return n, err == nil && !math.IsNaN(n) && !math.IsInf(n, 0)
}

func asDuration(arg string) (*caddy.Duration, bool) {
	d, err := caddy.ParseDuration(arg)
	return new(caddy.Duration(d)), err == nil
}
