// Package meter finds what a response says that it has cost.
package meter

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

type Source struct{ text string }

func Parse(text string) (Source, error) { return Source{text}, nil }
func (s Source) String() string         { return s.text }
func (s Source) Begin(status int, h http.Header) *Meter {
	return &Meter{s, h}
}

type Meter struct {
	s Source
	h http.Header
}

func (m *Meter) Write(p []byte) {}
func (m *Meter) Cost(end End) (float64, bool) {
	if name, ok := strings.CutPrefix(m.s.text, "header "); ok {
		n, err := strconv.ParseFloat(m.h.Get(name), 64)
		return n, err == nil
	}
	return 0, false
}

type End struct {
	Status   int
	Header   http.Header
	Took     time.Duration
	Complete bool
}
