// Package browser looks at the page for a person on call with a real Chromium, while shield runs
// under load. Its tests also take the pictures in docs.
package browser
