package caddymodule

import (
	"bufio"
	"bytes"
	"hash/maphash"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

const (
	// memoLife is how long a memo counts. Then a request goes the usual way: logs, Caddy's
	// metrics and routes that depend on the time see one per second of each client.
	memoLife = time.Second

	// maxHead is how long a request may be, in bytes, to be remembered. Ours: browsers' requests
	// with their cookies have about half of it.
	maxHead = 2048
)

// A memo is a request that was refused, with all that it takes to refuse it again. It is
// immutable. It counts for requests of the same origin and the same bytes, or is a rule.
type memo struct {
	origin origin
	head   []byte // the request; of a rule, its shape
	sum    uint64 // of both
	h      *Handler
	q      shield.Request
	waits  time.Duration // how long its client waits for an answer; 0: not known
	page   page
	since  time.Duration // when its request was decided on
	until  time.Duration
	by     uint64 // the serial of the connection that it was made on
	alike  bool   // two answers in a row were: it is for that connection
	proven bool   // they came on two connections: it is for all of its origin
	closes bool   // the connection ends with the answer

	// other is the memo of the same request with another policy, which has no other. nil: none.
	// A client may be over its quota, and come before its time, in turn.
	other *memo
}

// isFor reports whether the memo's page is known to be that of a connection, and still counts. A page
// that is alike twice on one connection may have that connection's port in it.
func (m *memo) isFor(conn uint64, now time.Duration) bool {
	return (m.proven || m.alike && m.by == conn) && now < m.until
}

// alive reports whether requests on a connection are to be refused by the memo, or by the other.
func (m *memo) alive(conn uint64, now time.Duration) bool {
	return m != nil && (m.isFor(conn, now) || m.other.alive(conn, now))
}

// telling returns the memo with a page that can tell a refusal on a connection, or nil.
func (m *memo) telling(d *shield.Decision, conn uint64, now time.Duration) *memo {
	for ; m != nil; m = m.other {
		if m.isFor(conn, now) && m.page.fits(d) {
			return m
		}
	}
	return nil
}

// admit asks the memo's shield about one more request: m.q, or one like it.
func (m *memo) admit(now time.Duration, q shield.Request) shield.Decision {
	if m.waits > 0 {
		q.Deadline = now + m.waits
	}
	return m.h.guard().Admit(now, q)
}

// answer returns the memo with a page for a decision, or nil: it is for the handler.
func (m *memo) answer(d *shield.Decision, conn uint64, now time.Duration) *memo {
	if d.Admit || d.Queued() {
		return nil
	}
	return m.telling(d, conn, now)
}

// observe counts an answer that was held back for so long.
func (m *memo) observe(d *shield.Decision, took time.Duration) {
	m.h.record.durations.observe(outcomeRefused, m.h.guard().Answers().Status(d.Refusal()), took)
}

// compare notes what an earlier memo of the same request says of m: whether its answer was the same.
func (m *memo) compare(earlier *memo) {
	for e := earlier; e != nil; e = e.other {
		if e.page.policy == m.page.policy {
			same := e.page.same(&m.page) && sameClient(&e.q, &m.q)
			m.alike, m.proven = m.alike || same, m.proven || same && (e.proven || e.by != m.by)
		} else if m.other == nil {
			m.other = new(*e)
			m.other.other = nil
		}
	}
}

// sameClient reports whether a shield counts two requests alike. A handler before it may make a part of
// their keys of the connection.
func sameClient(a, b *shield.Request) bool {
	return a.Client == b.Client && a.InFlightKey == b.InFlightKey && a.Class == b.Class && slices.Equal(a.Keys, b.Keys)
}

// atDoor is what the memos of one handler have in common.
type atDoor struct {
	from      atomic.Int64 // refusals before then do not count, as shield.Now has it
	byAddress bool         // there may be rules
	page      atomic.Pointer[page]
}

// forget has no memo of an earlier refusal count: requests may have another way from now on.
func (a *atDoor) forget(now time.Duration) { a.from.Store(int64(now)) }

// share has a page use the memory of the latest one, if it is the same but for other clients.
func (a *atDoor) share(p *page) {
	if latest := a.page.Load(); latest != nil && latest.same(p) {
		p.text, p.gaps, p.fields = latest.text, latest.gaps, latest.fields
	} else {
		a.page.Store(new(*p))
	}
}

// An origin is all of a connection that handlers can tell from another, but its port. Only
// plain TCP connections are alike. With TLS each is one of its own, because handlers may look
// at its certificates; handshakes cost so much more that nothing is lost.
type origin struct {
	remote, local netip.Addr
	serial        uint64 // 0: shared by all connections between these addresses
}

// counts reports whether the memo is of this request, and requests on the connection are to be refused by it.
func (m *memo) counts(o *origin, conn uint64, head []byte, now time.Duration) bool {
	return m.alive(conn, now) && m.of(o, head) && int64(m.since) > m.h.atDoor.from.Load()
}

func (m *memo) of(o *origin, head []byte) bool {
	return m != nil && bytes.Equal(m.head, head) && m.origin == *o
}

// memos are the memos of a listener. All tables are direct mapped: a memo that counts keeps its
// place, and any other makes room.
type memos struct {
	slots [4096]atomic.Pointer[memo]
	seen  [4096]atomic.Uint64 // sums of requests that were refused
	heat  [4096]atomic.Int64  // when an address was last refused a request that came again
}

// warmth is how long an address stays warm. Ours: clients that retry at once are back by then.
const warmth = 5 * time.Second

// warm reports whether an address was refused lately.
func (t *memos) warm(a netip.Addr, now time.Duration) bool {
	at := t.heat[maphash.Comparable(memoSeed, a)%uint64(len(t.heat))].Load()
	return at != 0 && int64(now-warmth) < at
}

func (t *memos) warmUp(a netip.Addr, now time.Duration) {
	t.heat[maphash.Comparable(memoSeed, a)%uint64(len(t.heat))].Store(int64(now))
}

var memoSeed = maphash.MakeSeed()

// sum identifies a request. It is never 0.
func (o *origin) sum(head []byte) uint64 {
	return max(1, maphash.Bytes(memoSeed, head)^maphash.Comparable(memoSeed, *o))
}

func (t *memos) find(sum uint64) *memo { return t.slots[sum%uint64(len(t.slots))].Load() }

func (t *memos) keep(m *memo) {
	t.warmUp(m.origin.remote, m.until-memoLife)
	slot := &t.slots[m.sum%uint64(len(t.slots))]
	if old := slot.Load(); old == nil || !old.alive(old.by, m.until-memoLife) || old.of(&m.origin, m.head) {
		slot.CompareAndSwap(old, m)
	}
}

// knows reports whether see was called for the sum. Only requests that come again are worth
// a memo: to make one costs as much as half a refusal.
func (t *memos) knows(sum uint64) bool { return t.seen[sum%uint64(len(t.seen))].Load() == sum }

func (t *memos) see(sum uint64) { t.seen[sum%uint64(len(t.seen))].Store(sum) }

// A draft is a memo in the making: its answer is being written.
type draft struct {
	memo
	r       *http.Request
	refusal pushback.Refusal
	written []byte
}

// maxPage is how long an answer may be, in bytes, to be remembered. Ours: shield's own page has
// a third of it.
const maxPage = 4096

func newDraft(now time.Duration, h *Handler, r *http.Request, q *shield.Request, keys []limiter.Key, d *shield.Decision) *draft {
	m := memo{h: h, q: *q, since: d.At(), until: now + memoLife, closes: r.Close}
	m.q.Keys = slices.Clone(keys)
	if q.Deadline > 0 {
		m.waits, m.q.Deadline = q.Deadline-d.At(), 0
	}
	return &draft{memo: m, r: r, refusal: d.Refusal(), written: make([]byte, 0, 1024)}
}

// record notes a part of the answer.
func (d *draft) record(b []byte) {
	if len(d.written) <= maxPage {
		d.written = append(d.written, b...)
	}
}

// finish makes the memo of the answer that was written, or nil. It is compared with earlier memos of the
// same request.
func (d *draft) finish(earlier ...*memo) *memo {
	if len(d.written) > maxPage {
		return nil
	}
	m := d.memo
	var ok bool
	if m.page, ok = newPage(d.written, d.r, m.h.guard().Answers(), d.refusal); !ok {
		return nil
	}
	if d.r.ProtoMajor == 2 {
		m.page.fields = fieldsOf(&m.page)
	}
	m.h.atDoor.share(&m.page)
	for _, e := range earlier {
		if e.of(&m.origin, m.head) && e.h == m.h {
			m.compare(e)
		}
	}
	return &m
}

// repeatable reports whether a refusal of r can be told again by patching its numbers.
//
// It leaves out POST, for which net/http accepts an empty line before the next request; and
// clients with a ticket or Shield-Retry, which keep to their appointments.
func repeatable(r *http.Request, q *shield.Request, d *shield.Decision) bool {
	return (r.ProtoMajor == 2 || r.ProtoMajor == 1 && r.ProtoMinor == 1) && r.ContentLength == 0 && len(r.TransferEncoding) == 0 &&
		r.Method != http.MethodPost && r.Method != http.MethodConnect &&
		r.Header["Expect"] == nil && r.Header["Upgrade"] == nil && r.Header["Trailer"] == nil &&
		q.Ticket == "" && !q.Precise && !d.Hint.Never && d.Ticket == ""
}

// isAllOf reports whether head is r, all of it and nothing else. net/http itself says so:
// nothing here interprets bytes. A request whose headers other handlers have changed is not.
func isAllOf(head []byte, r *http.Request) bool {
	in := bufio.NewReaderSize(bytes.NewReader(head), len(head))
	same, err := http.ReadRequest(in)
	if err != nil || in.Buffered() > 0 || same.Body != http.NoBody || same.ProtoMinor != 1 || same.ProtoMajor != 1 {
		return false
	}
	return same.Close == r.Close && isUnchanged(same, r)
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
