package caddymodule

import (
	"net"
	"net/http"
	"reflect"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// passed is what a connection knows of the request that it has passed on.
type passed struct {
	sum     uint64 // of its chunk; 0: that cannot be all of it
	head    []byte // a copy of its chunk, if the sum is known, or that of the origin alone
	shields int    // that it has come through
	hand    *inHand
	draft   *draft
}

// inHand is a decision that was made at the door, for the handler that is to act on it.
type inHand struct {
	by *Handler
	d  shield.Decision
}

// drop gives back what the decision holds: the handler was not reached.
func (i *inHand) drop() {
	switch {
	case i == nil, i.d.Gone:
	case i.d.Queued():
		i.by.guard().Abandon(shield.Now(), &i.d)
	case i.d.Admit:
		i.d.Done(shield.Now(), shield.Detached)
	default:
		i.d.Lost()
	}
}

// take is that of door.
func (c *doorConn) take(h *Handler) (d shield.Decision, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed.shields++
	hand := c.passed.hand
	if hand == nil || hand.by != h {
		return d, false
	}
	c.passed.hand = nil
	return hand.d, true
}

// refused is that of door.
func (c *doorConn) refused(now time.Duration, h *Handler, r *http.Request, q *shield.Request, keys []limiter.Key, d *shield.Decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := &c.passed; {
	case p.sum == 0 || p.shields != 1 || p.draft != nil:
	case p.head == nil:
		c.memos.see(p.sum)
		if h.atDoor.byAddress {
			c.memos.see(c.origin.sum(nil)) // the next one may make a rule
		}
	default:
		head, sum := p.head, p.sum
		if !c.memos.knows(sum) {
			c.memos.see(sum)
			head, sum = c.shape(p.head, h, r, q)
		}
		if head != nil && isAllOf(p.head, r) {
			p.draft = newDraft(now, h, r, q, keys, d)
			p.draft.by, p.draft.origin, p.draft.head, p.draft.sum = c.serial, c.origin, head, sum
			c.recording.Store(true)
		}
	}
}

// finish ends what the passed request has left, and reports whether the next one begins where
// the connection is read next.
func (c *doorConn) finish() (starts bool) {
	c.mu.Lock()
	last := c.passed
	c.passed = passed{}
	c.recording.Store(false)
	c.mu.Unlock()
	last.hand.drop()
	if last.draft == nil {
		c.memo.Store(nil)
		return false
	}
	m := last.draft.finish(c.memo.Load(), c.memos.find(last.draft.sum))
	if m == nil {
		return false
	}
	c.memo.Store(m) // find takes no chunk for a rule
	c.memos.keep(m)
	return true
}

type doorKey struct{}

// A door is where a request has come through, as its handlers see it: nothing, a connection with
// HTTP/1.1, or one with HTTP/2, with a visit if the request has a number. It is no interface,
// so that what handlers pass to it need not be allocated.
type door struct {
	conn  *doorConn
	h2    *h2Door
	visit *h2Visit
}

// doorOf returns the door that r has come through.
func doorOf(r *http.Request) (d door) {
	switch c, _ := r.Context().Value(doorKey{}).(*doorConn); {
	case c == nil:
	case r.ProtoMajor == 1:
		d.conn = c
	case r.ProtoMajor == 2:
		d.h2 = c.h2.Load()
		d.visit, _ = r.Context().Value(visitKey{}).(*h2Visit)
	}
	return d
}

// take returns the decision that was made at the door for the request that h handles, if
// there is one. Every shield that a request comes through calls it once.
func (d door) take(h *Handler) (decision shield.Decision, ok bool) {
	switch {
	case d.conn != nil:
		return d.conn.take(h)
	case d.visit != nil:
		return d.visit.take(h)
	}
	return decision, false
}

// refused begins a memo of r, which h is about to answer directly.
func (d door) refused(now time.Duration, h *Handler, r *http.Request, q *shield.Request, keys []limiter.Key, decision *shield.Decision) {
	if h.atDoor == nil || !repeatable(r, q, decision) {
		return
	}
	if d.conn != nil {
		d.conn.refused(now, h, r, q, keys, decision)
	}
	if d.h2 != nil {
		d.h2.warm.Store(int64(now + warmth)) // the next requests have a number
	}
	if d.visit != nil {
		d.visit.refused(now, h, r, q, keys, decision)
	}
}

// caddyhttpPath is the package whose connections may stand between a doorConn and net/http: what they
// are asked for they ask of the next one at once. One that reads ahead would ask for the next
// request before this one is answered.
var caddyhttpPath = reflect.TypeFor[caddyhttp.Server]().PkgPath()

// doorIn returns the doorConn in what Caddy's listener has made of it, or nil.
func doorIn(conn net.Conn) *doorConn {
	for conn != nil {
		switch is := conn.(type) {
		case *doorConn:
			return is
		case tlsDoorConn:
			return is.doorConn
		}
		outer := reflect.Indirect(reflect.ValueOf(conn))
		if outer.Kind() != reflect.Struct || outer.Type().PkgPath() != caddyhttpPath {
			return nil
		}
		inner := outer.FieldByName("Conn")
		if !inner.IsValid() || !inner.CanInterface() {
			return nil
		}
		conn, _ = inner.Interface().(net.Conn)
	}
	return nil
}
