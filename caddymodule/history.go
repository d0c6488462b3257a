package caddymodule

import (
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield/caddymodule/operate"
	"github.com/herdshield/shield/oncall"
)

// remember adds the second that ends now to the history of the shield, and what the log says of it. A Live
// shield has none: there may be a thousand, in programs without an admin endpoint.
func (s *shieldEntry) remember(now time.Duration, seq uint64, what []news) {
	if s.live {
		return
	}
	s.record.history.Observe(seq, s.reading(now).facts(nil))
	for _, n := range what {
		switch level := levels[n.level]; {
		case n.message == limitChanged:
			s.record.history.NoteLimit(seq, oncall.Plain, n.text())
		case n.event != "":
			s.record.history.Note(seq, level, n.message+": "+n.text())
		}
	}
}

// levels are how much lines of the log matter to a person on call.
var levels = map[zapcore.Level]oncall.Level{zapcore.InfoLevel: oncall.Good, zapcore.WarnLevel: oncall.Warn}

// remember notes that the config is in force.
func (a *App) remember(now time.Duration) {
	seq := oncall.Second(now)
	for _, s := range a.roster().shields {
		s.remember(now, seq, nil)
		if !s.live {
			s.record.history.Note(seq, oncall.Plain, "a config is loaded")
		}
	}
	operate.Announce(seq)
}

// text returns the fields of the line in the log that are not zero, as a person reads them.
func (n *news) text() string {
	var said []string
	for _, f := range n.fields {
		as := zapcore.NewMapObjectEncoder()
		f.AddTo(as)
		switch v := as.Fields[f.Key].(type) {
		case time.Duration:
			if v > 0 {
				said = append(said, f.Key+" "+oncall.Time(v))
			}
		case float64:
			said = append(said, fmt.Sprintf("%s %.0f", f.Key, v))
		case bool:
			if v {
				said = append(said, f.Key)
			}
		default:
			said = append(said, fmt.Sprint(f.Key, " ", v))
		}
	}
	return strings.Join(said, ", ")
}
