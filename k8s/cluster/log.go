package cluster

import (
	"fmt"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
)

// logger returns the logger of client-go, whose errors become warnings: none of them is fatal. While the
// API server is down they are left out, since client-go logs one for every try of every feed.
func logger(log *zap.Logger, down func() bool) logr.Logger { return logr.New(&sink{log.Sugar(), down}) }

// A sink is a logr.LogSink that writes to zap, and leaves out debug messages.
type sink struct {
	log  *zap.SugaredLogger
	down func() bool
}

// Init implements logr.LogSink.
func (s *sink) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (s *sink) Enabled(level int) bool { return level == 0 }

// Info implements logr.LogSink.
func (s *sink) Info(_ int, message string, fields ...any) { s.log.Infow(message, text(fields)...) }

// Error implements logr.LogSink.
func (s *sink) Error(err error, message string, fields ...any) {
	if s.down() {
		return
	}
	s.log.Warnw(message, append(text(fields), zap.Error(err))...)
}

// WithValues implements logr.LogSink.
func (s *sink) WithValues(fields ...any) logr.LogSink {
	return &sink{s.log.With(text(fields)...), s.down}
}

// WithName implements logr.LogSink.
func (s *sink) WithName(name string) logr.LogSink { return &sink{s.log.Named(name), s.down} }

// text makes the values printable: client-go passes whole objects.
func text(fields []any) []any {
	out := make([]any, len(fields))
	for i, f := range fields {
		if i%2 == 1 {
			if s, ok := f.(fmt.Stringer); ok {
				f = s.String()
			} else {
				f = fmt.Sprintf("%.300v", f)
			}
		}
		out[i] = f
	}
	return out
}
