package configfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A place is a value of a JSON config, and where it stands.
type place struct {
	path  string // as jq has it: .apps.http.servers.srv0.routes[0]
	value any
}

func (p place) member(key string) place {
	object, _ := p.value.(map[string]any)
	return place{p.path + member(key), object[key]}
}

func (p place) element(i int) place {
	list := p.value.([]any)
	return place{fmt.Sprintf("%s[%d]", p.path, i), list[i]}
}

func member(key string) string {
	if plainKey.MatchString(key) {
		return "." + key
	}
	return fmt.Sprintf("[%q]", key)
}

var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// named is how errors begin that are about one of several: zone "a": burst is 0.
var named = regexp.MustCompile(`^(zone|class) ("(?:[^"\\]|\\.)*")[ :]`)

// ofMatchers are errors of one of several sets of matchers: match 2: path is "a".
var ofMatchers = regexp.MustCompile(`^match(?: (\d+))?:`)

// of returns the value that an error is about: as all of the project's do, it begins with the names
// of the options around the one that is wrong.
func (p place) of(text string) place {
	text = strings.TrimLeft(text, ": ")
	if m := named.FindStringSubmatch(text); m != nil {
		name, _ := strconv.Unquote(m[2])
		list, _ := p.member(map[string]string{"zone": "zones", "class": "classes"}[m[1]]).value.([]any)
		in := p.member(map[string]string{"zone": "zones", "class": "classes"}[m[1]])
		for i := range list {
			one := in.element(i)
			given, has := one.member("name").value.(string)
			if given == name || !has && strings.HasSuffix(name, "/per_client") {
				return one.of(text[len(m[0])-1:])
			}
		}
	}
	if m := ofMatchers.FindStringSubmatch(text); m != nil {
		i, _ := strconv.Atoi(m[1])
		i = max(0, i-1)
		if sets, _ := p.member("match").value.([]any); i < len(sets) {
			return p.member("match").element(i).of(text[len(m[0]):])
		}
	}
	object, _ := p.value.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if rest, ok := strings.CutPrefix(text, key); ok && strings.IndexAny(rest, ": ") == 0 {
			return p.member(key).of(rest)
		}
	}
	return p
}

// find returns the first value for which fits holds.
func (p place) find(fits func(key string, value any) bool) (place, bool) {
	switch v := p.value.(type) {
	case []any:
		for i := range v {
			if found, ok := p.element(i).find(fits); ok {
				return found, true
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if fits(key, v[key]) {
				return p.member(key), true
			}
			if found, ok := p.member(key).find(fits); ok && key != "match" {
				return found, true
			}
		}
	}
	return place{}, false
}

var (
	unknownField  = regexp.MustCompile(`unknown field "(.*)"$`)
	wrongDuration = regexp.MustCompile(`(?:invalid duration|missing unit in duration|unknown unit .* in duration) "(.*)"$`)
)

// decoding says what is wrong with a handler that cannot be decoded, and where.
func (p place) decoding(err error) (string, place) {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		option := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]
		found, ok := p.find(func(key string, value any) bool {
			return key == option && strings.HasPrefix(wrong.Value, kindOf(value))
		})
		if !ok {
			found = p
		}
		return fmt.Sprintf("%s is a %s; want %s", option, wrong.Value, wanted(wrong.Type)), found
	}
	if m := unknownField.FindStringSubmatch(err.Error()); m != nil {
		if found, ok := p.find(func(key string, _ any) bool { return key == m[1] }); ok {
			return fmt.Sprintf("%s is no option; want one of the documentation's", m[1]), found
		}
	}
	if m := wrongDuration.FindStringSubmatch(err.Error()); m != nil {
		if found, ok := p.find(func(_ string, value any) bool { return value == m[1] }); ok {
			return fmt.Sprintf("%s is %q; want a duration with a unit, like 5s", found.path[strings.LastIndexByte(found.path, '.')+1:], m[1]), found
		}
	}
	return err.Error(), p
}

// kindOf is what encoding/json calls a value.
func kindOf(value any) string {
	switch value.(type) {
	case string:
		return "string"
	case float64:
		return "number"
	case bool:
		return "bool"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	}
	return "null"
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list in brackets"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "an object in braces"
	}
	return "a number"
}

// lineOf returns the line in which the value of a path ends, if it is no list or object, or else
// begins; 1 if there is none.
func lineOf(text []byte, path string) (line int) {
	dec := json.NewDecoder(bytes.NewReader(text))
	line = 1
	var walk func(at string) bool // until it is found
	walk = func(at string) bool {
		open, err := dec.Token()
		if at == path || err != nil {
			line += bytes.Count(text[:dec.InputOffset()], []byte("\n"))
			return true
		}
		if open != json.Delim('{') && open != json.Delim('[') {
			return false
		}
		for i := 0; dec.More(); i++ {
			next := fmt.Sprintf("%s[%d]", at, i)
			if open == json.Delim('{') {
				key, _ := dec.Token()
				next = at + member(fmt.Sprint(key))
			}
			if walk(next) {
				return true
			}
		}
		_, err = dec.Token() // the end
		return err != nil
	}
	walk("")
	return line
}
