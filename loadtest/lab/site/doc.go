// Package site looks at the documentation site with a real Chromium: its playground, and where its search leads. It needs what
// site/build builds, and axe from the npm folder of the package browser.
package site
