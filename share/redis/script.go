package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"

	redigo "github.com/gomodule/redigo/redis"
)

// A script runs within the server, as one step.
type script struct {
	text string
	sum  string // by which the server knows it
}

func newScript(parts ...string) *script {
	text := strings.Join(parts, "\n")
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

// run runs the script once: by its sum, and with its text if the server does not know it,
// in which case it has not run. The first argument is the time, which is the server's own.
func (s *script) run(ctx context.Context, d *driver, keys []string, args ...any) (string, error) {
	return s.runAt(ctx, d, keys, "", args...)
}

func (s *script) runAt(ctx context.Context, d *driver, keys []string, now string, more ...any) (string, error) {
	args := []any{s.sum, len(keys)}
	for _, key := range keys {
		args = append(args, key)
	}
	args = append(append(args, now), more...)
	reply, err := d.do(ctx, keys[0], "EVALSHA", args...)
	if code(err) == "NOSCRIPT" {
		args[0] = s.text
		reply, err = d.do(ctx, keys[0], "EVAL", args...)
	}
	return redigo.String(reply, err)
}
