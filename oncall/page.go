package oncall

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/herdshield/shield/chart"
)

// The parts of the page.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageJS string
	//go:embed page/act.js
	actJS string
)

var page, pagePolicy = func() (html []byte, policy string) {
	style, script := chart.Style+pageCSS, chart.Script+pageJS+actJS
	whole := strings.NewReplacer("/*style*/", style, "/*script*/", script).Replace(pageHTML)
	return []byte(whole), fmt.Sprintf(
		"default-src 'none'; script-src %s; style-src %s; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		hash(script), hash(style))
}()

// Page returns the page for a person on call, one HTML file that asks only the endpoints beside
// it, live, who, overrides and others, and the Content-Security-Policy that it is to be served with. That
// allows no script and no style but those in the page. The slice is not to be changed.
func Page() (html []byte, policy string) { return page, pagePolicy }

// hash returns a source expression for what stands between the tags of an element.
func hash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
