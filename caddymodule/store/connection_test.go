package store

import (
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield/share/redis"
)

// A store that nothing has been asked of is not lost.
func TestStoreThatIsNotAskedIsNotLost(t *testing.T) {
	pool, now, s := caddy.NewUsagePool(), time.Duration(0), &Settings{Options: redis.Options{Addresses: []string{"127.0.0.1:1"}}}
	c, err := Open(pool, s, func() time.Duration { return now }, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.release()
	now = time.Hour
	c.Report(func(_ zapcore.Level, message, _ string, _ ...zap.Field) { t.Errorf("it is said that %s", message) })
}
