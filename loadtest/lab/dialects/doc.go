// Package dialects has clients that hear a rejection in a form of their own play against the real program:
// pages in Chromium with EventSource, WebSocket and fetch, the SDKs of OpenAI and Anthropic from npm, and a client with the rule of git.
//
// It has nothing but tests. How a rejection is worded for each is tested in packages dialect and pushback; this is
// about what the clients make of it.
//
//	main_test.go     the program and its log
//	browser_test.go  what pages do
//	cors_test.go     pages of other sites, and their preflights
//	sdk_test.go      SDKs
//	git_test.go      git
//	backend_test.go  backends that answer 429, for an overload and for quotas
package dialects
