// Package dialect knows the clients that don't understand an ordinary rejection, and what they understand
// instead. HTTP libraries read the status and Retry-After. But a browser's EventSource never reconnects after
// a 503, git waits only after a 429, and an SDK shows its users only the error object of its own API.
//
// Package pushback decides when a client should return, and writes rejections for everybody else: people,
// gRPC clients, and programs without a dialect.
//
//	dialect.go      recognizes clients, and has the error objects of SDKs
//	eventsource.go  EventSource in browsers
//	websocket.go    WebSocket in browsers
//	cors.go         what pages of other sites can read, and their preflights
//
// Clients are recognized by what the request itself proves, so there's nothing to configure:
//
//	if d := dialect.Of(r); d == dialect.Git {
//		status = http.StatusTooManyRequests
//	}
package dialect

import (
	"encoding/json"
	"net/http"
	"strings"
)

// A Dialect is how one kind of client wants to hear a rejection.
type Dialect uint8

const (
	Plain       Dialect = iota // a status, Retry-After and a body as configured
	EventSource                // of a browser
	WebSocket                  // the handshake of one, over HTTP/1.1
	Git                        // or git-lfs
	OpenAI                     // OpenAI's SDKs, and other clients of its chat completions
	Anthropic                  // Anthropic's SDKs
	JSONRPC                    // JSON-RPC 2.0 over HTTP, as in MCP
	GraphQL                    // GraphQL over HTTP
	Dialects                   // how many there are
)

// Of returns the dialect that a request proves. It does not allocate.
func Of(r *http.Request) Dialect {
	h := r.Header
	product, _, _ := strings.Cut(first(h, "User-Agent"), "/")
	switch {
	case IsEventSource(r):
		return EventSource
	case IsWebSocket(r):
		return WebSocket
	// "git/2.54.0", "git-lfs/3.6.0 (GitHub; …)": git's http.c, user_agent; git-lfs' lfshttp, UserAgent.
	// git 2.54 waits after 429 alone (its tests of http.maxRetries; http.c), and a status for both is one thing less to learn.
	case product == "git", product == "git-lfs":
		return Git
	// "OpenAI/JS 6.1.0", "AsyncAzureOpenAI/Python 2.0.0": getUserAgent of openai-node, user_agent of openai-python.
	case strings.HasSuffix(product, "OpenAI"):
		return OpenAI
	// GraphQL over HTTP, section "Accept": its clients have to list it.
	case strings.Contains(first(h, "Accept"), "application/graphql-response+json"):
		return GraphQL
	case r.Method != http.MethodPost:
		return Plain
	// A field that the API requires of every request: https://docs.anthropic.com/en/api/versioning.
	case len(h["Anthropic-Version"]) > 0:
		return Anthropic
	// Servers of other makers have OpenAI's path, and so do their clients.
	case strings.HasSuffix(r.URL.Path, "/v1/chat/completions"):
		return OpenAI
	// MCP 2025-06-18 and later, "Streamable HTTP": all requests after the first name the version of the
	// protocol, and since 2026-07-28 the method. JSON-RPC over HTTP has a media type of its own.
	case len(h["Mcp-Protocol-Version"]) > 0, len(h["Mcp-Method"]) > 0, strings.HasPrefix(first(h, "Content-Type"), "application/json-rpc"):
		return JSONRPC
	}
	return Plain
}

func first(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// objects are the error objects, for a client's own quota and for the backend's load, around $message.
var objects = [Dialects]struct{ contentType, quota, overload string }{
	// openai-node, src/core/error.ts, reads message, type, param and code; the values are those of
	// https://platform.openai.com/docs/guides/error-codes.
	OpenAI: {
		"application/json",
		`{"error":{"message":$message,"type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`,
		`{"error":{"message":$message,"type":"server_error","param":null,"code":null}}`,
	},
	// https://docs.anthropic.com/en/api/errors
	Anthropic: {
		"application/json",
		`{"type":"error","error":{"type":"rate_limit_error","message":$message}}`,
		`{"type":"error","error":{"type":"overloaded_error","message":$message}}`,
	},
	// JSON-RPC 2.0, section 5: the id is null where nobody has read it, and -32000 to -32099 are for servers' own errors.
	JSONRPC: {
		"application/json",
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":$message}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":$message}}`,
	},
	// GraphQL over HTTP, section "application/graphql-response+json": there is no data if nothing was executed.
	GraphQL: {
		"application/graphql-response+json",
		`{"errors":[{"message":$message,"extensions":{"code":"RATE_LIMITED"}}]}`,
		`{"errors":[{"message":$message,"extensions":{"code":"SERVICE_UNAVAILABLE"}}]}`,
	},
}

// Object returns the media type and the text of the dialect's error object, with {seconds} in place of those that its client is to
// wait; "" if it has none. what is a sentence that says why the client is rejected, overload whether that is because of the
// backend's load, and never what a client is told that is not to come back, or "".
func (d Dialect) Object(what string, overload bool, never string) (contentType, text string) {
	is := objects[d]
	if never == "" {
		never = "Please try again in {seconds}s." // OpenAI's own words, in which programs look for the number
	}
	message, _ := json.Marshal(what + " " + never) // a string always can be
	text = is.quota
	if overload {
		text = is.overload
	}
	return is.contentType, strings.Replace(text, "$message", string(message), 1) + "\n"
}
