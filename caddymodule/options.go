package caddymodule

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// optionsOf returns the words that a block may have, and pointers to what they set: the
// fields of the struct that block points to. A word is the field's name in JSON unless the
// tag caddyfile has another, or -. An embedded struct adds its own words.
func optionsOf(block any) (words []string, fields []any) {
	of := reflect.ValueOf(block).Elem()
	for i := range of.NumField() {
		f := of.Type().Field(i)
		word, _, _ := strings.Cut(cmp.Or(f.Tag.Get("caddyfile"), f.Tag.Get("json")), ",")
		if word != "" && word != "-" {
			words, fields = append(words, word), append(fields, of.Field(i).Addr().Interface())
		}
		if f.Anonymous {
			moreWords, more := optionsOf(of.Field(i).Addr().Interface())
			words, fields = append(words, moreWords...), append(fields, more...)
		}
	}
	return words, fields
}

// parseBlock parses the block, if there is one, into a struct. No argument may come before it.
func parseBlock(d *caddyfile.Dispenser, block any) error {
	if word := d.Val(); d.NextArg() {
		return d.Errf("%q after %s is unexpected; use a block in braces, or nothing", d.Val(), word)
	}
	words, fields := optionsOf(block)
	seen := map[string]bool{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		word := d.Val()
		i := slices.Index(words, word)
		if i < 0 {
			return unrecognized(d, words)
		}
		if seen[word] && reflect.TypeOf(fields[i]).Elem().Kind() != reflect.Slice {
			return d.Errf("%s is set twice; set it once", word)
		}
		seen[word] = true
		if err := parseOption(d, fields[i]); err != nil {
			return err
		}
	}
	return nil
}

// unrecognized says that a word is not one of a block's, and which are.
func unrecognized(d *caddyfile.Dispenser, words []string) error {
	word, last := d.Val(), len(words)-1
	want := strings.TrimPrefix(strings.Join(words[:last], ", ")+" or "+words[last], " or ")
	if _, err := caddy.GetModule("http.handlers." + word); err == nil {
		return d.Errf("%q is a directive of the site; move it out of this block, or add the } missing before it", word)
	}
	return d.Errf("unrecognized subdirective %q; use %s", word, want)
}

// A parser is an option that has a syntax of its own.
type parser interface {
	parse(*caddyfile.Dispenser) error
}

// parseOption parses the arguments and the block of an option into its field. The dispenser
// stands at the word.
func parseOption(d *caddyfile.Dispenser, field any) error {
	switch to := reflect.ValueOf(field).Elem(); {
	case to.Type() == reflect.TypeFor[caddyhttp.RawMatcherSets]():
		d = d.NewFromNextSegment()
		d.Next()
		set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
		if err != nil {
			return fmt.Errorf("%w; write out match and Caddy's matchers, like match path /api/*", err)
		}
		to.Set(reflect.Append(to, reflect.ValueOf(set)))
		return nil
	case to.Type() == reflect.TypeFor[[]string]():
		word, args := d.Val(), d.RemainingArgs()
		if len(args) == 0 {
			return d.Errf("%s has no value; add one, or several", word)
		}
		to.Set(reflect.AppendSlice(to, reflect.ValueOf(args)))
		return nil
	case to.Kind() == reflect.Slice: // of zones or classes, which have a name
		one := reflect.New(to.Type().Elem().Elem())
		to.Set(reflect.Append(to, one))
		if word := d.Val(); !d.NextArg() {
			return d.Errf("%s has no name; add one, like %s", word, map[string]string{"zone": "zone clients", "class": "class critical"}[word])
		}
		if strings.HasSuffix(d.Val(), "{") {
			return d.Errf("name is %q; put a space before the {", d.Val())
		}
		one.Elem().FieldByName("Name").SetString(d.Val())
		return parseBlock(d, one.Interface())
	case to.Kind() == reflect.Pointer && to.Type().Elem().Kind() == reflect.Struct:
		to.Set(reflect.New(to.Type().Elem()))
		field = to.Interface()
	}
	if own, ok := field.(parser); ok {
		return own.parse(d)
	}
	if reflect.TypeOf(field).Elem().Kind() == reflect.Struct {
		return parseBlock(d, field)
	}
	return parseValue(d, field)
}

// parseValue parses the one argument of an option. Some may have several words.
func parseValue(d *caddyfile.Dispenser, to any) error {
	word, args := d.Val(), d.RemainingArgs()
	switch {
	case slices.Contains([]string{"key", "settle", "calendar", "weight"}, word) && len(args) > 0:
		args = []string{strings.Join(args, " ")}
	case (word == "secret" || word == "password") && (len(args) != 1 || args[0] == ""): // the error does not show it
		return d.Errf("%s is empty or several words; use one value, in quotes if it contains spaces", word)
	case len(args) == 0:
		return d.Errf("%s has no value; add one", word)
	case len(args) != 1:
		return d.Errf("%s is %q; use one value", word, strings.Join(args, " "))
	}
	return parseArg(d, word, args[0], to)
}

// parseArg reads an argument as the type of its field has it.
func parseArg(d *caddyfile.Dispenser, word, arg string, to any) error {
	want, ok := "on or off", true
	switch to := to.(type) {
	case *string:
		*to = arg
	case *Amount:
		*to = Amount(arg)
	case *bool:
		*to, ok = arg == "on", arg == "on" || arg == "off"
	case **bool:
		*to, ok = new(arg == "on"), arg == "on" || arg == "off"
	case **int:
		want = "a whole number"
		*to, ok = asNumber(arg)
	case **float64:
		want = "more than 0% and at most 100%, like 70%"
		*to, ok = asShare(arg)
	case **caddy.Duration:
		want = "a duration like 5s"
		*to, ok = asDuration(arg)
	}
	if !ok {
		if arg == "off" || arg == "none" {
			want += ", or leave the line out"
		}
		return d.Errf("%s is %q; use %s", word, arg, want)
	}
	return nil
}

// asNumber reads a whole number, which may be of thousands, millions or billions: 200k.
func asNumber(arg string) (*int, bool) {
	digits, factor := scaled(arg)
	n, err := strconv.Atoi(digits)
	if most := math.MaxInt32; factor > 1 && max(n, -n) > most {
		return &n, false
	}
	n *= factor
	return &n, err == nil
}

// scaled returns a number without the letter behind it, and what that stands for.
func scaled(arg string) (digits string, factor int) {
	for i, letter := range [...]string{"k", "M", "G"} {
		if digits, found := strings.CutSuffix(arg, letter); found {
			return digits, [...]int{1e3, 1e6, 1e9}[i]
		}
	}
	return arg, 1
}

func asFloat(arg string) (float64, bool) {
	digits, factor := scaled(arg)
	n, err := strconv.ParseFloat(digits, 64)
	return n * float64(factor), err == nil && !math.IsNaN(n) && !math.IsInf(n, 0)
}

// asShare reads a percentage, above 0 and up to 100, as a part of 1.
func asShare(arg string) (*float64, bool) {
	number, found := strings.CutSuffix(arg, "%")
	n, ok := asFloat(number)
	return new(n / 100), found && ok && n > 0 && n <= 100
}

func asDuration(arg string) (*caddy.Duration, bool) {
	d, err := caddy.ParseDuration(arg)
	return new(caddy.Duration(d)), err == nil
}

// loadMatchers loads the field MatcherSetsRaw of a zone or a class.
func loadMatchers(ctx caddy.Context, of any) (loaded caddyhttp.MatcherSets, err error) {
	sets, err := ctx.LoadModule(of, "MatcherSetsRaw")
	if err == nil {
		err = loaded.FromInterface(sets)
	}
	return loaded, err
}
