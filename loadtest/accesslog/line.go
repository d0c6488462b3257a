package accesslog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/herdshield/shield"
)

// A request is a line of the log.
type request struct {
	end     time.Duration // since 1970: when it had been answered
	took    time.Duration // until then, since it came
	untimed bool          // the line has no duration, or one of unknown unit
	client  uint64        // a hash of the client
	what    uint64        // a hash of method, host and path
	status  int
	stream  bool          // an upgrade or a stream of events: its time depends on the client
	seconds time.Duration // of Retry-After; 0: none
	millis  time.Duration // of Retry-After-Ms; 0: none
}

// came is when the request arrived, since 1970.
func (r request) came() time.Duration { return r.end - r.took }

// rejected reports whether the request was rejected, so that the client may retry.
func (r request) rejected() bool { return r.status == http.StatusTooManyRequests || r.overloaded() }

// overloaded reports whether the backend had no capacity.
func (r request) overloaded() bool {
	return r.status == http.StatusBadGateway || r.status == http.StatusServiceUnavailable || r.status == http.StatusGatewayTimeout
}

func (r request) served() bool {
	return r.status < 500 && r.status != http.StatusTooManyRequests && r.status != gone
}

// gone is the status of a request whose client left before the response.
const gone = 499

var (
	errOther  = errors.New("not a line of the access log")
	errBroken = errors.New("an unreadable line")
)

// A line has the fields that are read, by their names in Caddy's JSON encoder. Fields that
// a log filter may have replaced are raw.
type line struct {
	TS      json.RawMessage `json:"ts"`
	Logger  string          `json:"logger"`
	Msg     string          `json:"msg"`
	Request *struct {
		RemoteIP string `json:"remote_ip"`
		ClientIP string `json:"client_ip"`
		Method   string `json:"method"`
		Host     string `json:"host"`
		URI      string `json:"uri"`
	} `json:"request"`
	Duration json.RawMessage `json:"duration"`
	Status   *int            `json:"status"`
	Headers  struct {
		RetryAfter   json.RawMessage `json:"Retry-After"`
		RetryAfterMs json.RawMessage `json:"Retry-After-Ms"`
		ContentType  json.RawMessage `json:"Content-Type"`
	} `json:"resp_headers"`
	Shield struct {
		Decision string `json:"decision"`
		Millis   int64  `json:"retry_after_ms"`
	} `json:"shield"`
}

// accessLogger is the name of Caddy's access logger, and with a dot the prefix of the
// loggers that sites have named.
const accessLogger = "http.log.access"

// parse reads a line. The error is errOther or errBroken.
func parse(text []byte) (request, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		// A filter may have replaced the headers by a string.
		if wrong := (*json.UnmarshalTypeError)(nil); !errors.As(err, &wrong) {
			return request{}, errBroken
		}
	}
	switch {
	case l.Logger == accessLogger || strings.HasPrefix(l.Logger, accessLogger+"."):
	case l.Logger == "" && l.Msg == "handled request": // the encoder's name_key is another
	case l.Logger == "" && l.Msg == "" && l.Request == nil && len(l.TS) == 0:
		return request{}, errBroken
	default:
		return request{}, errOther
	}
	if l.Request == nil || l.Status == nil {
		return request{}, errBroken
	}
	end, ok := parseTime(l.TS)
	if !ok {
		return request{}, errBroken
	}
	path, _, _ := strings.Cut(l.Request.URI, "?")
	r := request{
		end:    end,
		client: hash(subscriber(cmp.Or(l.Request.ClientIP, l.Request.RemoteIP))),
		what:   hash(l.Request.Method, l.Request.Host, path),
		status: *l.Status,
		stream: *l.Status == http.StatusSwitchingProtocols || strings.HasPrefix(value(l.Headers.ContentType), "text/event-stream"),
	}
	r.took, ok = parseDuration(l.Duration)
	r.untimed = !ok
	if r.rejected() {
		r.seconds = min(shield.RetryAfter(value(l.Headers.RetryAfter), time.Unix(0, int64(end))), maxWait)
		if ms, err := strconv.ParseInt(value(l.Headers.RetryAfterMs), 10, 64); err == nil && ms > 0 {
			r.millis = bounded(float64(ms) / 1000)
		}
		if r.seconds == 0 && l.Shield.Decision == "reject" && l.Shield.Millis > 0 { // no headers in the log
			r.seconds = bounded(math.Ceil(float64(l.Shield.Millis) / 1000))
		}
	}
	return r, nil
}

// hash hashes words. Words with line feeds may collide.
func hash(words ...string) uint64 { return xxhash.Sum64String(strings.Join(words, "\n")) }

// subscriber is the address that counts as one client: for IPv6 its /64, as in shield.
func subscriber(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	return string(shield.AppendNetwork(nil, ip, 32, 64))
}

// longestValue bounds the header values that are read: a time is shorter.
const longestValue = 1000

// value is the first value of a header, which is a list or, after a filter, a string.
func value(raw json.RawMessage) string {
	if len(raw) == 0 || len(raw) > longestValue {
		return ""
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		return strings.TrimSpace(list[0])
	}
	var one string
	_ = json.Unmarshal(raw, &one) // "" if it is neither
	return strings.TrimSpace(one)
}

// maxWait bounds Retry-After and durations. Longer ones count as maxWait.
const maxWait = 24 * time.Hour

func bounded(seconds float64) time.Duration {
	if seconds >= maxWait.Seconds() {
		return maxWait
	}
	return time.Duration(seconds * float64(time.Second))
}

// parseTime reads a time as Caddy's encoder writes it by default, in seconds with a fraction, or as
// rfc3339_nano or iso8601: nanoseconds since 1970, in the years from 1971 to 2249.
func parseTime(raw json.RawMessage) (time.Duration, bool) {
	var t time.Time
	var text string
	if json.Unmarshal(raw, &text) == nil {
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05Z0700"} { // Parse takes fractions after both
			if at, err := time.Parse(layout, text); err == nil {
				t = at
			}
		}
	} else if n, err := strconv.ParseFloat(string(raw), 64); err == nil && n < 1e10 {
		t = time.UnixMicro(int64(math.Round(n * 1e6))).UTC()
	}
	return time.Duration(t.UnixNano()), t.Year() >= 1971 && t.Year() < 2250
}

// parseDuration reads seconds with a fraction, or text like 1.5ms. The unit of a whole
// number is unknown: Caddy writes nanoseconds and milliseconds so, and seconds only if by
// chance no nanosecond is left over.
func parseDuration(raw json.RawMessage) (d time.Duration, ok bool) {
	if bytes.HasPrefix(raw, []byte{'"'}) {
		d, err := time.ParseDuration(string(bytes.Trim(raw, `"`)))
		return min(d, maxWait), err == nil && d >= 0
	}
	s, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || s < 0 || s != 0 && !bytes.ContainsAny(raw, ".eE") {
		return 0, false
	}
	return bounded(s), true
}
