package caddymodule

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/caddymodule/clientkey"
)

// A document is the beginning of a request's body, as the placeholders of clientkey.JSONPrefix read it. It is looked at when the
// first of them is asked for, until the request has been decided on: then others read the body.
type document struct {
	r     *http.Request // nil: the request has been decided on
	paced bool          // the body must come at a pace
	begin []byte
	whole bool              // begin is all of the body
	done  func()            // to be called after r
	known map[string]string // by path; nil: the body has not been looked at
	err   error             // it cannot be read
}

// documentOf provides the placeholders of r. See upload.Early.Peek.
func documentOf(r *http.Request, paced bool) *document {
	d := &document{r: r, paced: paced, done: func() {}}
	if repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); repl != nil {
		repl.Map(d.placeholder)
	}
	return d
}

func (d *document) placeholder(key string) (any, bool) {
	path, is := strings.CutPrefix(key, clientkey.JSONPrefix)
	if !is {
		return nil, false
	}
	text, known := d.known[path]
	if known || d.r == nil {
		return text, known
	}
	if d.known == nil {
		d.known = map[string]string{}
		if isJSON(single(d.r.Header["Content-Type"])) && d.r.Header["Content-Encoding"] == nil {
			d.begin, d.whole, d.done, d.err = bodies.Peek(d.r, d.paced)
		}
	}
	text = field(d.begin, d.whole, strings.Split(path, "."))
	d.known[path] = text
	return text, true
}

// isJSON reports whether a Content-Type is JSON from its first byte on, as that of messages of gRPC and Connect isn't.
func isJSON(contentType string) bool {
	kind, _, _ := mime.ParseMediaType(contentType)
	framed := strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect")
	return kind == "application/json" || strings.HasSuffix(kind, "+json") && !framed
}

// field returns the text of the string, number or boolean at a path of a JSON object. It is "" for other values, for a field that is there
// several times, as backends differ in which they take, and if the JSON is wrong. Upper and lower case are the same in names, as they
// are to backends in Go. If the JSON is not whole, what has not come is not there.
func field(begin []byte, whole bool, path []string) (text string) {
	if !whole { // a number at the end may go on
		begin = bytes.TrimRight(begin, "0123456789.eE+-")
	}
	d, twice := json.NewDecoder(bytes.NewReader(begin)), false
	var value json.RawMessage
	var find func(path []string) error // in the next value
	find = func(path []string) error {
		if len(path) == 0 {
			err := d.Decode(&value)
			if err == nil {
				text = scalar(value)
			}
			return err
		}
		begins, err := d.Token()
		if _, open := begins.(json.Delim); err != nil || !open {
			return err
		}
		for found := false; err == nil && d.More(); {
			var name any
			if begins == json.Delim('{') {
				name, err = d.Token()
			}
			if key, _ := name.(string); name != nil && strings.EqualFold(key, path[0]) {
				found, twice = true, twice || found
				err = find(path[1:])
			} else if err == nil {
				err = d.Decode(&value)
			}
		}
		if err == nil {
			_, err = d.Token()
		}
		return err
	}
	err := find(path)
	ends := !whole && (err == io.EOF || err == io.ErrUnexpectedEOF)
	if err == nil {
		_, err = d.Token()
		ends = err == io.EOF // else something follows the object
	}
	if !ends || twice {
		return ""
	}
	return text
}

// scalar returns the text of a valid value. A number has one text, however it is written, and none if backends cannot read it.
func scalar(value json.RawMessage) (text string) {
	var is any
	_ = json.Unmarshal(value, &is)
	switch is := is.(type) {
	case string:
		text = is
	case bool:
		text = string(value)
	case float64:
		if text = string(value); is == 0 || strings.ContainsAny(text, ".eE") {
			text = strconv.FormatFloat(is+0, 'f', -1, 64)
		}
	}
	return text
}
