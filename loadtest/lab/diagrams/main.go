// Command diagrams draws the diagrams of the docs: what is in them is said here, in pixels.
//
//	go -C loadtest/lab run ./diagrams ../../docs
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// diagrams are the files, in the folder of the docs.
var diagrams = map[string]func() *diagram{
	"explain/architecture-parts.svg":   parts,
	"explain/architecture-request.svg": request,
	"explain/one-rejected-client.svg":  rejected,
	"explain/where-it-sits.svg":        sits,
	"guides/choose-a-limit.svg":        choose,
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: diagrams FOLDER")
		os.Exit(2)
	}
	for file, draw := range diagrams {
		if err := os.WriteFile(filepath.Join(os.Args[1], file), draw().svg(), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "diagrams:", err)
			os.Exit(1)
		}
	}
}

// parts shows the Guard and what it asks.
func parts() *diagram {
	d := newDiagram(760, 430, "Guard and its three parts",
		"Guard asks limiter, loadshed and pushback in turn. The three never call each other; a handful of values crosses through Guard.")
	d.box("leaf", 280, 20, 200, 56, "*Guard", "-asks in turn, decides once")
	for _, p := range []struct {
		x                 float64
		name, does        string
		lines             [3]string
		path              string
		labelX, labelY    float64
		anchor, exchanged string
	}{
		{20, "limiter", "who gets how much", [3]string{"zones: a bucket per client", "capacity: one bucket", "GCRA, one instant a key"},
			"M280 48H130V146", 140, 66, "start", "tokens, wait"},
		{270, "loadshed", "how much is in flight", [3]string{"fixed or adaptive limit", "queue, classes, retry budget", "pause, abandoned requests"},
			"M380 76V146", 388, 118, "start", "permit, measured rate"},
		{520, "pushback", "who returns when", [3]string{"line of free slots", "appointments, tickets", "herds, responses"},
			"M480 48H630V146", 622, 66, "end", "visit, appointment"},
	} {
		d.box("group", p.x, 150, 220, 170)
		d.text(p.x+110, 176, "middle", "*"+p.name)
		d.text(p.x+110, 197, "middle", "-"+p.does)
		for i, line := range p.lines {
			d.text(p.x+110, 232+26*float64(i), "middle", line)
		}
		d.arrow(p.path)
		d.text(p.labelX, p.labelY, p.anchor, "-"+p.exchanged)
	}
	d.text(380, 350, "middle", "The three never call each other. Each owns its state; no other package writes it.")
	d.box("box", 20, 372, 720, 42, "-No clock, no HTTP, no Caddy: old state, now, request and a random number in; state and decision out.")
	return d
}

// request shows what happens to a request.
func request() *diagram {
	d := newDiagram(760, 672, "What happens to a request",
		"A request goes through the listener and Caddy to shield, which checks blocks, appointments, zones, pause, retry budget, capacity and concurrency, "+
			"in this order. If all allow it, it goes to the backend; otherwise shield rejects it with a Retry-After of its own.")
	d.box("box", 40, 20, 200, 44, "client")
	d.arrow("M140 64V92")
	d.box("box", 40, 96, 200, 50, "*fast reject", "-repeats recent rejections")
	d.arrow("M140 146V174")
	d.box("box", 40, 178, 200, 44, "Caddy: TLS, routing")
	d.arrow("M140 222V250")
	d.box("group", 20, 254, 500, 330)
	d.text(32, 274, "start", "-*shield checks all limits before charging any")
	for i, check := range [][2]string{
		{"blocks", "you blocked the client"},
		{"appointments", "the client is early"},
		{"zones", "the client's quota is used up"},
		{"pause", "the backend asked for a pause"},
		{"retry budget", "there are too many retries"},
		{"capacity", "the backend's rate is used up"},
		{"concurrency", "too many requests in flight: queue first"},
	} {
		y := 284 + 41*float64(i)
		d.box("box", 36, y, 468, 34)
		d.text(48, y+22, "start", fmt.Sprintf("-%d", i+1))
		d.text(66, y+22, "start", "*"+check[0])
		d.text(186, y+22, "start", "-"+check[1])
		d.line(fmt.Sprintf("M504 %gH548", y+17))
	}
	d.line("M548 301V547")
	d.arrow("M548 424H572")
	d.box("bad", 576, 372, 164, 104, "*rejection", "-its own Retry-After,", "-delayed by up to 1 s,", "-429 or 503")
	d.arrow("M658 372V42H244")
	d.text(650, 34, "end", "-retries at its appointment")
	d.arrow("M140 584V612")
	d.text(150, 604, "start", "-admitted")
	d.box("box", 40, 616, 200, 36, "backend")
	d.arrow("M240 634H300")
	d.box("box", 304, 612, 436, 44, "-outcome: status, latency, Retry-After of the backend")
	d.back("M520 612V590")
	d.text(530, 604, "start", "-adjusts the limits")
	return d
}

// choose is a decision tree.
func choose() *diagram {
	d := newDiagram(760, 590, "Which limit do I need?",
		"A decision tree. For single clients: zone for a rate, per for requests in flight. For the backend: capacity, a fixed concurrency, slo or adaptive.")
	d.box("box", 255, 20, 250, 46, "What do you want to limit?")
	d.arrow("M255 43H130V100")
	d.text(138, 62, "start", "-single clients")
	d.box("box", 20, 104, 220, 62, "Too many requests over time,", "or too many concurrently?")
	d.arrow("M75 166V236")
	d.text(82, 205, "start", "-over time")
	d.arrow("M185 166V326")
	d.text(192, 205, "start", "-concurrently")
	d.box("leaf", 20, 240, 110, 66, "`zone", "-429")
	d.box("leaf", 20, 330, 220, 66, "`concurrency { per }", "-429")
	d.arrow("M505 43H600V100")
	d.text(592, 62, "end", "-the backend")
	for i, q := range []struct{ one, two, limit, status string }{
		{"Can it serve a known number", "of requests per second?", "capacity", "503 · plus adaptive"},
		{"Does it have a fixed number of workers,", "and are all requests alike?", "concurrency 64", "503"},
		{"Must 95% of requests finish", "within a known time?", "concurrency slo", "200ms · 503"},
	} {
		y := 104 + 116*float64(i)
		d.box("box", 440, y, 300, 62, q.one, q.two)
		d.arrow(fmt.Sprintf("M440 %gH404", y+31))
		d.text(434, y+24, "end", "-yes")
		d.text(598, y+94, "start", "-no")
		d.arrow(fmt.Sprintf("M590 %gV%g", y+62, y+112))
		d.box("leaf", 262, y+2, 138, 58, "`"+q.limit, "-"+q.status)
	}
	d.box("leaf", 440, 452, 300, 58, "`concurrency adaptive", "-503 · shield finds the number")
	d.text(20, 550, "start", "Most sites want one limit from each side.")
	d.text(20, 572, "start", "-If you are unsure, take “no”. In observe mode, limits count requests but don't reject any.")
	return d
}

// rejected is the sequence of one client that is rejected once.
func rejected() *diagram {
	const client, guard, backend = 190., 440., 670. // where their lines are
	d := newDiagram(760, 424, "One rejected client",
		"A client sends a request while shield is at its limit. shield reserves the slot at 6.42 s, holds the rejection back for 0.42 s, and sends 503 with "+
			"Retry-After: 6. The client sleeps for 6 s, retries in its slot, and shield forwards the request to the backend, which responds with 200.")
	for _, l := range []struct {
		x     float64
		class string
		name  string
	}{{client, "box", "client"}, {guard, "leaf", "*shield"}, {backend, "box", "backend"}} {
		d.dashed(fmt.Sprintf("M%g 56V366", l.x))
		d.box(l.class, l.x-60, 18, 120, 38, l.name)
	}
	d.text(20, 95, "start", "`0.00 s")
	d.message(client, guard, 90, "`GET /")
	d.box("bad", guard-6, 90, 12, 50)
	d.text(guard+18, 104, "start", "-at the limit: reserves the")
	d.text(guard+18, 121, "start", "-slot at 6.42 s, then waits")
	d.text(20, 145, "start", "`0.42 s")
	d.message(guard, client, 140, "`503 · Retry-After: 6")
	d.box("group", client-6, 140, 12, 116)
	d.text(client+18, 203, "start", "-sleeps for 6 s")
	d.text(20, 261, "start", "`6.42 s")
	d.message(client, guard, 256, "`GET /")
	d.box("leaf", guard-6, 256, 12, 82)
	d.text(guard+18, 247, "start", "-in its slot: admitted")
	d.message(guard, backend, 276, "")
	d.box("box", backend-6, 276, 12, 42)
	d.message(backend, guard, 318, "")
	d.text(20, 343, "start", "`6.50 s")
	d.message(guard, client, 338, "`200 OK")
	d.text(20, 402, "start", "-Retry-After counts whole seconds, so shield delays the rejection: 0.42 s + 6 s is the slot at 6.42 s.")
	return d
}

// sits shows what is around shield, and the forms it has.
func sits() *diagram {
	d := newDiagram(760, 452, "Where shield sits",
		"Clients reach one or more shields through a load balancer, and each shield forwards what it admits to the backend. Replicas share limits through "+
			"Redis or Valkey. shield is a Caddy plugin, a standalone program, an ingress controller for Kubernetes, or a Go package.")
	d.box("box", 20, 62, 96, 60, "clients")
	d.arrow("M116 92H158")
	d.box("box", 162, 62, 130, 60, "load balancer", "-or CDN, if any")
	d.box("group", 346, 20, 168, 170)
	for _, y := range []float64{34, 74, 114} {
		d.arrow(fmt.Sprintf("M292 92H320V%gH358", y+16))
		d.box("leaf", 362, y, 136, 32, "*shield")
		d.line(fmt.Sprintf("M498 %gH552", y+16))
	}
	d.text(430, 178, "middle", "-1 or more replicas")
	d.line("M552 50V130")
	d.arrow("M552 92H596")
	d.box("box", 600, 62, 140, 60, "*backend", "-app, API, model")
	d.both("M430 190V228")
	d.box("box", 346, 232, 168, 48, "Redis or Valkey", "-optional: shared limits")
	d.back("M606 126V160H524")
	d.text(614, 152, "start", "-status, latency")
	d.text(20, 322, "start", "*Run it as")
	for i, c := range [][3]string{
		{"*Caddy plugin", "-in your Caddyfile, in", "-front of reverse_proxy"},
		{"*standalone program", "-shield proxy: a reverse", "-proxy or a sidecar"},
		{"*ingress controller", "-Kubernetes; replicas", "-divide the limits"},
		{"*Go package", "-http.Handler and", "-gRPC interceptors"},
	} {
		d.box("leaf", 20+183*float64(i), 338, 171, 90, c[:]...)
	}
	return d
}
