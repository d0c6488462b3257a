package upload

import (
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// fast is a client that sends a GiB whenever it is asked.
type fast struct{}

func (fast) Read([]byte) (int, error) { return 1 << 30, nil }
func (fast) Close() error             { return nil }

// An upload that has been fast for 100 GiB still has as long for a read as its server gives.
func TestLongUploads(t *testing.T) {
	idle := &caddyhttp.IdleTimeoutReader{ReadCloser: fast{}}
	b := &pacedBody{ReadCloser: fast{}, idle: idle, most: time.Minute}
	for gib := range 100 {
		if _, err := b.Read(make([]byte, 1)); err != nil || gib > 0 && idle.Deadline.Timeout != time.Minute {
			t.Fatalf("after %d GiB: %v for a read, %v", gib, idle.Deadline.Timeout, err)
		}
	}
}
