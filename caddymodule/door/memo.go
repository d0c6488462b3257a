package door

import (
	"bufio"
	"bytes"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

const (
	// memoLife is how long a memo counts. Then a request goes the usual way: logs, Caddy's
	// metrics and routes that depend on the time see one per second of each connection.
	memoLife = time.Second

	// maxHead is how long a request may be, in bytes, to be remembered. Ours: browsers' requests
	// with their cookies have about half of it.
	maxHead = 2048

	// maxPage is how long an answer may be, in bytes, to be remembered. Ours: shield's own page has
	// a third of it.
	maxPage = 4096
)

// A memo is a request that was rejected on a connection, with all that it takes to reject it there again.
// It is immutable once it is kept, and counts for the same bytes.
type memo struct {
	head  []byte // the request
	table uint64 // of HTTP/2: the bytes mean the same only while it does
	of    *Shield
	q     shield.Request
	page  page
	since time.Duration // when its request was decided on
	until time.Duration
	alike bool // two answers in a row were
}

// isOf reports whether it is the memo of a request.
func (m *memo) isOf(table uint64, head []byte) bool {
	return m != nil && m.table == table && bytes.Equal(m.head, head)
}

func (m *memo) counts(now time.Duration) bool {
	return m.alike && now < m.until && int64(m.since) > m.of.since.Load()
}

// sameClient reports whether a shield counts two requests alike. A handler before it may make a part of
// their keys, or their costs, of something else than their bytes.
func sameClient(a, b *shield.Request) bool {
	return a.Client == b.Client && a.InFlightKey == b.InFlightKey && a.Class == b.Class && a.Weight == b.Weight &&
		slices.Equal(a.Keys, b.Keys) && slices.Equal(a.Asks, b.Asks)
}

// memos are those of a connection. A client may be over its quota, and come before its time, in turn:
// then there are two of the same request, with the answers to each.
type memos struct {
	mu   sync.Mutex
	all  [4]*memo  // guarded by mu
	seen [4]uint64 // sums of the last requests that were rejected, the latest first; guarded by mu
}

// that returns a memo that counts and is as asked for, or nil.
func (t *memos) that(now time.Duration, is func(*memo) bool) *memo {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.all {
		if m != nil && m.counts(now) && is(m) {
			return m
		}
	}
	return nil
}

// find returns a memo of a request.
func (t *memos) find(now time.Duration, table uint64, head []byte) *memo {
	return t.that(now, func(m *memo) bool { return m.isOf(table, head) })
}

// telling returns the memo of the same request whose page can tell a decision, or nil: then it is for the
// handler. So is a rejection that is to be held back.
func (t *memos) telling(of *memo, d *shield.Decision, now time.Duration) *memo {
	if d.Admit || d.Queued() || d.Hold > 0 {
		return nil
	}
	return t.that(now, func(m *memo) bool { return m.isOf(of.table, of.head) && m.page.fits(d) })
}

// keep makes the memo of a rejection that was answered. It reports false if the answer cannot be told again.
// The memo counts if the last answer to the same request was the same.
func (t *memos) keep(d *draft) bool {
	m, ok := new(d.memo), false
	if len(d.written) <= maxPage {
		m.page, ok = newPage(d.written, d.r, m.of.Guard().Responses(), d.rejection)
	}
	if !ok {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := 0 // a free place, or that of the oldest
	for i, e := range t.all {
		if e.isOf(m.table, m.head) && e.of == m.of && e.page.policy == m.page.policy {
			m.alike = e.page.same(&m.page) && sameClient(&e.q, &m.q)
			at = i
			break
		}
		if oldest := t.all[at]; oldest != nil && (e == nil || e.until < oldest.until) {
			at = i
		}
	}
	t.all[at] = m
	return true
}

var seed = maphash.MakeSeed()

// sum identifies the bytes of a request. It is never 0.
func sum(head []byte) uint64 { return max(1, maphash.Bytes(seed, head)) }

// knows reports whether a request with the sum was rejected lately. Only requests that come again are
// worth a memo: to make one costs as much as half a rejection.
func (t *memos) knows(sum uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.seen[:], sum)
}

// sees notes that one was rejected.
func (t *memos) sees(sum uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := slices.Index(t.seen[:], sum)
	if at < 0 {
		at = len(t.seen) - 1
	}
	copy(t.seen[1:at+1], t.seen[:at])
	t.seen[0] = sum
}

// A draft is a memo in the making: its answer is being written.
type draft struct {
	memo
	r         *http.Request
	rejection pushback.Rejection
	written   []byte
}

// draft begins the memo of a rejection.
func (v rejection) draft(head []byte, table uint64, q *shield.Request, keys []limiter.Key, d *shield.Decision) *draft {
	m := memo{head: head, table: table, of: v.by, q: *q, since: d.At(), until: v.now + memoLife}
	m.q.Keys = slices.Clone(keys)
	return &draft{memo: m, r: v.r, rejection: d.Rejection(), written: make([]byte, 0, 1024)}
}

// repeatable reports whether a rejection of r can be told again by patching its numbers. It leaves out
// clients with a ticket or that read milliseconds, which keep to their appointments, those that say how long they wait, and error routes.
func repeatable(r *http.Request, q *shield.Request, d *shield.Decision) bool {
	return isSimple(r) && r.Context().Value(caddyhttp.ErrorCtxKey) == nil && q.Ticket == "" && q.Deadline == 0 && !q.Precise && !d.Hint.Never && d.Ticket == ""
}

// isSimple reports whether a request is all that its client sends, and has nothing to do with its connection.
// It leaves out POST, for which net/http accepts an empty line before the next request.
func isSimple(r *http.Request) bool {
	return (r.ProtoMajor == 2 || r.ProtoMajor == 1 && r.ProtoMinor == 1) &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0 && !r.Close &&
		r.Method != http.MethodPost && r.Method != http.MethodConnect &&
		r.Header["Expect"] == nil && r.Header["Upgrade"] == nil && r.Header["Trailer"] == nil
}

// isAllOf reports whether head is r, all of it and nothing else. A request whose headers other handlers
// have changed is not.
//
// It has net/http read the request: nothing here interprets bytes.
func isAllOf(head []byte, r *http.Request) bool {
	in := bufio.NewReaderSize(bytes.NewReader(head), maxHead)
	same, err := http.ReadRequest(in)
	return err == nil && in.Buffered() == 0 && same.ProtoMajor == 1 && same.Body == http.NoBody && isSimple(same) && isUnchanged(same, r)
}

// isUnchanged reports whether r, as a handler sees it, is still what the server has read.
func isUnchanged(same, r *http.Request) bool {
	method, uri := r.Method, r.RequestURI
	if before, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok { // handlers may have rewritten r
		method, uri = before.Method, before.RequestURI
	}
	return same.Method == method && same.RequestURI == uri && same.Host == r.Host &&
		maps.EqualFunc(same.Header, r.Header, slices.Equal[[]string])
}
