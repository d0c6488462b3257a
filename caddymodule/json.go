package caddymodule

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/caddymodule/clientkey"
)

// A document is the beginning of a request's body, as the placeholders of clientkey.JSONPrefix read it. It is looked at when the
// first of them is asked for, until the request has been decided on: then others read the body.
type document struct {
	r     *http.Request // nil: not any more
	paced bool          // the body must come at a pace
	begin []byte
	whole bool // begin is all of the body
	done  func()
	known map[string]string // by path
	err   error             // the body cannot be read
}

// documentOf provides the placeholders of r. Its end has to be called after r.
func documentOf(r *http.Request, paced bool) *document {
	d := &document{r: r, paced: paced}
	if repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); repl != nil {
		repl.Map(d.placeholder)
	}
	return d
}

// close keeps the body from being looked at from now on.
func (d *document) close() {
	if d != nil {
		d.r, d.begin = nil, nil
	}
}

func (d *document) end() {
	d.close()
	if d.done != nil {
		d.done()
	}
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
func field(begin []byte, whole bool, path []string) string {
	s := scanner{Decoder: json.NewDecoder(bytes.NewReader(begin)), size: int64(len(begin)), times: make([]int, len(path))}
	err := s.scan(path)
	complete := err == nil
	if complete {
		_, err = s.Token() // nil if something follows the object
	}
	if ends := err == io.EOF || err == io.ErrUnexpectedEOF; !ends || whole && !complete || slices.Max(s.times) > 1 {
		return ""
	}
	return s.text
}

// A scanner looks for one field.
type scanner struct {
	*json.Decoder
	size  int64
	value json.RawMessage // the last
	times []int           // that the parts of the path have been found, the last part first
	text  string
}

// scan reads the next value, of which a path is looked for.
func (s *scanner) scan(path []string) error {
	if len(path) == 0 {
		err := s.Decode(&s.value)
		if err == nil && s.InputOffset() < s.size { // a number at the end may go on
			s.text = scalar(s.value)
		}
		return err
	}
	begins, err := s.Token()
	if object := begins == json.Delim('{'); err != nil || !object && begins != json.Delim('[') {
		return err
	}
	for s.More() {
		here := false
		if begins == json.Delim('{') {
			name, err := s.Token()
			if err != nil {
				return err
			}
			here = strings.EqualFold(name.(string), path[0])
		}
		if !here {
			err = s.Decode(&s.value)
		} else if err = s.scan(path[1:]); err == nil {
			s.times[len(path)-1]++
		}
		if err != nil {
			return err
		}
	}
	_, err = s.Token()
	return err
}

// scalar returns the text of a valid value. A number has one text, however it is written, and none if backends cannot read it.
func scalar(value json.RawMessage) (text string) {
	switch c := value[0]; {
	case c == '"':
		_ = json.Unmarshal(value, &text)
	case c == 't' || c == 'f':
		text = string(value)
	case c == '-' || '0' <= c && c <= '9':
		text = string(value)
		if n, err := strconv.ParseFloat(text, 64); err != nil {
			text = ""
		} else if n == 0 || strings.ContainsAny(text, ".eE") {
			text = strconv.FormatFloat(n+0, 'f', -1, 64)
		}
	}
	return text
}
