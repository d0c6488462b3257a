package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

// describe says what is played, with the limit that the servers were given, if any.
func (s *simulation) describe(limit limiter.Config) error {
	data := struct {
		*report.Report
		Distribution string
		Admitted     float64
	}{Report: &s.Report, Distribution: s.distribution}
	if limit.Rate > 0 {
		data.Admitted = perSec(limit)
	}
	var text strings.Builder
	err := planText.Execute(&text, data)
	s.About = strings.Split(strings.TrimSpace(text.String()), "\n")
	s.text = wrap(text.String(), 80)
	return err
}

// planText says what is simulated, a paragraph in each line.
var planText = template.Must(template.New("plan").Funcs(template.FuncMap{
	"digits": digits, "plural": report.Plural, "long": func(m report.Mark) time.Duration { return m.To - m.From },
	"capital": func(name string) string { return strings.ToUpper(name[:1]) + name[1:] },
}).Parse(`
{{- if .Clients}}A herd of {{plural .Clients "client" "clients"}}{{with .Addresses}} behind {{plural . "address" "addresses"}}{{end}} comes within {{.Within}}
{{- if .Background}}, and background clients at {{digits .Background}} per second{{end}}
{{- else}}Clients come at {{digits .Background}} per second{{end}}
{{- with .StrangersAddresses}} from {{plural . "address" "addresses"}}{{end}}.
They wait {{with .Timeout}}{{.}} for an answer{{else}}for an answer without a limit{{end}}
{{- with .Patience}}, and retry for {{.}}{{end}}. Policy: {{.Policies}}.
The backend has {{plural .Plant.Workers "worker that takes" "workers that take"}} {{.Service.Mean}} each ({{.Distribution}}):
{{- ""}} {{digits .Capacity}} requests per second at most.
{{- with .FirstByte}} An answer streams from {{.}} on, until its end.{{end}}
{{- range .Marks}} {{capital .Name}} at {{.From}}{{with long .}} for {{.}}{{end}}.{{end}}
{{- with .Admitted}} Shield and the models admit {{digits .}} per second.{{end}}
{{- if gt .Replicas 1}} There are {{.Replicas}} servers before it{{if .Store}}, which share limits and promises{{end}}.{{end}}
A run is {{.Until}}{{if .Background}}, after a warm-up of {{.Warmup}} with background clients only{{end}}. Seed {{.Seed}}.
`))

// digits writes v with four digits, without an exponent.
func digits(v float64) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// wrap breaks lines that are longer than this many letters.
func wrap(text string, wide int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		n, space := 0, ""
		for word := range strings.FieldsSeq(line) {
			long := utf8.RuneCountInString(word)
			if n > 0 && n+1+long > wide {
				n, space = -1, "\n"
			}
			b.WriteString(space + word)
			n, space = n+len(space)+long, " "
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// policies names the policies of a mix, with the shares of the first few.
func policies(mix clients.Population) string {
	const most = 4
	total := 0.0
	for _, s := range mix {
		total += s.Weight
	}
	var parts []string
	for i, s := range mix {
		if i == most && len(mix) > most {
			parts = append(parts, fmt.Sprintf("and %d more", len(mix)-most))
			break
		}
		text := fmt.Sprint(s.Policy)
		if len(mix) > 1 {
			text += fmt.Sprintf(" %.3g %%", 100*s.Weight/total)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// showLog writes the estimate from the log, and the flags that follow from it.
func (s *simulation) showLog(w io.Writer, e *accesslog.Estimate) error {
	if err := e.WriteTable(w); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nA config that follows from it (--compare suggested):\n\n%s\n", e.Suggest())
	switch {
	case s.changed("clients"):
	case e.Bursts.N > 0:
		b.WriteString("The herd is the largest burst of the log; --clients sets it. Background clients come\nat the rate without bursts.\n")
	default:
		b.WriteString("The log has no bursts, so there is no herd; --clients adds one.\n")
	}
	if e.Answers.Full == 0 && !s.changed("workers") {
		b.WriteString("The log has not seen the backend full: it is given twice as many workers as were\nbusy in its worst minute; --workers sets them.\n")
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

// slower is how much longer clients may wait behind the suggested config than without a
// limit before that is called worse. Ours: less is chance, as one seed differs from another.
func slower(than time.Duration) time.Duration { return than + than/10 + 100*time.Millisecond }

// worse says in what the config that an access log has led to is worse than no limit, if
// both were played: clients of the herd or of the background that it does not serve, or
// lets wait for longer, those included that were never served.
func (s *simulation) worse() []string {
	played := func(name string) *report.Run {
		i := slices.IndexFunc(s.Runs, func(r report.Run) bool { return r.Name == name })
		if i < 0 {
			return nil
		}
		return &s.Runs[i]
	}
	none, suggested := played("none"), played("suggested")
	if none == nil || suggested == nil || none.Interrupted || suggested.Interrupted {
		return nil
	}
	var in []string
	if suggested.Served < none.Served {
		in = append(in, fmt.Sprintf("it serves %s of the herd, and none %d", report.Plural(suggested.Served, "client", "clients"), none.Served))
	}
	for _, who := range []struct {
		name       string
		with, bare sim.Waits
	}{{"the herd", suggested.Waits, none.Waits}, {"the background", suggested.Strangers.Waits, none.Strangers.Waits}} {
		for _, q := range []struct {
			name string
			i    int
		}{{"half", 500}, {"nine tenths", 900}} {
			if len(who.with) == 0 || len(who.bare) == 0 || who.bare[q.i] == sim.Never || who.with[q.i] <= slower(who.bare[q.i]) {
				continue
			}
			wait := "never"
			if who.with[q.i] != sim.Never {
				wait = "after " + who.with[q.i].Round(10*time.Millisecond).String()
			}
			in = append(in, fmt.Sprintf("%s of %s are served %s, and with none after %s", q.name, who.name, wait, who.bare[q.i].Round(10*time.Millisecond)))
		}
	}
	if len(in) == 0 {
		return nil
	}
	return []string{"suggested is worse than none here: " + strings.Join(in, "; ") + ". What the log shows gives no reason for this limit; try another one, or a larger --clients."}
}
