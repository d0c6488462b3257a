package main

import (
	"cmp"
	"io"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/report"
)

// describe says what is played, with the limit that the servers were given, if any.
func (s *simulation) describe(limit limiter.Config) error {
	var text strings.Builder
	err := planText.Execute(&text, struct {
		*report.Report
		Admitted float64
		Edge     bool
	}{&s.Report, limit.Rate / cmp.Or(limit.Per, time.Second).Seconds(), s.edge})
	s.text = wrap(text.String(), "", 80)
	return err
}

// planText says what is simulated, a paragraph in each line.
var planText = template.Must(template.New("plan").Funcs(template.FuncMap{
	"digits": chart.Number, "plural": report.Plural, "long": func(m report.Mark) time.Duration { return m.To - m.From },
	"capital": func(name string) string { return strings.ToUpper(name[:1]) + name[1:] },
}).Parse(`
{{- if .Clients}}A herd of {{plural .Clients "client" "clients"}}{{with .Addresses}} behind {{plural . "address" "addresses"}}{{end}} arrives within {{.Within}}
{{- if .Background}}, and background clients at {{digits .Background}} per second{{end}}
{{- else}}Clients come at {{digits .Background}} per second{{end}}
{{- with .NewClientsAddresses}} from {{plural . "address" "addresses"}}{{end}}.
They wait {{with .Timeout}}{{.}} for a response{{else}}for a response without a limit{{end}}
{{- with .Patience}}, and retry for {{.}}{{end}}. Policy: {{.Policies}}.
The backend has {{plural .Plant.Workers "worker that takes" "workers that take"}} {{.Service.Mean}} each (exponential):
{{- ""}} {{digits .Capacity}} requests per second at most.
{{- range .Marks}} {{capital .Name}} at {{.From}}{{with long .}} for {{.}}{{end}}.{{end}}
{{- with .Admitted}} Shield and the models admit {{digits .}} per second.{{end}}
{{- if gt .Replicas 1}} There are {{.Replicas}} servers before it{{if .Store}}, which share limits and appointments{{end}}.{{end}}
{{if .Edge}}A push comes after {{.Warmup}} of calm. The tables have the smallest of each length from which the service does not come back within a minute, and a bar of those from 1x to 16x: it comes back from ·, and not from █.{{else}}A run is {{.Until}}{{if .Background}}, after a warm-up of {{.Warmup}} with background clients only{{end}}.{{end}} Seed {{.Seed}}.
`))

// wrap breaks lines that are longer than this many letters. Each begins with the margin.
func wrap(text, margin string, wide int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		n, space := 0, margin
		for word := range strings.FieldsSeq(line) {
			long := utf8.RuneCountInString(word)
			if n > 0 && n+1+long > wide {
				n, space = -1, "\n"+margin
			}
			b.WriteString(space + word)
			n, space = n+1+long, " "
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// showLog writes the estimate from the log, and where the simulation has its herd and its workers from.
func (s *simulation) showLog(w io.Writer, e *accesslog.Estimate) error {
	if err := e.WriteTable(w); err != nil {
		return err
	}
	text := "\n"
	switch {
	case s.changed("clients"), s.edge:
	case e.Bursts.N > 0:
		text += "The herd is the largest burst of the log; --clients sets it. Background clients come\nat the rate without bursts.\n"
	default:
		text += "The log has no bursts, so there is no herd; --clients adds one.\n"
	}
	if e.Full == 0 && !s.changed("workers") {
		text += "The log has not seen the backend full: it is given twice as many workers as were\nbusy in its worst minute; --workers sets them.\n"
	}
	_, err := io.WriteString(w, text+"\n")
	return err
}
