// Package fakellm serves what looks like the APIs of OpenAI and Anthropic, for docs and tests of limits in
// tokens: /v1/chat/completions, /v1/responses and /v1/messages, with streams. Its model repeats the prompt until
// it has as many tokens as the request allows, or 64.
package fakellm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Server is the backend. The zero Server takes no time.
type Server struct{ PerToken time.Duration }

// forms are the answers of an API: at once, and as events, one in each line. The line of a $word is sent for each token.
var forms = map[string]struct{ whole, stream string }{
	"/v1/chat/completions": {
		`{"id":"chatcmpl-1","object":"chat.completion","created":1741570283,"model":"fake","choices":[{"index":0,"message":{"role":"assistant","content":$text,"refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":$in,"completion_tokens":$out,"total_tokens":$sum}}`,
		`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1741570283,"model":"fake","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}
{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1741570283,"model":"fake","choices":[{"index":0,"delta":{"content":$word},"logprobs":null,"finish_reason":null}],"usage":null}
{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1741570283,"model":"fake","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}
{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1741570283,"model":"fake","choices":[],"usage":{"prompt_tokens":$in,"completion_tokens":$out,"total_tokens":$sum}}
[DONE]`,
	},
	"/v1/responses": {
		`{"id":"resp_1","object":"response","created_at":1741290958,"status":"completed","model":"fake","output":[{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":$text,"annotations":[]}]}],"usage":{"input_tokens":$in,"output_tokens":$out,"total_tokens":$sum}}`,
		`{"type":"response.created","response":{"id":"resp_1","object":"response","created_at":1741290958,"status":"in_progress","model":"fake","output":[],"usage":null}}
{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"msg_1","role":"assistant","status":"in_progress","content":[]}}
{"type":"response.content_part.added","item_id":"msg_1","output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]}}
{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":$word}
{"type":"response.completed","response":{"id":"resp_1","object":"response","created_at":1741290958,"status":"completed","model":"fake","output":[{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":$text,"annotations":[]}]}],"usage":{"input_tokens":$in,"output_tokens":$out,"total_tokens":$sum}}}`,
	},
	"/v1/messages": { // a third of the prompt was in the cache
		`{"id":"msg_1","type":"message","role":"assistant","model":"fake","content":[{"type":"text","text":$text}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":$new,"cache_creation_input_tokens":0,"cache_read_input_tokens":$old,"output_tokens":$out}}`,
		`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"fake","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":$new,"cache_creation_input_tokens":0,"cache_read_input_tokens":$old,"output_tokens":1}}}
{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}
{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":$word}}
{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":$out}}
{"type":"message_stop"}`,
	},
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var q struct {
		Stream        bool
		StreamOptions map[string]bool `json:"stream_options"`
		Messages      []struct{ Content any }
		Input         any
		Most          int `json:"max_tokens"`
		MostChat      int `json:"max_completion_tokens"`
		MostResponse  int `json:"max_output_tokens"`
	}
	form, ok := forms[r.URL.Path]
	if !ok || json.NewDecoder(r.Body).Decode(&q) != nil {
		http.Error(w, `{"error":{"type":"invalid_request_error","message":"send JSON to /v1/chat/completions, /v1/responses or /v1/messages"}}`, http.StatusBadRequest)
		return
	}
	prompt := strings.Trim(fmt.Sprint(q.Messages), "[{}]")
	if q.Input != nil {
		prompt = fmt.Sprint(q.Input)
	}
	words, in, out := strings.Fields(prompt+" so"), 3+len(prompt)/4, min(cmp.Or(max(q.Most, q.MostChat, q.MostResponse, 0), 64), 4096)
	all := ""
	for i := range out {
		all += words[i%len(words)] + " "
	}
	values := strings.NewReplacer("$in", strconv.Itoa(in), "$new", strconv.Itoa(in-in/3), "$old", strconv.Itoa(in/3),
		"$out", strconv.Itoa(out), "$sum", strconv.Itoa(in+out), "$text", quote(all))
	if !q.Stream {
		time.Sleep(time.Duration(out) * s.PerToken)
		fmt.Fprintln(w, values.Replace(form.whole))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for line := range strings.SplitSeq(form.stream, "\n") {
		times := 1
		switch {
		case strings.Contains(line, "$word"):
			times = out
		case strings.Contains(line, `"choices":[]`) && !q.StreamOptions["include_usage"]:
			times = 0
		}
		for i := range times {
			if time.Sleep(s.PerToken); r.Context().Err() != nil {
				panic(http.ErrAbortHandler)
			}
			if name := strings.Split(line, `"`); len(name) > 3 && name[1] == "type" {
				fmt.Fprintf(w, "event: %s\n", name[3])
			}
			fmt.Fprintf(w, "data: %s\n\n", strings.ReplaceAll(values.Replace(line), "$word", quote(words[i%len(words)]+" ")))
			_ = http.NewResponseController(w).Flush() // the client may have left
		}
	}
}

func quote(text string) string {
	quoted, _ := json.Marshal(text) // strings can be
	return string(quoted)
}
