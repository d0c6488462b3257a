package pushback

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

var (
	ticketSecret = []byte("sixteen bytes at least")
	alice        = []byte("192.0.2.7")
	bob          = []byte("192.0.2.8")

	// noon begins a span of used tickets, so that tests see the border between two.
	noon = time.Unix(1_790_000_000, 0)
)

func mustTickets(tb testing.TB, maxUsed int) *Tickets {
	tb.Helper()
	t, err := NewTickets(ticketSecret, maxUsed)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func (t *Tickets) text(client []byte, due time.Time) string {
	return string(t.Append(nil, client, due, due.Add(-10*time.Second)))
}

// wantErr redeems and compares the error. No error but ErrEarly tells anything of
// the ticket.
func wantErr(tb testing.TB, t *Tickets, now time.Time, client []byte, text string, want error) {
	tb.Helper()
	k, err := t.Redeem(now, client, text)
	if err != want {
		tb.Errorf("Redeem at %v: %v; want %v", now.Sub(noon), err, want)
	}
	if err != nil && err != ErrEarly && k != (Ticket{}) {
		tb.Errorf("a refused ticket tells %+v", k)
	}
}

func TestTicketRoundTrip(t *testing.T) {
	tickets := mustTickets(t, 1000)
	for _, client := range [][]byte{nil, alice, bob, []byte(strings.Repeat("key", 1000))} {
		due, born := noon.Add(5*time.Second+123_456*time.Microsecond), noon.Add(-25*time.Second)
		text := string(tickets.Append([]byte("tok="), client, due.Add(789), born.Add(999*ms)))
		text, ok := strings.CutPrefix(text, "tok=")
		if !ok || len(text) != TicketLen {
			t.Fatalf("Append: %q, want tok= and %d characters", text, TicketLen)
		}
		k, err := tickets.Redeem(due, client, text)
		if err != nil || !k.Due.Equal(due) || !k.Born.Equal(born) {
			t.Errorf("%d bytes of client: %+v, %v; want due %v, born %v", len(client), k, err, due, born)
		}
	}
}

// The format is what all replicas of all versions agree on. The text was made by
// Python's hmac, hashlib and base64.
func TestTicketFormat(t *testing.T) {
	const want = "Blv-2ifCQGqxO3ZiL27-1URdyi6-FSAoDW4Evxo6nGmBqtPr6GuW"
	due, born := noon.Add(123_456*time.Microsecond), noon.Add(-10*time.Second)
	if got := string(mustTickets(t, 1).Append(nil, alice, due, born)); got != want {
		t.Errorf("ticket %s, want %s", got, want)
	}
}

func TestTicketRange(t *testing.T) {
	tickets := mustTickets(t, 10)
	for _, c := range []struct{ is, want time.Time }{
		{time.Time{}, time.Unix(0, 0)},
		{time.Unix(-1, 0), time.Unix(0, 0)},
		{time.Unix(1<<32-1, 0), time.Unix(1<<32-1, 0)},
		{time.Unix(1<<40, 0), time.Unix(1<<32-1, 0)},
	} {
		k, err := tickets.Redeem(c.want, alice, string(tickets.Append(nil, alice, c.is, c.is)))
		if err != nil && err != ErrUsed || err == nil && (!k.Due.Equal(c.want) || !k.Born.Equal(c.want)) {
			t.Errorf("%v: %+v, %v", c.is, k, err)
		}
	}
}

func TestEveryBitCounts(t *testing.T) {
	tickets := mustTickets(t, 10)
	text := tickets.text(alice, noon)
	for i := range len(text) {
		for bit := range 8 {
			b := []byte(text)
			b[i] ^= 1 << bit
			k, err := tickets.Redeem(noon, alice, string(b))
			if err != ErrForged && err != ErrMalformed && err != ErrExpired || k != (Ticket{}) {
				t.Errorf("bit %d of character %d flipped: %+v, %v", bit, i, k, err)
			}
		}
	}
	// The same in the raw form, where every bit is a ticket's.
	m := tickets.macs.Get().(*macer)
	if _, _, err := m.open(noon, alice, text); err != nil {
		t.Fatal(err)
	}
	raw := m.raw
	for i := range 8 * len(raw) {
		b := raw
		b[i/8] ^= 1 << (i % 8)
		want := ErrForged
		if due := time.UnixMicro(int64(binary.BigEndian.Uint64(b[:]) >> 8)); due.Before(noon.Add(-ticketGrace)) || due.After(noon.Add(maxTicketAhead)) {
			want = ErrExpired
		}
		wantErr(t, tickets, noon, alice, base64.RawURLEncoding.EncodeToString(b[:]), want)
	}
	wantErr(t, tickets, noon, alice, text, nil)
}

func TestMalformedTickets(t *testing.T) {
	tickets := mustTickets(t, 10)
	text := tickets.text(alice, noon)
	for _, bad := range []string{
		"", "=", text[1:], text + "A", text + "=", " " + text[1:], text[:51] + "=", text[:51] + "+", text[:51] + "/",
		text[:50] + "\r\n", "\n" + text[1:], text[:51] + "\x00", text[:50] + "é", strings.Repeat("\n", TicketLen), strings.Repeat("A", 1<<20),
	} {
		wantErr(t, tickets, noon, alice, bad, ErrMalformed)
	}
	// A line break in a longer text is none of base64's business either.
	wantErr(t, tickets, noon, alice, text[:20]+"\n"+text[20:], ErrMalformed)
	wantErr(t, tickets, noon, alice, text, nil)
}

func TestForeignAndForgedTickets(t *testing.T) {
	tickets := mustTickets(t, 10)
	text := tickets.text(alice, noon)
	other, err := NewTickets([]byte("sixteen bytes at most."), 10)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, other, noon, alice, text, ErrForged)
	wantErr(t, tickets, noon, alice, other.text(alice, noon), ErrForged)
	wantErr(t, tickets, noon, alice, strings.Repeat("A", TicketLen), ErrExpired)
	for _, client := range [][]byte{nil, bob, alice[1:], append(alice[:len(alice):len(alice)], 0), append([]byte(clientLabel), alice...)} {
		wantErr(t, tickets, noon, client, text, ErrForeign)
		// Not even that it is early is told to others.
		wantErr(t, tickets, noon.Add(-20*time.Second), client, text, ErrForeign)
	}
	// Others who tried it have not used it up.
	wantErr(t, tickets, noon, alice, text, nil)
}

// The MACs are those of crypto/hmac over label and message, however long: names
// may be longer than the buffer. And neither label is the beginning of the other,
// so that nothing is a message of both.
func TestMACs(t *testing.T) {
	if strings.HasPrefix(clientLabel, ticketLabel) || strings.HasPrefix(ticketLabel, clientLabel) {
		t.Error("one label begins with the other")
	}
	m := mustTickets(t, 1).macs.Get().(*macer)
	message := []byte(strings.Repeat("0123456789", 40))
	for n := range message {
		for _, label := range []string{clientLabel, ticketLabel} {
			h := hmac.New(sha256.New, ticketSecret)
			h.Write([]byte(label))
			h.Write(message[:n])
			if got, want := m.sum(label, message[:n]), h.Sum(nil); !bytes.Equal(got, want) {
				t.Fatalf("%s and %d bytes: %x, want %x", label, n, got, want)
			}
		}
	}
}

func TestWhenATicketIsGood(t *testing.T) {
	for _, c := range []struct {
		after time.Duration // now, after it is due
		want  error
	}{
		{-maxTicketAhead - time.Microsecond, ErrExpired}, // from before the clock was set back
		{-maxTicketAhead, ErrEarly},
		{-30 * time.Second, ErrEarly},
		{-clockSkew - time.Microsecond, ErrEarly},
		{-clockSkew, nil},
		{0, nil},
		{ticketGrace, nil},
		{ticketGrace + time.Microsecond, ErrExpired},
		{1000 * time.Hour, ErrExpired},
	} {
		tickets := mustTickets(t, 10)
		wantErr(t, tickets, noon.Add(c.after), alice, tickets.text(alice, noon), c.want)
	}
}

func TestEarlyDoesNotUseUp(t *testing.T) {
	tickets := mustTickets(t, 1)
	text := tickets.text(alice, noon)
	for range 10 { // more than can be remembered
		k, err := tickets.Redeem(noon.Add(-7*time.Second), alice, text)
		if err != ErrEarly || !k.Due.Equal(noon) || !k.Born.Equal(noon.Add(-10*time.Second)) {
			t.Fatalf("%+v, %v; want the promise and %v", k, err, ErrEarly)
		}
	}
	wantErr(t, tickets, noon, alice, text, nil)
	wantErr(t, tickets, noon, alice, text, ErrUsed)
}

// A ticket is good once, wherever in its time it is used first and tried again,
// and whatever else is used in between, on both sides of a border of spans.
func TestReplay(t *testing.T) {
	for due := -span; due <= span; due += span / 8 {
		for use := -clockSkew; use <= ticketGrace; use += time.Second {
			tickets := mustTickets(t, 200)
			at := noon.Add(due)
			text := tickets.text(alice, at)
			wantErr(t, tickets, at.Add(use), alice, text, nil)
			for again := use; again <= ticketGrace; again += 5 * time.Second {
				now := at.Add(again)
				for _, d := range []time.Duration{-ticketGrace, -ticketGrace / 2, 0, clockSkew} {
					other := now.Add(d + time.Duration(again)/1000) // each at its own microsecond
					_, err := tickets.Redeem(now, bob, tickets.text(bob, other))
					if err == ErrFull || err == ErrUsed {
						t.Fatalf("another client: %v", err)
					}
				}
				wantErr(t, tickets, now, alice, text, ErrUsed)
			}
			wantErr(t, tickets, at.Add(ticketGrace+1), alice, text, ErrExpired)
		}
	}
}

// When no more can be remembered, what was used stays used, and the rest are not
// taken. The next span has room again.
func TestFullMemoryIsSafe(t *testing.T) {
	for _, maxUsed := range []int{1, 2, 3, 1000} {
		tickets := mustTickets(t, maxUsed)
		var texts []string
		for i := range maxUsed + 10 {
			texts = append(texts, tickets.text(alice, noon.Add(time.Duration(i)*ms)))
		}
		for round := range 3 {
			for i, text := range texts {
				want := ErrFull
				switch {
				case i < maxUsed && round == 0:
					want = nil
				case i < maxUsed:
					want = ErrUsed
				}
				wantErr(t, tickets, noon.Add(time.Duration(round)*time.Second), alice, text, want)
			}
		}
		for i := 1; i <= 4; i++ {
			later := noon.Add(time.Duration(i) * span)
			wantErr(t, tickets, later, alice, tickets.text(alice, later), nil)
			wantErr(t, tickets, later, alice, tickets.text(alice, later), ErrUsed)
		}
		if n := len(tickets.used.spans[0].marks) + len(tickets.used.spans[1].marks); n > 2*maxUsed {
			t.Errorf("%d tickets are remembered as used, want at most %d", n, 2*maxUsed)
		}
	}
}

func TestReplicasKeepEachOthersPromises(t *testing.T) {
	a, b := mustTickets(t, 10), mustTickets(t, 10)
	text := a.text(alice, noon)
	if got := b.text(alice, noon); got != text {
		t.Errorf("replicas make %s and %s of one promise", text, got)
	}
	// The clock of b is 2 s behind.
	wantErr(t, b, noon.Add(-clockSkew), alice, text, nil)
	wantErr(t, a, noon, alice, b.text(alice, noon.Add(time.Second)), nil)
	restarted := mustTickets(t, 10)
	wantErr(t, restarted, noon, alice, text, nil)
	wantErr(t, restarted, noon, alice, text, ErrUsed)
}

func TestClockSetBack(t *testing.T) {
	for _, step := range []time.Duration{time.Second, 5 * time.Second, time.Minute, 3 * time.Minute} {
		t.Run(step.String(), func(t *testing.T) {
			tickets := mustTickets(t, 10_000)
			used := map[string]bool{}
			// Clients use tickets all the time; everything ever made is tried at each step.
			var made []string
			second := func(now time.Time) (accepted int) {
				for i := range 2 {
					made = append(made, tickets.text(alice, now.Add(time.Duration(i)*time.Second)))
				}
				for _, text := range made {
					if _, err := tickets.Redeem(now, alice, text); err == nil {
						if used[text] {
							t.Fatalf("%v: a ticket was taken twice", now.Sub(noon))
						}
						used[text], accepted = true, accepted+1
					}
				}
				return accepted
			}
			now := noon
			for range 150 {
				now = now.Add(time.Second)
				second(now)
			}
			now = now.Add(-step)
			if step < span { // both spans that are needed now are still there
				wantErr(t, tickets, now, bob, tickets.text(bob, now), nil)
			}
			for range int(step/time.Second) + 150 {
				now = now.Add(time.Second)
				second(now)
			}
			// It has made up what it was set back: everything is as before.
			late := tickets.text(bob, now)
			wantErr(t, tickets, now, bob, late, nil)
			wantErr(t, tickets, now, bob, late, ErrUsed)
		})
	}
}

// A clock that was years ahead for a moment does not end the use of tickets.
func TestClockThatWasWrong(t *testing.T) {
	tickets := mustTickets(t, 10)
	for _, wrong := range []time.Duration{0, span} {
		at := noon.Add(10*365*24*time.Hour + wrong)
		wantErr(t, tickets, at, alice, tickets.text(alice, at), nil)
	}
	for _, d := range []time.Duration{0, span, 2 * span} {
		now := noon.Add(d)
		text := tickets.text(alice, now)
		wantErr(t, tickets, now, alice, text, nil)
		wantErr(t, tickets, now, alice, text, ErrUsed)
	}
}

func TestConcurrentRedeem(t *testing.T) {
	const clients, tries = 200, 8
	tickets := mustTickets(t, clients)
	var accepted [clients]atomic.Int32
	var wg sync.WaitGroup
	for range tries {
		wg.Go(func() {
			dst := make([]byte, 0, TicketLen)
			for i := range clients {
				client := fmt.Appendf(nil, "client %d", i)
				due := noon.Add(time.Duration(i) * 300 * ms) // across a border
				dst = tickets.Append(dst[:0], client, due, noon)
				if _, err := tickets.Redeem(due, client, string(dst)); err == nil {
					accepted[i].Add(1)
				} else if err != ErrUsed {
					t.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range accepted {
		if n := accepted[i].Load(); n != 1 {
			t.Errorf("the ticket of client %d was taken %d times", i, n)
		}
	}
}

func TestNewTicketsErrors(t *testing.T) {
	for size, want := range map[int]string{15: "has 15 bytes; want at least 16", 0: "has 0 bytes; want at least 16"} {
		tickets, err := NewTickets(make([]byte, size), 10)
		if err == nil || tickets != nil {
			t.Fatalf("%d bytes: no error", size)
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	// The caller may wipe its secret.
	secret := append([]byte(nil), ticketSecret...)
	tickets, err := NewTickets(secret, 1)
	if err != nil {
		t.Fatal(err)
	}
	clear(secret)
	wantErr(t, mustTickets(t, 1), noon, alice, tickets.text(alice, noon), nil)
}

// FuzzRedeem brings any text, and what one client was given, as any client: only
// what Append makes for the bearer is good, at the right time, and once.
func FuzzRedeem(f *testing.F) {
	maker := mustTickets(f, 1)
	for _, client := range []string{"", "192.0.2.7", "2001:db8::/64"} {
		for _, dueIn := range []int64{0, 2_000_001, 5_000_000, -60_000_000} {
			text := maker.text([]byte(client), noon.Add(time.Duration(dueIn)*time.Microsecond))
			f.Add(text, client, client, dueIn)
			f.Add(text, client, client+"x", dueIn)
			f.Add(text[:TicketLen-1]+"A", client, client, dueIn)
			f.Add(text[:TicketLen-2]+"\r\n", client, client, dueIn)
			f.Add(text+"A", client, client, dueIn)
		}
	}
	f.Fuzz(func(t *testing.T, text, owner, bearer string, dueIn int64) {
		tickets := mustTickets(t, 2)
		taken := 0
		for range 2 {
			k, err := tickets.Redeem(noon, []byte(bearer), text)
			if err == nil || err == ErrEarly {
				if made := string(tickets.Append(nil, []byte(bearer), k.Due, k.Born)); made != text {
					t.Fatalf("%q is good for %+v; that is %q", text, k, made)
				}
			} else if k != (Ticket{}) {
				t.Fatalf("%q: %+v with %v", text, k, err)
			}
			if err == nil {
				taken++
			}
		}
		if taken > 1 {
			t.Fatalf("%q was taken %d times", text, taken)
		}

		tickets = mustTickets(t, 2)
		wait := time.Duration(dueIn%200_000_000) * time.Microsecond
		given := tickets.text([]byte(owner), noon.Add(wait))
		var want error
		switch {
		case wait < -ticketGrace || wait > maxTicketAhead:
			want = ErrExpired
		case owner != bearer:
			want = ErrForeign
		case wait > clockSkew:
			want = ErrEarly
		}
		wantErr(t, tickets, noon, []byte(bearer), given, want)
		if want == nil {
			want = ErrUsed
		}
		wantErr(t, tickets, noon, []byte(bearer), given, want)
	})
}

func TestTicketsAllocateNothing(t *testing.T) {
	tickets := mustTickets(t, 10)
	if testing.AllocsPerRun(1000, func() { tickets.macs.Put(tickets.macs.Get()) }) != 0 {
		t.Skip("needs a build without the race detector, under which a sync.Pool loses some of what it is given")
	}
	dst := make([]byte, 0, TicketLen)
	early, due := tickets.text(alice, noon.Add(10*time.Second)), tickets.text(alice, noon)
	malformed := due[:TicketLen-1] + "="
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"Append", func() { tickets.Append(dst, alice, noon, noon) }},
		{"early", func() { _, _ = tickets.Redeem(noon, alice, early) }},
		{"used", func() { _, _ = tickets.Redeem(noon, alice, due) }},
		{"foreign", func() { _, _ = tickets.Redeem(noon, bob, due) }},
		{"malformed", func() { _, _ = tickets.Redeem(noon, alice, malformed) }},
	} {
		if n := testing.AllocsPerRun(1000, c.do); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

func BenchmarkTicket(b *testing.B) {
	tickets := mustTickets(b, 1<<20)
	good := tickets.text(alice, noon)
	if _, err := tickets.Redeem(noon, alice, good); err != nil {
		b.Fatal(err)
	}
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		dst := make([]byte, 0, TicketLen)
		for b.Loop() {
			dst = tickets.Append(dst[:0], alice, noon, noon)
		}
	})
	forged := []byte(good)
	forged[TicketLen-1] ^= 1
	for _, c := range []struct {
		name   string
		now    time.Time
		client []byte
		text   string
		want   error
	}{
		{"length", noon, alice, good[1:], ErrMalformed},
		{"alphabet", noon, alice, good[:TicketLen-1] + "=", ErrMalformed},
		{"expired", noon.Add(time.Hour), alice, good, ErrExpired},
		{"forged", noon, alice, string(forged), ErrForged},
		{"foreign", noon, bob, good, ErrForeign},
		{"early", noon.Add(-5 * time.Second), alice, good, ErrEarly},
		{"used", noon, alice, good, ErrUsed},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tickets.Redeem(c.now, c.client, c.text); err != c.want {
					b.Fatal(err)
				}
			}
		})
	}
	// Each ticket is a new one; the price of making it is in the figure.
	due := noon
	b.Run("append+good", func(b *testing.B) {
		b.ReportAllocs()
		dst := make([]byte, 0, TicketLen)
		for b.Loop() {
			due = due.Add(100 * time.Microsecond)
			dst = tickets.Append(dst[:0], alice, due, noon)
			if _, err := tickets.Redeem(due, alice, unsafe.String(&dst[0], len(dst))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("forged/parallel", func(b *testing.B) {
		b.ReportAllocs()
		text := string(forged)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := tickets.Redeem(noon, alice, text); err != ErrForged {
					b.Error(err)
				}
			}
		})
	})
}
