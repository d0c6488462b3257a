// Package budgets has the SDKs of OpenAI and Anthropic from npm ask a fake server behind the program, and compares
// the tokens that they report with those that the program has charged.
//
// It has nothing but tests: sdk_test.go, and npm/ask.mjs, which asks.
package budgets
