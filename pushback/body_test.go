package pushback

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// deadlined is a ResponseWriter that remembers its read deadline.
type deadlined struct {
	http.ResponseWriter
	deadline time.Time
}

func (w *deadlined) SetReadDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

// These decisions are what handler_test.go shows over sockets. RFC 9110,
// section 10.1.1: a server that answers without having read the body of an
// Expect may close the connection. RFC 9113, section 8.2.2: Connection means
// nothing in HTTP/2, where net/http ends the whole connection for it.
func TestUnblock(t *testing.T) {
	const never = 0
	for _, c := range []struct {
		story    string
		major    int
		length   int64
		expect   bool
		patience time.Duration
		closes   bool
	}{
		{"no body", 1, 0, false, never, false},
		{"a short body", 1, 1, false, 50 * ms, false},
		{"as much as net/http drains", 1, 256 << 10, false, 50 * ms, false},
		{"more than it drains", 1, 256<<10 + 1, false, 100 * ms, true},
		{"of unknown length", 1, -1, false, 100 * ms, true},
		{"a client that waits for 100 Continue", 1, 10, true, 100 * ms, true},
		{"an Expect without body", 1, 0, true, never, false},
		{"HTTP/2 with a long body", 2, 10 << 20, false, never, false},
		{"HTTP/2 of unknown length", 2, -1, false, never, false},
		{"HTTP/2 with Expect", 2, 10, true, never, false},
		{"HTTP/3", 3, -1, true, never, false},
	} {
		for _, kind := range []string{"application/json", "application/grpc"} {
			r := request("POST", "Content-Type: "+kind)
			r.ProtoMajor, r.ContentLength = c.major, c.length
			if c.expect {
				r.Header.Set("Expect", "100-continue")
			}
			now := time.Now()
			w := &deadlined{ResponseWriter: httptest.NewRecorder()}
			mustNew(t, AnswerConfig{}).Write(w, r, overQuota, now)
			var want time.Time
			if c.patience != never {
				want = now.Add(c.patience)
			}
			if !w.deadline.Equal(want) {
				t.Errorf("%s, %s: deadline at %v, want %v", c.story, kind, w.deadline.Sub(now), c.patience)
			}
			if closes := w.Header().Get("Connection") == "close"; closes != c.closes {
				t.Errorf("%s, %s: closes the connection: %v, want %v", c.story, kind, closes, c.closes)
			}
		}
	}
}
