package door

import (
	"net"
	"net/http"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// A Shield is a handler as the door knows it: what it is asked and told. A handler has one, unless
// its rejections are not to be remembered.
type Shield struct {
	Guard    func() *shield.Guard                                           // that is in force
	Rejected func(q *shield.Request, d *shield.Decision, status, major int) // counts a rejection at the door, over HTTP/1 or HTTP/2

	since atomic.Int64 // rejections before then do not count, as shield.Now has it
}

// Forget has no memo of an earlier rejection count: requests may have another way from now on.
// s may be nil.
func (s *Shield) Forget(now time.Duration) {
	if s != nil {
		s.since.Store(int64(now))
	}
}

// A Visit is the way of a request through the door, as its handlers see it. It is nothing, a connection
// with HTTP/1.1, or one with HTTP/2, with a note if the request has a number. It is no interface,
// so that what handlers pass to it need not be allocated.
type Visit struct {
	conn *conn
	h2   *h2Conn
	note *h2Visit
}

type connKey struct{}

// Of returns the Visit of a request.
func Of(r *http.Request) (v Visit) {
	switch c, _ := r.Context().Value(connKey{}).(*conn); {
	case c == nil:
	case r.ProtoMajor == 1:
		v.conn = c
	case r.ProtoMajor == 2:
		v.h2 = c.h2.Load()
		v.note, _ = r.Context().Value(visitKey{}).(*h2Visit)
	}
	return v
}

// Take returns the decision that was made at the door for the request that a shield handles, if
// there is one. Every handler that a request comes through calls it once; s may be nil.
func (v Visit) Take(s *Shield) (d shield.Decision, ok bool) {
	switch {
	case v.conn != nil:
		v.conn.mu.Lock()
		defer v.conn.mu.Unlock()
		return v.conn.visit.take(s)
	case v.note != nil:
		return v.note.take(s)
	}
	return d, false
}

// Rejected begins a memo of r, which the handler of s is about to answer directly. keys are those of q.
func (v Visit) Rejected(now time.Duration, s *Shield, r *http.Request, q *shield.Request, keys []limiter.Key, d *shield.Decision) {
	if s == nil || !repeatable(r, q, d) {
		return
	}
	is := rejection{s, r, now}
	if v.conn != nil {
		v.conn.rejected(is, q, keys, d)
	}
	if v.h2 != nil {
		v.h2.warm.Store(int64(now + 5*time.Second)) // the next requests have a number. Ours: clients that retry at once are back by then
	}
	if v.note != nil {
		v.note.rejected(is, q, keys, d)
	}
}

// rejection is what Rejected is told that lives on. The rest is passed beside it, so that it stays on the stack
// of the handler.
type rejection struct {
	by  *Shield
	r   *http.Request
	now time.Duration
}

// visit is what a connection knows of a request that it has passed on.
type visit struct {
	sum     uint64 // of its bytes; 0: they cannot be all of it
	head    []byte // a copy of them, if a memo may be made
	shields int    // that it has come through
	hand    *hand
	draft   *draft
}

func (v *visit) take(s *Shield) (d shield.Decision, ok bool) {
	v.shields++
	if v.hand == nil || v.hand.of != s {
		return d, false
	}
	d, v.hand = v.hand.d, nil
	return d, true
}

// A hand is a decision that was made at the door, for the handler that is to act on it.
type hand struct {
	of *Shield
	d  shield.Decision
}

// drop gives back what the decision holds: the handler was not reached.
func (h *hand) drop() {
	switch {
	case h == nil:
	case h.d.Queued():
		h.of.Guard().Abandon(shield.Now(), &h.d)
	case h.d.Admit:
		h.d.Done(shield.Now(), shield.Detached)
	default:
		h.d.Lost()
	}
}

// caddyhttpPath is the package whose connections may stand between a conn and net/http: what they
// are asked for they ask of the next one at once. One that reads ahead would ask for the next
// request before this one is answered.
var caddyhttpPath = reflect.TypeFor[caddyhttp.Server]().PkgPath()

// connIn returns the conn in what Caddy's listener has made of it, or nil.
func connIn(outer net.Conn) *conn {
	for outer != nil {
		switch is := outer.(type) {
		case *conn:
			return is
		case tlsConn:
			return is.conn
		}
		of := reflect.Indirect(reflect.ValueOf(outer))
		if of.Kind() != reflect.Struct || of.Type().PkgPath() != caddyhttpPath {
			return nil
		}
		inner := of.FieldByName("Conn")
		if !inner.IsValid() || !inner.CanInterface() {
			return nil
		}
		outer, _ = inner.Interface().(net.Conn)
	}
	return nil
}
