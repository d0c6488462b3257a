package caddymodule

import (
	"io"
	"strconv"
	"strings"
)

// What tests of a server with the listener wrapper need. Those of the wrapper itself are in door/.

// withDoor is a server's wrapper.
const withDoor = `"listener_wrappers": [{"wrapper": "shield"}],`

// overQuota is a shield that admits one request an hour of each client.
func overQuota(more string) string {
	return `{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 1}] ` + more + `}`
}

const get = "GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\n\r\n"

// atDoor returns how many rejections the door has answered over HTTP/1.1, and atDoorH2 over HTTP/2.
func (r *rig) atDoor() uint64   { return r.app().configured[0].record.atDoor[0].Load() }
func (r *rig) atDoorH2() uint64 { return r.app().configured[0].record.atDoor[1].Load() }

// exchange sends a request and returns the response, byte for byte.
func (w *wire) exchange(request string) string {
	w.Helper()
	if _, err := io.WriteString(w.Conn, request); err != nil {
		w.Fatal(err)
	}
	var b strings.Builder
	for length := 0; ; {
		line, err := w.r.ReadString('\n')
		if b.WriteString(line); err != nil {
			w.Fatalf("after %q: %v", b.String(), err)
		}
		if n, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			length, _ = strconv.Atoi(strings.TrimSpace(n))
		}
		if line == "\r\n" {
			_, _ = io.CopyN(&b, w.r, int64(length))
			return b.String()
		}
	}
}
