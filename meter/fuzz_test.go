package meter_test

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

const fuzzed = "json a b.c usage.total_tokens größe.a"

// oracle finds by encoding/json what a Meter for fuzzed finds in values, one after the other. It returns
// false for what is no JSON, and for numbers longer than anybody needs.
func oracle(text []byte) (cost float64, ok bool) {
	found := map[string]float64{}
	ok = true
	var walk func(raw json.RawMessage, path string, deep bool)
	walk = func(raw json.RawMessage, path string, deep bool) {
		switch raw[0] {
		case '[':
			var list []json.RawMessage
			if json.Unmarshal(raw, &list) == nil && !deep {
				for _, element := range list {
					if element[0] == '{' || element[0] == '[' {
						walk(element, "", false)
					}
				}
			}
		case '{':
			d := json.NewDecoder(bytes.NewReader(raw))
			_, _ = d.Token() // the brace
			for d.More() {
				key, err := d.Token()
				var value json.RawMessage
				if err != nil || d.Decode(&value) != nil {
					ok = false
					return
				}
				if deep {
					walk(value, path+"."+key.(string), true)
				} else {
					walk(value, key.(string), true)
				}
			}
		default:
			var v float64
			ok = ok && (len(raw) <= 32 || raw[0] == '"')
			if json.Unmarshal(raw, &v) == nil && raw[0] != 'n' && v >= 0 {
				found[path] = v
			}
		}
	}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var raw json.RawMessage
		if err := d.Decode(&raw); err == io.EOF {
			break
		} else if err != nil {
			return 0, false
		}
		if raw[0] != '{' && raw[0] != '[' {
			break // nothing is read behind it
		}
		walk(raw, "", false)
	}
	some := false
	for _, path := range strings.Fields(fuzzed)[1:] {
		if v, found := found[path]; found {
			cost, some = cost+v, true
		}
	}
	if !some || cost > 1e308 {
		return -1, ok
	}
	return cost, ok
}

// A Meter agrees with encoding/json, and however a text is cut, it finds the same.
func FuzzJSON(f *testing.F) {
	for _, b := range bodies {
		if len(b.body) < 3000 {
			f.Add([]byte(b.body), uint(7))
		}
	}
	for _, text := range []string{
		`{"a":1,"b":{"c":2,"b":{"c":9}},"usage":{"total_tokens":3},"usage.total_tokens":4}`, `[{"a":1},[{"a":2}],3,"a",{"b":{"c":[{"c":4}],"c":5}}] {"a":6}`,
		`{"":{"a":1},"x":{"":{"a":2}},"a":{"":3}}`, `{"gr\u00f6\u00dfe":{"\u0061":1}, "größe":{"a":2e-3}}`, `{"a":-1} {"a":0.5e+1} 7 {"a":8}`, `{"a":1}{"a":tru`, `{"a" 1:{"a":2]}`,
		`{"b":"\\\"","b":{"c":1},"a":"\ud83d\ude00"}`, `{"b.c":1,"b":{"c.d":2},"b":{"c":{"d":3}}}`, `{"A":1,"a":null,"a":true}`,
		`{"a":1e308,"b":{"c":1e308}}`, `[{"a":1},5,"x",6]`, `[] 7 {"a":8}`, `[[]] {"a":1}`, `{"b":{"\u0063":1},"\u0075\u0073\u0061\u0067\u0065":{"\u0074\u006f\u0074\u0061\u006c\u005f\u0074\u006f\u006b\u0065\u006e\u0073":1}}`,
	} {
		f.Add([]byte(text), uint(1))
	}
	f.Fuzz(func(t *testing.T, text []byte, step uint) {
		s := source(t, fuzzed)
		got := cost(s, header(plain, ""), text)
		if want, ok := oracle(text); ok && got != want {
			t.Errorf("%q costs %v, want %v", text, got, want)
		}
		for _, kind := range []string{plain, events} {
			whole := cost(s, header(kind, ""), text)
			var parts [][]byte
			for i := 0; i < len(text); i += int(step%100 + 1) {
				parts = append(parts, text[i:min(len(text), i+int(step%100+1))])
			}
			if got := cost(s, header(kind, ""), parts...); got != whole {
				t.Errorf("%s %q costs %v in parts of %d, %v at once", kind, text, got, step%100+1, whole)
			}
		}
		if json.Valid(text) { // in an event, it is the same
			var line bytes.Buffer
			_ = json.Compact(&line, text) // it is valid
			if in := cost(s, header(events, ""), []byte("event: x\r\ndata:"), line.Bytes(), []byte("\r\n\r\n")); in != got {
				t.Errorf("%q costs %v in an event, %v alone", text, in, got)
			}
		}
	})
}

// What is not what it says does no harm.
func FuzzEncoded(f *testing.F) {
	for _, encoding := range []string{"gzip", "zstd"} {
		f.Add(encode(f, encoding, []byte(bodies[1].body), true), encoding == "zstd")
	}
	f.Fuzz(func(t *testing.T, body []byte, isZstd bool) {
		h := header(events, "gzip")
		if isZstd {
			h = header(events, "zstd")
		}
		s := source(t, "usage")
		if whole, parts := cost(s, h, body), cost(s, h, single(body)...); whole != parts || whole < -1 {
			t.Errorf("at once it costs %v, byte by byte %v", whole, parts)
		}
	})
}
