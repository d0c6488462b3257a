// Package budgets has the SDKs of OpenAI and Anthropic from npm ask a fake server, and compares the tokens that
// they report with those that were counted on the way.
//
// It has nothing but tests: sdk_test.go, and npm/ask.mjs, which asks.
package budgets
