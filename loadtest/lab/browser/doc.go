// Package browser looks at the page for a person on call with a real Chromium, while shield runs
// under load. After npm ci --ignore-scripts in the folder npm, axe looks at it, too. With -pictures ../../../docs/on-call
// -parallel 1 the tests take the pictures of docs/on-call/incident.md, and quote there what they show; without, they compare.
package browser
