package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// longestWait bounds how far ahead a script looks for free slots, whatever it is asked.
// Ours: four times as long as the longest Retry-After.
const longestWait = 4 * time.Minute

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
func (s *script) run(ctx context.Context, driver rueidis.Client, keys []string, ask string) (string, error) {
	return s.runAt(ctx, driver, keys, "", ask)
}

func (s *script) runAt(ctx context.Context, driver rueidis.Client, keys []string, now, ask string) (string, error) {
	n := int64(len(keys))
	b := driver.B()
	answer, err := driver.Do(ctx, b.Evalsha().Sha1(s.sum).Numkeys(n).Key(keys...).Arg(now, ask).Build()).ToString()
	if err != nil && code(err) == "NOSCRIPT" {
		answer, err = driver.Do(ctx, b.Eval().Script(s.text).Numkeys(n).Key(keys...).Arg(now, ask).Build()).ToString()
	}
	return answer, err
}

// code returns the first word of an error that a server replied, such as NOSCRIPT, or "".
func code(err error) string {
	if reply, ok := rueidis.IsRedisErr(err); ok {
		word, _, _ := strings.Cut(reply.Error(), " ")
		return word
	}
	return ""
}
