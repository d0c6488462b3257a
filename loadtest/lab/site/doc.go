// Package site looks at the documentation site with a real Chromium: its playground, where its search leads, and its pages on a
// phone. It needs what site/build builds, and axe from the npm folder of the package browser.
package site
