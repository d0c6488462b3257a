package convert

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/herdshield/shield/internal/configfile"
)

// everyone is a placeholder that no directive sets. Requests whose key is empty share one
// bucket.
const everyone = "{vars.every-client}"

// CaddyRateLimit rewrites the rate_limit directives of a Caddyfile, those of
// github.com/mholt/caddy-ratelimit v0.1.0, and leaves all else as it is. It does not read
// the files that the Caddyfile imports. file is the name of the Caddyfile, for notes.
func CaddyRateLimit(file string, text []byte) (Result, error) {
	if trimmed := strings.TrimSpace(string(text)); strings.HasPrefix(trimmed, `{"`) {
		return Result{}, fmt.Errorf("%s is JSON; want a Caddyfile", file)
	}
	tokens, err := caddyfile.Tokenize(append(slices.Clip(text), '\n'), file) // it takes no empty file
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", file, err)
	}
	c := &rateLimits{file: filepath.Base(file), lines: strings.Split(string(text), "\n"), count: map[string]int{}}
	if err := c.find(tokens); err != nil {
		return Result{}, err
	}
	if len(c.blocks) == 0 {
		return Result{}, fmt.Errorf("%s has no rate_limit; want at least one", file)
	}
	var out strings.Builder
	next := 0 // the first line that is not written yet
	for _, b := range c.blocks {
		out.WriteString(strings.Join(c.lines[next:b.from-1], "\n"))
		if b.from-1 > next {
			out.WriteString("\n")
		}
		c.write(&out, b)
		next = b.to
	}
	out.WriteString(strings.Join(c.lines[next:], "\n"))
	return c.notes.result(c.file+", converted by shield convert caddy-ratelimit. All but rate_limit is as it was.", out.String()), nil
}

type rateLimits struct {
	file   string
	lines  []string
	blocks []rateLimit
	count  map[string]int // how often each zone's name occurs
	names  names
	notes
}

// A rateLimit is one directive.
type rateLimit struct {
	from, to int    // its lines, from 1
	matcher  string // "": none
	shared   bool   // it stands in a snippet, which may be imported more than once
	zones    []rateZone
}

type rateZone struct {
	at, name, key  string
	events, window string
	matches        []string // lines of the input
}

func (c *rateLimits) at(line int) string { return fmt.Sprintf("%s:%d", c.file, line) }

// find reads all directives, and rewrites what refers to them in the lines.
func (c *rateLimits) find(tokens []caddyfile.Token) error {
	depth, shared := 0, false
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		first := i == 0 || tokens[i-1].Line+tokens[i-1].NumLineBreaks() < t.Line
		if depth == 0 && first {
			shared = strings.HasPrefix(t.Text, "(") || strings.HasPrefix(t.Text, "&(")
		}
		switch {
		case t.Quoted():
		case t.Text == "{":
			depth++
		case t.Text == "}":
			depth--
		case first && t.Text == "rate_limit":
			d := caddyfile.NewDispenser(tokens[i:])
			d.Next()
			segment := d.NextSegment()
			if end := i + len(segment); end+1 < len(tokens) && tokens[end].Text == "{" && tokens[end].Line == t.Line {
				segment = append(segment, tokens[end:end+2]...) // an empty block
			}
			b, err := c.read(segment)
			if err != nil {
				return err
			}
			b.shared = shared
			c.blocks = append(c.blocks, b)
			i += len(segment) - 1
			continue
		}
		c.refer(tokens, i, first)
	}
	return nil
}

// refer looks at a token outside the directives.
func (c *rateLimits) refer(tokens []caddyfile.Token, i int, first bool) {
	t := tokens[i]
	line := &c.lines[t.Line-1]
	switch placeholder := "http.rate_limit.exceeded.name"; {
	case t.Text == "rate_limit" && i > 0 && slices.ContainsFunc(tokens[max(0, i-3):i], func(o caddyfile.Token) bool { return o.Text == "order" && o.Line == t.Line }):
		*line = strings.ReplaceAll(*line, "rate_limit", "shield")
	case strings.Contains(t.Text, placeholder):
		for l := t.Line; l <= t.Line+t.NumLineBreaks(); l++ {
			c.lines[l-1] = strings.ReplaceAll(c.lines[l-1], placeholder, "http.shield.zone")
		}
	case strings.Contains(t.Text, "rate_limit"):
		c.add(Missing, c.at(t.Line), "%s: shield emits no such event and has no such name; its events are in docs/operating.md", t.Text)
	case first && t.Text == "import" && i+1 < len(tokens):
		if name := tokens[i+1].Text; strings.ContainsAny(name, "/*.") {
			c.add(Missing, c.at(t.Line), "import %s: the file is not read; convert it too if it has a rate_limit", name)
		}
	}
}

// read reads one directive as caddy-ratelimit does.
func (c *rateLimits) read(tokens []caddyfile.Token) (b rateLimit, err error) {
	last := tokens[len(tokens)-1]
	b.from, b.to = tokens[0].Line, last.Line+last.NumLineBreaks()
	d := caddyfile.NewDispenser(tokens)
	d.Next()
	if d.NextArg() {
		b.matcher = d.Val()
		if b.matcher != "*" && !strings.HasPrefix(b.matcher, "/") && !strings.HasPrefix(b.matcher, "@") || d.NextArg() {
			return b, d.ArgErr()
		}
	}
	for d.NextBlock(0) {
		at := c.at(d.Line())
		switch word := d.Val(); word {
		case "zone":
			z, err := c.readZone(d)
			if err != nil {
				return b, err
			}
			if i := slices.IndexFunc(b.zones, func(o rateZone) bool { return o.name == z.name }); i >= 0 {
				b.zones = slices.Delete(b.zones, i, i+1)
			}
			b.zones = append(b.zones, z)
			continue
		case "import":
			c.add(Missing, at, "import %s: zones in it are not read; write them out here and convert again", strings.Join(d.RemainingArgs(), " "))
		default:
			note, known := rateOptions[word]
			if !known {
				note = Note{Kind: Missing, Text: "caddy-ratelimit does not know it, and ignores it"}
			}
			c.add(note.Kind, at, "%s: %s", word, note.Text)
		}
		d.NextSegment() // what is left of it
	}
	return b, nil
}

// rateOptions says what becomes of options besides zones.
var rateOptions = map[string]Note{
	"distributed":    {Kind: Missing, Text: "replicas share limits through Redis, with `store` in the global options (docs/replicas.md). Without it each replica counts alone"},
	"storage":        {Kind: Missing, Text: "shield shares limits through Redis only (docs/replicas.md)"},
	"jitter":         {Kind: Better, Text: "each rejected client is told its own time, so there is nothing to spread"},
	"sweep_interval": {Kind: Better, Text: "memory is bounded by the zone's max_keys, and needs no sweep"},
	"log_key":        {Kind: Missing, Text: "shield writes no line per rejection. `shield who` and `shield top` show who is rejected"},
}

func (c *rateLimits) readZone(d *caddyfile.Dispenser) (z rateZone, err error) {
	z.at = c.at(d.Line())
	if !d.Args(&z.name) {
		return z, d.ArgErr()
	}
	c.count[z.name]++
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		word, line := d.Val(), d.Line()
		switch segment := d.NextSegment(); {
		case word == "match":
			last := segment[len(segment)-1]
			z.matches = append(z.matches, c.lines[line-1:last.Line+last.NumLineBreaks()]...)
		case word == "import":
			c.add(Missing, c.at(line), "import in zone %s: options in it are not read; write them out here and convert again", z.name)
		case word != "key" && word != "events" && word != "window":
			c.add(Missing, c.at(line), "%s in zone %s: caddy-ratelimit does not know it, and ignores it", word, z.name)
		case len(segment) < 2:
			return z, fmt.Errorf("%s: %s has no argument; want one", c.at(line), word)
		default:
			*map[string]*string{"key": &z.key, "events": &z.events, "window": &z.window}[word] = segment[1].Text
		}
	}
	if z.events == "" || z.window == "" {
		return z, fmt.Errorf("%s: zone %s lacks events or window; want both", z.at, z.name)
	}
	return z, nil
}

func (c *rateLimits) write(out *strings.Builder, b rateLimit) {
	var limits, comments strings.Builder
	for _, z := range b.zones {
		rate, burst, err := c.rate(z)
		if err == nil && strings.Contains(z.key, "{") {
			err = checkKey(z.key)
		}
		if err != nil {
			c.add(Missing, z.at, "zone %s: %v", z.name, err)
			fmt.Fprintf(&comments, "# %s: zone %s is not converted: %v\n", z.at, z.name, err)
			continue
		}
		if limits.Len() > 0 {
			limits.WriteString("\n")
		}
		everywhere := len(z.matches) == 0 && !strings.Contains(z.key, "{")
		if everywhere && !b.shared && c.count[z.name] == 1 && len(b.zones) == 1 {
			c.writeCapacity(&limits, z, rate, burst)
			continue
		}
		c.writeZone(&limits, z, rate, burst)
	}
	if len(b.zones) > 1 {
		c.add(Better, c.at(b.from), "all zones are checked before any is charged; there a zone is charged although a later one rejects")
	}
	out.WriteString(comments.String())
	if limits.Len() > 0 {
		fmt.Fprintf(out, "shield %s {\n%s}\n", b.matcher, limits.String())
	}
}

func (c *rateLimits) writeCapacity(out *strings.Builder, z rateZone, rate, burst string) {
	fmt.Fprintf(out, "# %s: zone %s, one for all clients: %s events in %s\n", z.at, z.name, z.events, z.window)
	fmt.Fprintf(out, "capacity %s burst %s\n", rate, burst)
	c.add(Better, z.at, "zone %s counts all clients together, so it is the capacity: each rejected client is told a time of its own, and they come back at the rate", z.name)
	c.add(Differs, z.at, earlyReturns)
	c.add(Differs, z.at, "zone %s: it rejects with 503, and with 429 there. `overload_status 429` in `pushback` keeps 429", z.name)
}

func (c *rateLimits) writeZone(out *strings.Builder, z rateZone, rate, burst string) {
	fmt.Fprintf(out, "# %s: %s events in %s\n", z.at, z.events, z.window)
	name := c.names.of(z.name, z.name)
	if name != z.name && !strings.Contains(z.name, "{") {
		c.add(Differs, z.at, "zone %s is called %s: names have letters, digits and _-./: only", z.name, name)
	}
	if strings.Contains(z.name, "{") { // an argument of a snippet
		name = z.name
	}
	fmt.Fprintf(out, "zone %s {\n%s", name, strings.Join(append(z.matches, ""), "\n"))
	if strings.Contains(z.key, "{") {
		fmt.Fprintf(out, "key %s\n", quote(z.key))
	} else {
		fmt.Fprintf(out, "key %s # is never set, so all clients share one bucket\n", everyone)
	}
	fmt.Fprintf(out, "rate %s\nburst %s\n}\n", rate, burst)
	if strings.Contains(z.key, "client_ip") || strings.Contains(z.key, "remote") {
		c.add(Better, z.at, "an IPv6 client is its /64, as it could change its address within that. `ipv6_prefix 128` counts single addresses")
	}
	if strings.Contains(z.key, "header.") || strings.Contains(z.key, "cookie.") || strings.Contains(z.key, "query.") {
		c.add(Better, z.at, "a header, cookie or parameter that comes twice counts as absent, and case does not matter: a client cannot vary its key so")
	}
}

func (c *rateLimits) rate(z rateZone) (rate, burst string, err error) {
	window, err := caddy.ParseDuration(z.window)
	if err != nil || window <= 0 {
		return "", "", fmt.Errorf("window is %s; want a duration that is known before the file is loaded", z.window)
	}
	unit, per := "h", time.Hour // a window of other length is a rate per hour
	switch window {
	case time.Second:
		unit, per = "s", window
	case time.Minute:
		unit, per = "m", window
	}
	if strings.Contains(z.events, "{") && per == window { // an argument of a snippet
		return z.events + "/" + unit, z.events, nil
	}
	events, err := strconv.Atoi(z.events)
	if err != nil || events < 1 {
		return "", "", fmt.Errorf("events is %s; want a number of at least 1, or a window of 1s, 1m or 1h", z.events)
	}
	if window > maxWindow {
		return "", "", errors.New("window is longer than 31 days; want at most that")
	}
	c.add(Differs, z.at, "zone %s: after %d at once, one more is admitted every %v; there the next one %s after the first. "+
		"So any %s may admit %d; a smaller `burst` lowers that", z.name, events, (window / time.Duration(events)).Round(time.Millisecond), z.window, z.window, 2*events)
	return strconv.FormatFloat(float64(events)*per.Seconds()/window.Seconds(), 'g', 6, 64) + "/" + unit, z.events, nil
}

// maxWindow is how long a burst may take to be whole again.
const maxWindow = 31 * 24 * time.Hour

// checkKey returns an error if a shield does not take the key. Values that are known when
// the file is loaded are not checked.
func checkKey(key string) error {
	if strings.Contains(key, "{args") || strings.Contains(key, "{$") || strings.Contains(key, "{block") {
		return nil
	}
	_, err := configfile.Read("key", []byte("shield {\nzone z {\nkey "+quote(key)+"\nrate 1/s\n}\n}"))
	if err != nil {
		_, text, _ := strings.Cut(err.Error(), `zone "z": `)
		if text != "" {
			err = errors.New(text)
		}
	}
	return err
}
