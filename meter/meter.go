// Package meter finds out what a response cost: the tokens a language model used, bytes, seconds, or any
// number the backend puts into a header, a trailer or JSON. You only know it when the response ends, so a
// Meter watches the response on its way to the client and doesn't hold any of it back.
//
// For example, with the Source "usage", a completion ending in {"usage":{"total_tokens":99}} costs 99.
//
//	meter.go    Source says where to look, and Meter what was found
//	body.go     reads compressed bodies and server-sent events
//	scanner.go  finds numbers in JSON
package meter

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Source says where a response tells its cost. The zero Source is none: its String is empty.
type Source struct {
	text  string
	kind  string
	args  []string // names of fields are canonical
	paths paths    // in JSON
}

// sources returns the forms of a Source. A key is not what belongs to JSONPath or jq, and a name is a token of RFC 9110. Configs alone
// need it, so it is compiled for them alone.
func sources() *regexp.Regexp {
	const key, name, code = `[^\s."$[\]]+`, "[\\w!#$%&'*+.^`|~-]+", `[2-9]\d\d`
	return regexp.MustCompile(`^(usage|bytes|time|json( ` + key + `(\.` + key + `)*)+|(header|trailer) ` + name + `|status( ` + code + `)+)$`)
}

// Parse reads a Source, one of:
//
//	usage                      tokens, as the APIs of language models tell them: see usage
//	json usage.total_tokens    the number at a path of keys; of several, with blanks between, the sum of those that are there.
//	                           In a stream of values, each replaces what was there before
//	header X-Cost              the number in a field of the header
//	trailer X-Cost             the number in a trailer, or else in the header
//	bytes                      of the body as it is sent, perhaps compressed
//	time                       seconds, with fractions
//	status 401 403 404         1 for a response with one of these, 0 for the others
func Parse(text string) (Source, error) {
	words := strings.Fields(text)
	s := Source{text: strings.Join(words, " ")}
	if !sources().MatchString(s.text) {
		return Source{}, fmt.Errorf("source of the cost is %q; use usage, json and paths such as usage.total_tokens, "+
			"header or trailer and a name, bytes, time, or status and codes from 200", s.text)
	}
	s.kind, s.args = words[0], words[1:]
	switch s.kind {
	case "usage":
		s.paths = usage
	case "json":
		s.paths = paths{}
		for i, arg := range s.args {
			s.paths[arg] = i
		}
	case "header", "trailer":
		s.args[0] = http.CanonicalHeaderKey(s.args[0])
	}
	return s, nil
}

// String returns what Parse has read, with one blank between words.
func (s Source) String() string { return s.text }

// Reads reports whether the Source looks for the cost in the body.
func (s Source) Reads() bool { return len(s.paths) > 0 }

// A Meter finds the cost of one response. It has to be ended by Cost. No two methods may be called at a time.
type Meter struct {
	source Source
	told   string // by the header
	sent   int64
	body   *body // nil: it is not read
}

// Begin begins to read a response with this header.
func (s Source) Begin(h http.Header) *Meter {
	m := &Meter{source: s}
	switch s.kind {
	case "header", "trailer":
		m.told = h.Get(s.args[0])
	case "usage", "json":
		m.body = newBody(s.paths, h)
	}
	return m
}

// Write reads a part of the body, and keeps none of it: a stream takes as little memory in its second hour as at its beginning.
func (m *Meter) Write(p []byte) {
	m.sent += int64(len(p))
	if m.body != nil {
		m.body.put(p)
	}
}

// Over reports whether the body has told its end: its JSON is whole, or the last event has come. Clients may hang up then, before
// they see that nothing follows, as those do that stop at [DONE].
func (m *Meter) Over() bool { return m.body != nil && m.body.over() }

// An End is how a response has ended.
type End struct {
	Status int
	// Header is the ResponseWriter's, with trailers as handlers of net/http set them: in the fields that
	// the field Trailer has announced, or behind http.TrailerPrefix.
	Header http.Header
	Took   time.Duration
}

// Cost ends the Meter, and returns what the response has cost, if that was found: it is finite and not negative.
func (m *Meter) Cost(end End) (cost float64, found bool) {
	if m.body != nil && m.body.stop != nil {
		m.body.stop()
	}
	switch m.source.kind {
	case "bytes":
		return float64(m.sent), true
	case "time":
		return max(0, end.Took.Seconds()), true
	case "status":
		if slices.Contains(m.source.args, strconv.Itoa(end.Status)) {
			cost = 1
		}
		return cost, true
	case "trailer":
		m.told = cmp.Or(end.Header.Get(http.TrailerPrefix+m.source.args[0]), end.Header.Get(m.source.args[0]), m.told)
		fallthrough
	case "header":
		return number(strings.TrimSpace(m.told))
	}
	if m.body == nil {
		return 0, false
	}
	for i, v := range m.body.json.values {
		if sum := i == 0 && m.source.kind == "usage"; v >= 0 && sum {
			return v, true
		} else if v >= 0 {
			cost, found = cost+v, true
		}
	}
	return cost, found && !math.IsInf(cost, 0)
}

// digits are what numbers in JSON consist of. ParseFloat knows infinity, hexadecimal numbers and underscores as well.
const digits = "0123456789.eE+-"

// number reads a number, if it may be a cost.
func number(text string) (float64, bool) {
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil && v >= 0 && strings.Trim(text, digits) == ""
}

// usage is where the APIs of language models tell tokens: a sum, at the index 0, or else counts that are to be added up.
// By the types of their SDKs for JavaScript:
//
//	openai 7.59.0             CompletionUsage in usage, of a stream in the last chunk if the client has set include_usage; null
//	                          before. ResponseUsage in usage, of a stream in the response of response.completed, incomplete
//	                          and failed. All have total_tokens, of which cached and reasoning tokens are parts
//	@anthropic-ai/sdk 1.14.0  Usage in usage, of a stream in the message of message_start; MessageDeltaUsage in the usage of
//	                          message_delta, whose counts are those until then: they replace earlier ones unless they are null.
//	                          "Total input tokens in a request is the summation of input_tokens, cache_creation_input_tokens, and
//	                          cache_read_input_tokens"; output_tokens come on top. Not counted: compaction, in iterations of betas
//	@google/genai 2.32.0      GenerateContentResponseUsageMetadata in usageMetadata, in each chunk of a stream: totalTokenCount is
//	                          the sum of prompt, candidates, tool use and thoughts until then
//	ollama 0.6.4              ChatResponse, GenerateResponse: prompt_eval_count and eval_count, of a stream in its last line;
//	                          EmbedResponse: prompt_eval_count
var usage = func() paths {
	p := paths{"usageMetadata.totalTokenCount": 0, "prompt_eval_count": 5, "eval_count": 6}
	for i, count := range []string{"total_tokens", "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"} {
		p["usage."+count], p["response.usage."+count], p["message.usage."+count] = i, i, i
	}
	return p
}()
