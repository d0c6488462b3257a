package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/herdshield/shield/chart"
)

// A Page is a report in one HTML file. It fetches nothing, and its Content Security Policy
// lets it run no script but its own.
type Page struct {
	Title  string
	Lead   string   // the result in a sentence
	About  []string // of the setup, a paragraph each
	Parts  []Text   // of the comparison
	Tables []Table
	Notes  []string
	Footer string
	Report *Report // whose Figures it has
}

// A Text says what something is that has a name.
type Text struct{ Name, Text string }

// A Table has a row header in the first cell of each row. Rows whose header begins with
// two spaces are parts of the row above.
type Table struct {
	Caption string
	Head    []string
	Rows    [][]string
	Meaning []Text // of the rows or columns
}

// Parts of a Page that are the same in all.
var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string

	pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"isPart": isPart}).Parse(pageHTML))
)

func isPart(cell string) bool { return strings.HasPrefix(cell, "  ") }

// WriteHTML writes the page.
func (p *Page) WriteHTML(w io.Writer) error {
	figures, err := p.Report.Figures()
	if err != nil {
		return err
	}
	style := chart.Style + pageCSS
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, struct {
		*Page
		Figures       []chart.Figure
		Policy        string
		Style         template.CSS
		Chart, Script template.JS
	}{
		p, figures,
		fmt.Sprintf("default-src 'none'; script-src %s %s; style-src %s; img-src data:; base-uri 'none'; form-action 'none'",
			hash(chart.Script), hash(pageJS), hash(style)),
		template.CSS(style), template.JS(chart.Script), template.JS(pageJS), //nolint:gosec // constants of the program
	}); err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}

// WriteSVG writes the figures as an SVG document.
func (p *Page) WriteSVG(w io.Writer) error {
	figures, err := p.Report.Figures()
	if err != nil {
		return err
	}
	return chart.WriteSVG(w, p.Title, figures)
}

// hash is how a Content Security Policy names an inline script or style.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
