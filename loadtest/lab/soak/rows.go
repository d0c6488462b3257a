package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A bound is on a figure of a row, in the words of the page.
type bound struct {
	figure string
	least  bool // else the most
	limit  float64
	unit   string
}

func (b bound) String() string {
	sign := "≤"
	if b.least {
		sign = "≥"
	} else if b.limit == 0 {
		sign = "="
	}
	return fmt.Sprintf("%s %s %.4g%s", b.figure, sign, b.limit, b.unit)
}

func (b bound) holds(value float64) bool {
	return b.least && value >= b.limit || !b.least && value <= b.limit
}

// worse returns the one of two values that is closer to the limit.
func (b bound) worse(x, y float64) float64 {
	if b.least {
		return min(x, y)
	}
	return max(x, y)
}

// The figures of a row.
const (
	servedShare = "served, of the capacity"       // the most is 100%
	afterwards  = "served a second after"         // from then on, of the capacity
	admitted    = "at the backend, of its limit"  // burst + rate × time
	prompt      = "90% of answers within"         // of clients over HTTP/2, which are not held back
	noAnswer    = "requests without an answer"    // within patience
	otherErrors = "answers 500, 502, 504"         // or of any status but 2xx, 429 and 503
	cutOff      = "broken connections"            // requests whose connection was refused, reset or closed
	cutOffElse  = "the other's broken ones"       // of the replica that was not killed
	reloadsLost = "reloads that fail"             //
	linesAfter  = "in the log afterwards"         // of one request
	known       = "appointments known"            // to the process that was started again, of those that the killed one has given
	blocksLeft  = "blocks kept"                   //
	whole       = "uploads and streams served"    //
	permits     = "permits in use when all ended" //
	atBackend   = "requests left at the backend"  //
	unaccounted = "requests not counted alike"    // by clients, shield and the backend
	heapGrowth  = "growth of the heap"            //
	rssGrowth   = "growth of the process"         //
	moreGo      = "more goroutines"               //
	moreFiles   = "more open files"               //
)

func most(figure string, limit float64, unit string) bound  { return bound{figure, false, limit, unit} }
func least(figure string, limit float64, unit string) bound { return bound{figure, true, limit, unit} }

// A row is a fault, and what users get while it lasts.
type row struct {
	fault, done string
	usual       bool // it is no business of users: the bounds of usual hold, too
	own         []bound
	play        func(w *world) (map[string]float64, error) // nil: it is measured at the end of the run
}

// usual are the bounds without a fault. Half of the limit is what a replica has without the store, and no answer waits for
// a store for as long as an exchange with one may take, which is 250 ms.
var usual = []bound{
	least(servedShare, 60, "%"), most(admitted, 105, "%"), most(prompt, 200, " ms"),
	most(noAnswer, 0, ""), most(otherErrors, 0, ""), most(cutOff, 10, ""),
}

func (r row) bounds() []bound {
	if r.usual {
		return append(usual[:len(usual):len(usual)], r.own...)
	}
	return r.own
}

// again is the bound of what is over soon.
var again = least(afterwards, 70, "%")

var rows = []row{
	{"none", "1.2 times what the backend takes, for 4 s", true, nil, func(w *world) (map[string]float64, error) {
		return w.during(4*time.Second, nothing, nothing)
	}},
	{"reload", "three times in 3 s; and each 10 s in all other rows", true, []bound{most(reloadsLost, 0, "")}, func(w *world) (map[string]float64, error) {
		f, err := w.during(3*time.Second, nothing, func() error {
			for range 3 {
				if err := w.reload(); err != nil {
					return err
				}
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		})
		if err == nil {
			f[reloadsLost] = float64(w.reloadsFailed.Load())
		}
		return f, err
	}},
	{"the backend is restarted", "for 1 s nothing listens, and what was in it is broken off", false, []bound{
		most(admitted, 105, "%"), most(noAnswer, 0, ""), most(otherErrors, 200, ""), most(cutOff, 5, ""), again,
	}, func(w *world) (map[string]float64, error) {
		return w.during(time.Second, func() error { w.backend.stop(); return nil }, func() error { return w.backend.start(w.ctx) })
	}},
	{"the store dies", "kill -9 of redis-server, which comes back empty", true, []bound{again}, func(w *world) (map[string]float64, error) {
		return w.during(pause, func() error { err := w.store.cmd.Process.Kill(); w.store.stop(); return err }, func() error { return w.store.start(w.ctx) })
	}},
	{"the store is frozen", "it takes connections, and answers nothing", true, []bound{again}, func(w *world) (map[string]float64, error) {
		signal := func(s os.Signal) func() error { return func() error { return w.store.cmd.Process.Signal(s) } }
		return w.during(pause, signal(syscall.SIGSTOP), signal(syscall.SIGCONT))
	}},
	{"the store is late", "each answer by 200 ms", true, []bound{again}, func(w *world) (map[string]float64, error) { return w.damaged(late) }},
	{"the store answers garbage", "random bytes, lengths of 2 GB, answers of other types", true, []bound{again}, func(w *world) (map[string]float64, error) {
		return w.damaged(garbage)
	}},
	{"the store lies", "each fourth digit of its answers is another one", false, []bound{
		least(servedShare, 10, "%"), most(admitted, 105, "%"), most(prompt, 200, " ms"), most(noAnswer, 0, ""), most(otherErrors, 0, ""), again,
	}, func(w *world) (map[string]float64, error) { return w.damaged(lie) }},
	{"clocks are set forward", "by an hour, that of one replica and that of the store", true, []bound{again}, func(w *world) (map[string]float64, error) {
		return w.during(pause, func() error { return w.setClocks(time.Hour) }, nothing)
	}},
	{"clocks are set back", "by an hour", true, []bound{again}, func(w *world) (map[string]float64, error) {
		return w.during(pause, func() error { return w.setClocks(0) }, nothing)
	}},
	{"the disk is full", "of the access log, and of what Caddy keeps; with a reload", true, []bound{most(reloadsLost, 0, ""), least(linesAfter, 1, "")}, func(w *world) (map[string]float64, error) {
		filler, log := w.a.proc("root"+w.a.disk()+"/filler"), w.a.proc("root"+w.a.disk()+"/access.log")
		f, err := w.during(pause, func() error { fill(filler); return w.reload() }, func() error { return os.Remove(filler) })
		if err != nil {
			return nil, err
		}
		page := fmt.Sprintf("/page-%d", time.Now().UnixNano())
		var lines []byte
		for range 50 { // a line is written after the response, and fast rejections have none
			resp, err := http.Get("http://" + w.a.address + page)
			if err != nil {
				return nil, err
			}
			resp.Body.Close()
			w.crowds[0].count(outcomeOf(resp.StatusCode))
			time.Sleep(100 * time.Millisecond)
			if lines, err = os.ReadFile(log); err != nil {
				return nil, err
			}
			if strings.Contains(string(lines), page) {
				break
			}
		}
		f[linesAfter], f[reloadsLost] = float64(strings.Count(string(lines), page)), float64(w.reloadsFailed.Load())
		return f, err
	}},
	{"descriptors are used up", "100 idle connections to a replica that may open 10 files more", false, []bound{
		most(admitted, 105, "%"), most(noAnswer, 0, ""), most(otherErrors, 50, ""), again,
	}, func(w *world) (map[string]float64, error) {
		var idle []net.Conn
		limit := func(n string) error {
			return exec.Command("prlimit", "--pid", fmt.Sprint(w.a.cmd.Process.Pid), "--nofile="+n+":").Run()
		}
		w.noFiles.Store(true)
		defer w.noFiles.Store(false) // more than a second after the end
		return w.during(pause, func() error {
			if err := limit(fmt.Sprint(int(w.a.files()) + 10)); err != nil {
				return err
			}
			for range 100 {
				conn, err := net.Dial("tcp", w.a.address)
				if err != nil {
					return err
				}
				idle = append(idle, conn)
			}
			return nil
		}, func() error {
			for _, conn := range idle {
				conn.Close()
			}
			return limit("1024")
		})
	}},
	{"a replica dies", "kill -9, and it is started again 2 s later", false, []bound{
		least(servedShare, 35, "%"), most(admitted, 105, "%"), most(noAnswer, 0, ""), most(cutOffElse, 5, ""), least(known, 90, "%"), most(blocksLeft, 0, ""),
	}, func(w *world) (f map[string]float64, err error) {
		if _, err := w.b.ask("POST", "/shield/overrides", "application/json", `{"kind":"block","client":"10.7.0.1","for":"1h"}`); err != nil {
			return nil, err
		}
		if status, err := w.b.ask("GET", "/shield/", "", ""); err != nil || !strings.Contains(status, "10.7.0.1") {
			return nil, fmt.Errorf("no block is in force: %w", err)
		}
		waiting, err := makeWait(w.b, 40)
		if err != nil {
			return nil, err
		}
		time.Sleep(200 * time.Millisecond) // the other does not know those of the last 100 ms
		if f, err = w.during(pause, func() error { err := w.b.cmd.Process.Kill(); w.b.stop(); return err }, func() error { return w.b.start(w.ctx) }); err != nil {
			return nil, err
		}
		for _, client := range append(waiting, "10.7.0.2") { // who has not been there
			said, err := w.b.ask("GET", "/shield/explain?client="+client, "", "")
			if err != nil {
				return nil, err
			}
			if isNew := strings.Contains(said, `"standing":"new"`); !isNew && client == "10.7.0.2" {
				return nil, fmt.Errorf("a client that has never come is known: %s", said)
			} else if !isNew {
				f[known] += 100 / float64(len(waiting))
			}
		}
		status, err := w.b.ask("GET", "/shield/", "", "")
		f[blocksLeft] = float64(strings.Count(status, "10.7.0.1"))
		return f, err
	}},
	{fault: "clients hang up, or are slow", done: "within 250 ms, uploads of 32 KiB in 0.8 s, streams of events of 2 s; in all rows", own: []bound{
		least(whole, 10, ""), most(permits, 0, ""), most(atBackend, 0, ""), most(noAnswer, 0, ""),
	}},
	{fault: "all of them", done: "one after the other, under load: what is left at the end", own: []bound{
		most(unaccounted, 0, ""), most(heapGrowth, 4, " MiB"), most(rssGrowth, 64, " MiB"), most(moreGo, 200, ""), most(moreFiles, 120, ""),
	}},
}

// pause is how long a fault lasts, of those that have no time of their own.
const pause = 2 * time.Second

func nothing() error { return nil }

// setClocks sets the clocks of replica a and of the store, and fails if nothing shows that.
func (w *world) setClocks(ahead time.Duration) error {
	w.store.ahead.Store(int64(ahead))
	if err := w.a.setClock(ahead); err != nil {
		return err
	}
	resp, err := http.Get("http://" + w.a.admin + "/config/")
	if err != nil {
		return err
	}
	resp.Body.Close()
	shown, err := http.ParseTime(resp.Header.Get("Date"))
	if off := time.Until(shown) - ahead; err == nil && off.Abs() > time.Minute {
		err = fmt.Errorf("the clock is off by %v", off)
	}
	return err
}

// fill fills a file system.
func fill(file string) {
	f, err := os.Create(file)
	for part := make([]byte, 4<<10); err == nil; {
		_, err = f.Write(part)
	}
	f.Close()
}

// damaged plays a fault of the store's answers.
func (w *world) damaged(damage func([]byte) []byte) (map[string]float64, error) {
	return w.during(pause, func() error { w.store.damage.Store(&damage); return nil }, func() error { w.store.damage.Store(nil); return nil })
}

// during begins a fault, ends it after a time, and returns what users got meanwhile, and afterwards.
func (w *world) during(d time.Duration, begin, end func() error) (map[string]float64, error) {
	from := w.look()
	if err := begin(); err != nil {
		return nil, err
	}
	if !sleep(w.ctx, d) {
		return nil, context.Cause(w.ctx)
	}
	if err := end(); err != nil {
		return nil, err
	}
	to := w.look()
	time.Sleep(time.Second)
	second := w.look()
	time.Sleep(1300 * time.Millisecond)
	f, after := w.figures(from, to), w.figures(second, w.look())
	f[afterwards] = after[servedShare]
	rest := w.figures(to, second)
	for _, figure := range []string{noAnswer, otherErrors, cutOff, cutOffElse} { // that a fault has effects later counts, too
		f[figure] += rest[figure] + after[figure]
	}
	return f, nil
}
