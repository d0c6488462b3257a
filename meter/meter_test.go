package meter_test

import (
	"bytes"
	"io"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/herdshield/shield/meter"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"usage": "usage", "bytes": "bytes", " time ": "time",
		"json usage.total_tokens":            "json usage.total_tokens",
		"json  eval_count prompt_eval_count": "json eval_count prompt_eval_count",
		"json größe.x-y/z":                   "json größe.x-y/z",
		"header x-cost":                      "header x-cost",
		"trailer X-Cost":                     "trailer X-Cost",
		"status 401 403 404":                 "status 401 403 404",
	} {
		s, err := meter.Parse(text)
		if err != nil || s.String() != want {
			t.Errorf("%q is read as %q, %v; want %q", text, s, err, want)
			continue
		}
		if reads := strings.HasPrefix(want, "usage") || strings.HasPrefix(want, "json"); s.Reads() != reads {
			t.Errorf("%q reads the body: %t", text, s.Reads())
		}
	}
	for _, text := range []string{
		"", "tokens", "usage x", "bytes 1", "time s", "json", "json .a", "json a..b", "json a.", "json $.usage", "json a[0]", `json "a"`, "header", "header a b",
		"header a:", "header grö", "trailer", "trailer a b", "status", "status 4xx", "status 100", "status 1000", "status 404,403", "Usage",
	} {
		if s, err := meter.Parse(text); err == nil || !strings.Contains(err.Error(), strconv.Quote(text)) || !strings.Contains(err.Error(), "; use ") {
			t.Errorf("%q is read as %q, %v", text, s, err)
		}
	}
	if (meter.Source{}).String() != "" || (meter.Source{}).Reads() {
		t.Error("the zero Source is one")
	}
}

func source(t testing.TB, text string) meter.Source {
	t.Helper()
	s, err := meter.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	plain  = "application/json"
	events = "text/event-stream; charset=utf-8"
	lines  = "application/x-ndjson"
)

// bodies are what APIs answer. Those of the docs are shortened where they repeat themselves.
var bodies = []struct {
	name, source, kind, body string
	want                     float64 // -1: not found
}{
	{"OpenAI", "usage", plain, `{
  "id": "chatcmpl-123", "object": "chat.completion", "created": 1677652288, "model": "gpt-4o-mini", "system_fingerprint": "fp_44709d6fcb",
  "choices": [{"index": 0, "message": {"role": "assistant", "content": "\n\nHello there, how may I assist you today?"}, "logprobs": null, "finish_reason": "stop"}],
  "service_tier": "default",
  "usage": {
    "prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21,
    "completion_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    "prompt_tokens_details": {"cached_tokens": 3, "total_tokens": 99}
  }
}`, 21},
	{"OpenAI, stream", "usage", events, `data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}

data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o-mini","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0}}}

data: [DONE]

`, 29},
	{"OpenAI, stream without usage", "usage", events, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}]}\n\ndata: [DONE]\n\n", -1},
	{"vLLM, usage in each chunk", "usage", events, "data: {\"usage\":{\"prompt_tokens\":9,\"total_tokens\":10}}\n\ndata: {\"usage\":{\"prompt_tokens\":9,\"total_tokens\":11}}\n\ndata: [DONE]\n\n", 11},
	{"OpenAI, embeddings", "usage", plain, `{"object":"list","data":[{"object":"embedding","embedding":[0.0023064255,-0.009327292],"index":0}],"model":"text-embedding-ada-002","usage":{"prompt_tokens":8,"total_tokens":8}}`, 8},
	{"Responses", "usage", plain, `{"id":"resp_685a9284","object":"response","created_at":1750766212,"status":"completed","error":null,"output":[{"id":"msg_1","type":"message","status":"completed",
"content":[{"type":"output_text","annotations":[],"text":"Of course!"}],"role":"assistant"}],"reasoning":{"effort":null,"summary":null},
"usage":{"input_tokens":16,"input_tokens_details":{"cached_tokens":0},"output_tokens":50,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":66},"user":null,"metadata":{}}`, 66},
	{"Responses, stream", "usage", events, `event: response.created
data: {"type":"response.created","response":{"id":"resp_67c9fdce","object":"response","created_at":1741290958,"status":"in_progress","output":[],"usage":null,"user":null,"metadata":{}}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_67c9fdcf","output_index":0,"content_index":0,"delta":"Hi"}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_67c9fdce","object":"response","created_at":1741290958,"status":"completed","output":[{"id":"msg_67c9fdcf","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hi there! How can I assist you today?","annotations":[]}]}],"usage":{"input_tokens":37,"output_tokens":11,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":48},"user":null,"metadata":{}}}

`, 48},
	{"Anthropic", "usage", plain, `{"id":"msg_013Zva2CMHLNnjNjJJKqJ2EF","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Hi! My name is Claude."}],"stop_reason":"end_turn","stop_sequence":null,
"usage":{"cache_creation":{"ephemeral_1h_input_tokens":0,"ephemeral_5m_input_tokens":148},"cache_creation_input_tokens":148,"cache_read_input_tokens":1800,"input_tokens":2095,"output_tokens":503,"service_tier":"standard"}}`, 148 + 1800 + 2095 + 503},
	{"Anthropic, stream", "usage", events, `event: message_start
data: {"type": "message_start", "message": {"id": "msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyY", "type": "message", "role": "assistant", "content": [], "model": "claude-sonnet-4-5", "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 25, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 0, "output_tokens": 1}}}

event: content_block_start
data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}

event: content_block_stop
data: {"type": "content_block_stop", "index": 0}

event: message_delta
data: {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence":null}, "usage": {"input_tokens": null, "output_tokens": 15}}

event: message_stop
data: {"type": "message_stop"}

`, 25 + 100 + 15},
	{"Anthropic, stream with search", "usage", events, `event: message_start
data: {"type":"message_start","message":{"content":[],"usage":{"input_tokens":2679,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":3}}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":10682,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":510,"server_tool_use":{"web_search_requests":1}}}

`, 10682 + 510},
	{"Anthropic, error", "usage", plain, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":null}`, -1},
	{"Gemini", "usage", plain, `{
  "candidates": [{"content": {"parts": [{"text": "Hello"}], "role": "model"}, "finishReason": "STOP", "index": 0}],
  "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 12, "totalTokenCount": 716, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 4}], "thoughtsTokenCount": 700},
  "modelVersion": "gemini-2.5-flash"
}`, 716},
	{"Gemini, events", "usage", events, "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"Hel\"}]}}],\"usageMetadata\": {\"promptTokenCount\": 4,\"totalTokenCount\": 6}}\r\n\r\n" +
		"data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"lo\"}]},\"finishReason\": \"STOP\"}],\"usageMetadata\": {\"promptTokenCount\": 4,\"candidatesTokenCount\": 5,\"totalTokenCount\": 9}}\r\n\r\n", 9},
	{"Gemini, array", "usage", plain, `[{
  "candidates": [{"content": {"parts": [{"text": "Hel"}]}}],
  "usageMetadata": {"promptTokenCount": 4, "totalTokenCount": 6}
}
,
{
  "candidates": [{"content": {"parts": [{"text": "lo"}]}, "finishReason": "STOP"}],
  "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 5, "totalTokenCount": 9}
}
]
`, 9},
	{"Ollama", "usage", plain, `{"model":"llama3.2","created_at":"2023-12-12T14:13:43.416799Z","message":{"role":"assistant","content":"Hello!"},"done":true,"total_duration":5191566416,"load_duration":2154458,"prompt_eval_count":26,"prompt_eval_duration":383809000,"eval_count":298,"eval_duration":4799921000}`, 26 + 298},
	{"Ollama, stream", "usage", lines, `{"model":"llama3.2","created_at":"2023-08-04T08:52:19.385406455-07:00","message":{"role":"assistant","content":"The"},"done":false}
{"model":"llama3.2","created_at":"2023-08-04T19:22:45.499127Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":4883583458,"load_duration":1334875,"prompt_eval_count":26,"prompt_eval_duration":342546000,"eval_count":282,"eval_duration":4535599000}
`, 26 + 282},
	{"Ollama, embeddings", "usage", plain, `{"model":"all-minilm","embeddings":[[0.010071029,-0.0017594862]],"total_duration":14143917,"load_duration":1019500,"prompt_eval_count":8}`, 8},

	{"text like usage", "usage", plain, `{"output":"\"usage\":{\"total_tokens\":1}, \\\"},\"usage\":{\"total_tokens\":2}","choices":[{"usage":{"total_tokens":3}}],"usage":{"note":"total_tokens\":4","total_tokens":5,"x":{"total_tokens":6}},"prompt":{"usage":{"total_tokens":7}}}`, 5},
	{"text like usage, nothing else", "usage", plain, `{"choices":[{"message":{"content":"{\"usage\":{\"total_tokens\":1}}\n\n{\"usage\":{\"total_tokens\":1}}"}}],"metadata":{"usage":{"total_tokens":2}}}`, -1},
	{"text like an event", "usage", events, `data: {"delta":"\n\ndata: {\"usage\":{\"total_tokens\":1}}\n\n"}` + "\n\n: data: {\"usage\":{\"total_tokens\":2}}\n\nid: {\"usage\":{\"total_tokens\":3}}\n\n", -1},
	{"two lines in an event", "usage", events, "data: {\"usage\":{\r\ndata:\"total_tokens\":5}\r\ndata\r\ndata: }\r\n\r\n", 5},
	{"carriage returns alone", "usage", "Text/Event-Stream", "data: {\"usage\":{\rdata: \"total_tokens\":5}\rdata: }\r\r", 5},
	{"broken event", "usage", events, "data: {\"text\":\"\n\ndata: {\"usage\":{\"total_tokens\":5}}\n\ndata: {\"usage\":{\"total_tokens\":\n\n", 5},
	{"half an array before", "usage", events, "data: [\n\ndata: 7 {\"usage\":{\"total_tokens\":5}}\n\n", -1},
	{"page", "usage", "text/html", `<script type="application/json">{"usage":{"total_tokens":5}}</script>`, -1},
	{"no number", "usage", plain, `{"usage":{"total_tokens":"12"}}`, -1},
	{"none of its own", "usage", plain, `{"usage":{"total_tokens":null,"input_tokens":-1,"output_tokens":1e999}}`, -1},
	{"long number", "usage", plain, `{"usage":{"total_tokens":` + strings.Repeat("1", 300) + `}}`, -1},
	{"nested", "usage", plain, `{"a":` + strings.Repeat(`[{"usage":`, 20000) + `{}` + strings.Repeat(`}]`, 20000) + `,"usage":{"total_tokens":5}}`, 5},
	{"sum", "json eval_count prompt_eval_count", lines, `{"eval_count":2}{"eval_count":3.5,"prompt_eval_count":1e1}`, 13.5},
	{"long keys escaped", "json kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", plain, "{\"" + strings.Repeat(`\u006b`, 100) + "\":5}", 5},
	{"empty", "json a", plain, "", -1},
}

// cost returns what a Meter finds in a body that is written in parts; -1 if nothing.
func cost(s meter.Source, h http.Header, parts ...[]byte) float64 {
	m := s.Begin(h)
	for _, p := range parts {
		p = bytes.Clone(p)
		m.Write(p)
		clear(p) // it belongs to the caller
	}
	v, ok := m.Cost(meter.End{Status: http.StatusOK, Header: h})
	if !ok {
		return -1
	}
	return v
}

func header(kind, encoding string) http.Header {
	h := http.Header{"Content-Type": {kind}}
	if encoding != "" {
		h.Set("Content-Encoding", encoding)
	}
	return h
}

// encode encodes a body; with flush, each line can be decoded as it comes.
func encode(t testing.TB, encoding string, body []byte, flush bool) []byte {
	t.Helper()
	return encodeAll(t, encoding, bytes.Lines(body), flush)
}

// encodeAll encodes pieces of a body.
func encodeAll(t testing.TB, encoding string, pieces iter.Seq[[]byte], flush bool) []byte {
	t.Helper()
	var out bytes.Buffer
	var w interface {
		io.WriteCloser
		Flush() error
	} = gzip.NewWriter(&out)
	if encoding == "zstd" {
		z, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(128<<10)) // as Caddy does
		if err != nil {
			t.Fatal(err)
		}
		w = z
	}
	for piece := range pieces {
		_, err := w.Write(piece)
		if err == nil && flush {
			err = w.Flush()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// single returns the bytes of b, one by one.
func single(b []byte) (parts [][]byte) {
	for i := range b {
		parts = append(parts, b[i:i+1])
	}
	return parts
}

// The cost is what the body tells, however it is cut and encoded.
func TestBodies(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, b := range bodies {
		t.Run(b.name, func(t *testing.T) {
			s := source(t, b.source)
			for _, encoding := range []string{"", "gzip", "zstd"} {
				body, h := []byte(b.body), header(b.kind, encoding)
				if encoding != "" {
					body = encode(t, encoding, body, b.kind == events)
				}
				if got := cost(s, h, body); got != b.want {
					t.Errorf("%q: %v, want %v", encoding, got, b.want)
				}
				if got := cost(s, h, single(body)...); got != b.want {
					t.Errorf("%q, byte by byte: %v, want %v", encoding, got, b.want)
				}
				if len(b.body) > 10_000 {
					continue
				}
				for i := range body {
					if got := cost(s, h, body[:i], body[i:]); got != b.want {
						t.Fatalf("%q, cut at byte %d: %v, want %v", encoding, i, got, b.want)
					}
				}
			}
			if got := cost(s, header(b.kind, "Identity"), []byte(b.body)); got != b.want {
				t.Errorf("as identity it is %v, want %v", got, b.want)
			}
			if got := cost(s, header(b.kind, "br"), []byte(b.body)); got != -1 {
				t.Errorf("in brotli it is %v", got)
			}
		})
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines; before there were %d", after, before)
	}
}

// A stream that ends early has cost what it told until then.
func TestCutOff(t *testing.T) {
	start := "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n"
	text := strings.Repeat("data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n", 100)
	end := "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n"
	s := source(t, "usage")
	for _, encoding := range []string{"", "gzip", "zstd"} {
		body, begun := []byte(start+text+end), len(start)
		if encoding != "" {
			begun = len(encode(t, encoding, []byte(start), true))
			body = encode(t, encoding, body, true)
		}
		last := -1.
		for i := range body {
			got := cost(s, header(events, encoding), body[:i])
			if got < last || got != -1 && got != 25 && got != 26 && got != 40 || i >= begun && got < 26 {
				t.Fatalf("%q: of %d bytes, %d have cost %v", encoding, len(body), i, got)
			}
			last = got
		}
		if last < 26 {
			t.Errorf("%q: all but the last byte have cost %v", encoding, last)
		}
	}
}

// zeros are a JSON text of so many MiB that says nothing, and then its usage.
func zeros(t testing.TB, encoding string, mib int) []byte {
	t.Helper()
	pieces := slices.Repeat([][]byte{bytes.Repeat([]byte{'0'}, 1<<20)}, mib)
	pieces = append(slices.Insert(pieces, 0, []byte(`{"text":"`)), []byte(`","usage":{"total_tokens":5}}`))
	return encodeAll(t, encoding, slices.Values(pieces), false)
}

// A few bytes that become many keep no processor busy and take no memory, and what is broken does no harm.
func TestBomb(t *testing.T) {
	s := source(t, "usage")
	for _, encoding := range []string{"gzip", "zstd"} {
		h := header(plain, encoding)
		if got := cost(s, h, zeros(t, encoding, 10)); got != 5 {
			t.Errorf("%s: a text of 10 MiB costs %v", encoding, got)
		}
		body := zeros(t, encoding, 200)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		got := cost(s, h, body)
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d bytes take %v and %d bytes of memory", encoding, len(body), took, allocated)
		if got != -1 || allocated > 10<<20 {
			t.Errorf("%s: a bomb costs %v, and %d bytes of memory", encoding, got, allocated)
		}
		body = encode(t, encoding, []byte(bodies[1].body), true)
		for i := range body {
			broken := bytes.Clone(body)
			broken[i] ^= 0x55
			cost(s, h, broken) // whatever it is
		}
	}
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, `{"usage":{"total_tokens":5},"text":"`+strings.Repeat("x", 1<<20))
	w.Flush()
	if got := cost(s, header(plain, "zstd"), out.Bytes()); got != -1 {
		t.Errorf("with a window of 64 MiB, more than clients take, it costs %v", got)
	}
	// A frame of one segment, of 60 GiB as it says.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cost(s, header(plain, "zstd"), []byte("\x28\xb5\x2f\xfd\xe0\x00\x00\x00\x00\x0f\x00\x00\x00\x09\x00\x00x"))
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
		t.Errorf("a header takes %d bytes", allocated)
	}
}

// Decoders hold no more than 512 MiB together. With the window of 8 MiB that zstd may have, that is 55.
func TestManyDecoders(t *testing.T) {
	var body bytes.Buffer
	w, err := zstd.NewWriter(&body, zstd.WithWindowSize(8<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, bodies[1].body)
	w.Flush()
	s, h := source(t, "usage"), header(events, "zstd")
	for range 2 { // the first have given back what they held
		found := 0
		meters := make([]*meter.Meter, 80)
		for i := range meters {
			meters[i] = s.Begin(h)
			meters[i].Write(body.Bytes())
		}
		for _, m := range meters {
			if v, ok := m.Cost(meter.End{}); ok && v == 29 {
				found++
			}
		}
		if found != 55 {
			t.Errorf("%d of 80 were read; want 55", found)
		}
	}
}

// A Meter that is ended, or not even begun, leaves nothing behind. In a bubble, Test would complain.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := source(t, "usage")
		body := encode(t, "gzip", []byte(bodies[0].body), true)
		for i := range 10 {
			m := s.Begin(header(plain, "gzip"))
			m.Write(body[:len(body)/10*i])
			m.Cost(meter.End{})
			m.Cost(meter.End{})
			m.Write(body) // nothing happens
		}
		synctest.Wait()
	})
}

func TestOtherSources(t *testing.T) {
	h := http.Header{"X-Cost": {" 12.5 "}, "X-Bad": {"NaN"}, "X-Hex": {"0x10"}, "X-Unit": {"12ms"}, "X-Minus": {"-2"}, "X-Underscore": {"1_0"}, "X-Huge": {"1e999"}, "X-Empty": {""}}
	end := http.Header{"X-Cost": {"13"}, "X-Late": {"14"}, http.TrailerPrefix + "X-Late": {"15"}}
	for text, want := range map[string]float64{
		"header x-cost": 12.5, "header X-Late": -1, "header X-None": -1,
		"header X-Bad": -1, "header X-Hex": -1, "header X-Unit": -1, "header X-Minus": -1, "header X-Underscore": -1, "header X-Huge": -1, "header X-Empty": -1,
		"trailer x-cost": 13, "trailer x-late": 15, "trailer X-None": -1, "trailer X-Minus": -1,
		"bytes": 107, "time": 1.5, "status 401 404": 1, "status 401 403": 0,
	} {
		m := source(t, text).Begin(h)
		m.Write([]byte("hello, "))
		m.Write(make([]byte, 100))
		got, ok := m.Cost(meter.End{Status: http.StatusNotFound, Header: end, Took: 1500 * time.Millisecond})
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	if got, ok := source(t, "time").Begin(nil).Cost(meter.End{Took: -time.Second}); !ok || got != 0 {
		t.Errorf("a clock that goes back: %v", got)
	}
	for _, text := range []string{"usage", "json a", "header X", "trailer X"} {
		if got, ok := source(t, text).Begin(nil).Cost(meter.End{}); ok {
			t.Errorf("%s: %v without a response", text, got)
		}
	}
}

// chunk is an event of a stream, as OpenAI sends them.
var chunk = []byte(`data: {"id":"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG","object":"chat.completion.chunk","created":1741570283,"model":"gpt-4o-2024-08-06","service_tier":"default","system_fingerprint":"fp_fc9f1d7035","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")

// What a Meter holds does not grow, whatever comes. The root package has how much that is for a stream.
func TestNoAllocations(t *testing.T) {
	for name, part := range map[string][]byte{
		"events": chunk,
		"depth":  bytes.Repeat([]byte(`{"a":`), 1000),
		"arrays": bytes.Repeat([]byte(`{"a":[{"b":`), 1000),
		"keys":   []byte(`{"` + strings.Repeat("k", 100_000)),
		"number": []byte(`data: {"usage":{"total_tokens":` + strings.Repeat("1", 100_000)),
	} {
		kind := plain
		if bytes.HasPrefix(part, []byte("data:")) {
			kind = events
		}
		m := source(t, "usage").Begin(header(kind, ""))
		if n := testing.AllocsPerRun(1, func() { m.Write(part) }); n > 0 {
			t.Errorf("%s: %v allocations for each part", name, n)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	m := source(b, "usage").Begin(header(events, ""))
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		m.Write(chunk)
	}
	m.Cost(meter.End{})
}

// A body has told its end when its JSON is whole, or with the last event of an API, and not before. Clients that have read that may hang up.
func TestOver(t *testing.T) {
	const usage = `"usage":{"total_tokens":7}`
	for _, c := range []struct{ kind, body, rest string }{
		{"application/json", `{"choices":[{"message":{"content":"} [DONE]"}}],` + usage + `}`, "\n\n"},
		{"application/json; charset=utf-8", "[{" + usage + "},{" + usage + "}]", ""},
		{"text/event-stream", "data: {" + usage + "}\n\ndata: [DONE]\n", "\n"},
		{"text/event-stream", "data: {" + usage + "}\r\n\r\ndata:[DONE]\r", "\n\r\n"},
		{"text/event-stream", "data: {\"type\":\"message_delta\",\"text\":\"[DONE]\"}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n", "\n"},
		{"text/event-stream", "data: {\"type\":\"response.created\",\"type\":\"response.completed\"}\n\ndata: {\"type\": \"response.completed\",\"response\":{}}\n", "\n"},
		{"text/event-stream", "", "data: {" + usage + "}\n\ndata: {\"text\":\"\\ndata: [DONE]\\n\"}\n\n: [DONE]\n\n"},
		{"application/x-ndjson", "", "{" + usage + "}\n{" + usage + "}\n"},
		{"", "", "{" + usage + "}"},
	} {
		m := source(t, "usage").Begin(http.Header{"Content-Type": {c.kind}})
		for i := range c.body + c.rest {
			m.Write([]byte((c.body + c.rest)[i : i+1]))
			if got, want := m.Over(), c.body != "" && i+1 >= len(c.body); got != want {
				t.Errorf("%s: over is %v after %q", c.kind, got, (c.body + c.rest)[:i+1])
			}
		}
		m.Cost(meter.End{})
	}
}
