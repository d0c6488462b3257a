// Package dialects has clients that hear a rejection in a form of their own play against the real program:
// pages in Chromium with EventSource, WebSocket and fetch, and the SDKs of OpenAI and Anthropic from npm.
//
// It has nothing but tests. How a rejection is worded for each is tested in packages dialect and pushback; this is
// about what the clients make of it.
//
//	main_test.go     the program and its log
//	browser_test.go  what pages do, also those of other sites
//	sdk_test.go      SDKs
package dialects
