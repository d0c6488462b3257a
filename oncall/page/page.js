
// The page for a person on call. It follows the endpoint live, which sends the last ten
// minutes once, and then each second. All text is set as text, never as HTML.
const On = (() => {
  const $ = id => document.getElementById(id);
  const KEEP = 600, COLORS = { quota: 5, capacity: 1, concurrency: 3, early: 8, per_client: 7, retry_budget: 6, pause: 0, blocked: 4 };
  const WORDS = { quota: "client's quota", per_client: "client's in-flight limit", retry_budget: "retry budget", early: "retried early" };
  let boot = "", base = 0; // of the process; the Unix time of its second 0
  let seconds = new Map(), events = [], limits = []; // of the shield that is shown: by Unix time
  let last = null, shown = "", span = 600, heard = 0, since = 0, stop = null, figures = {}, listeners = [];

  // make returns a new element with this class and text.
  function make(tag, name, text) {
    const e = document.createElement(tag);
    if (name) e.className = name;
    if (text !== undefined) e.textContent = text;
    return e;
  }
  // write sets a text if it is another: a selection survives.
  function write(e, text) { if (e.textContent !== text) e.textContent = text }

  function amount(v) { return v == null ? "–" : (v >= 10 ? Math.round(v) : Math.round(10 * v) / 10).toLocaleString("en") }
  function long(s) { return s < 120 ? `${Math.ceil(s)} s` : `${Math.floor(Math.ceil(s) / 60)} min ${Math.ceil(s) % 60} s` }
  function clock(t) { return new Date(1000 * t).toLocaleTimeString("en-GB") }
  function sum(object) { return Object.values(object || {}).reduce((a, b) => a + b, 0) }
  const chosen = () => { try { return decodeURIComponent(location.hash.slice(1)) } catch { return "" } };
  const current = () => last && last.shields.find(s => s.name === shown);
  const samples = () => last && last.samples[shown];
  const limit = s => s.search ? s.search.by : s.concurrency ? "fixed" : "";

  // take keeps what the endpoint has said.
  function take(said) {
    const offset = Math.round(said.now / 1000) - said.seq;
    if (said.boot !== boot || Math.abs(offset - base) > 1) base = offset; // seconds do not jump to and fro
    if (boot && said.boot !== boot) note({ t: base + said.seq, id: 0, level: "bad", text: "the process restarted, so its counts start again" });
    boot = said.boot;
    since = said.seq;
    last = said;
    const now = samples();
    if (!now) return;
    const { from, count, columns, missing = [] } = now, gone = new Set();
    for (const [at, n] of missing) for (let i = 0; i < n; i++) gone.add(at + i);
    for (let i = 0; i < count; i++) {
      if (gone.has(i)) continue;
      const row = {};
      for (const name in columns) row[name] = columns[name][i];
      seconds.set(base + from + i, row);
    }
    for (const t of seconds.keys()) if (t <= base + since - KEEP) seconds.delete(t);
    for (const e of now.events || []) note({ ...e, boot, t: base + e.seq });
    for (const e of now.limits || []) if (!limits.some(o => o.id === e.id && o.boot === boot)) limits.push({ ...e, boot, t: base + e.seq });
    events = events.slice(-64);
    limits = limits.slice(-64);
  }
  function note(e) { if (!e.id || !events.some(o => o.id === e.id && o.boot === e.boot)) events.push(e) }

  // follow asks, and asks again when the response has ended. A page that is not seen does not ask.
  async function follow() {
    for (;;) {
      let again = 1000;
      try {
        if (document.hidden) { await new Promise(done => document.addEventListener("visibilitychange", done, { once: true })); continue }
        const mine = stop = new AbortController();
        mine.signal.addEventListener("abort", () => again = 0);
        if (!shown) await choose();
        const url = `live?follow=1&all=1&shield=${encodeURIComponent(shown)}&since=${since}&boot=${boot}`;
        const answer = await fetch(shown ? url : "live", { signal: stop.signal, cache: "no-store" });
        if (answer.status === 404) { forget(); shown = ""; throw new Error("no such shield") }
        if (!answer.ok) throw new Error(answer.status);
        await each(answer.body, line => {
          if (mine.signal.aborted) return; // it is about another shield
          heard = Date.now();
          take(JSON.parse(line));
          draw();
        });
      } catch { /* what is wrong is shown by how long nothing was heard */ }
      await new Promise(done => setTimeout(done, again));
    }
  }
  // choose picks the shield in the address, or the one that matters most.
  async function choose() {
    const { shields } = await (await fetch("live?since=9007199254740991", { signal: stop.signal, cache: "no-store" })).json();
    const weight = s => ["good", "warn", "bad"].indexOf(s.level);
    const most = shields.reduce((a, b) => a && weight(a) >= weight(b) ? a : b, null);
    shown = (shields.find(s => s.name === chosen()) || most || { name: "" }).name;
  }
  async function each(body, use) {
    let rest = "";
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach(use);
    }
  }
  function forget() {
    seconds = new Map(); events = []; limits = []; since = 0; last = null;
  }
  function show(name) {
    if (name === shown) return;
    forget();
    shown = name;
    if (stop) stop.abort();
  }

  // look says how long nothing was heard.
  function look() {
    const quiet = heard ? (Date.now() - heard) / 1000 : 0, lost = quiet > 3.5;
    if (quiet > 6 && stop) stop.abort(); // a response that hangs
    const state = lost ? "disconnected" : last ? "live" : "connecting";
    write($("live"), state);
    $("live").className = "pill " + (lost ? "off" : last ? "on" : "");
    document.body.classList.toggle("stale", lost);
    $("lost").hidden = !lost;
    if (lost) write($("lost"), `Disconnected since ${clock(heard / 1000)}, so the data below is that old. Retrying every second.`);
  }

  // column returns the values of the seconds that are shown; null where there is none.
  function column(name, by = 1) {
    const end = base + since, values = [];
    for (let t = end - span + 1; t <= end; t++) {
      const row = seconds.get(t);
      values.push(row ? (row[name] || 0) * by : null);
    }
    return values;
  }
  const most = lists => Math.max(0, ...lists.flat());
  const total = lists => lists[0].map((_, i) => lists.reduce((sum, list) => sum + (list[i] || 0), 0));

  // figure draws a card with one chart. Each of curves has a name, a kind, a color and values.
  function figure(id, title, unit, curves, text, more = {}) {
    const end = base + since, top = more.stacked ? most([total(curves.filter(c => c.kind === "area").map(c => c.values))]) : 0;
    const lines = most(curves.filter(c => !more.stacked || c.kind !== "area").map(c => c.values.length === 1 && c.values[0] > 3 * top && top ? [] : c.values));
    const next = {
      title, x: { label: "", unit: "", clock: true, min: end - span + 1, max: end + 1 },
      y: { label: "", unit, min: 0, max: 1.12 * Math.max(more.least || 1, top, lines) },
      series: curves, spans: gaps(), high: more.high || 150, stacked: more.stacked,
      charts: [{ name: title, text, start: end - span + 1, step: 1, values: curves.map(c => c.values) }],
    };
    if (figures[id]) figures[id](next); else figures[id] = Chart($(id), next);
  }
  // gaps are the seconds without a sample, after the first that there is.
  function gaps() {
    const list = [], end = base + since, first = Math.min(...seconds.keys(), end);
    for (let t = Math.max(first, end - span + 1); t <= end; t++) {
      if (seconds.has(t)) continue;
      if (list.length && list.at(-1).to === t) list.at(-1).to++; else list.push({ from: t, to: t + 1 });
    }
    return list;
  }

  function flow(s) {
    const admitted = column("admitted"), curves = [{ name: "admitted", kind: "area", color: 2, values: admitted }];
    const observe = s.mode === "observe";
    for (const reason in COLORS) {
      const values = column((observe ? "observed." : "rejected.") + reason);
      if (most([values]) > 0) curves.push({ name: `${observe ? "would be rejected" : "rejected"}: ${WORDS[reason] || reason}`, kind: "area", color: COLORS[reason], values });
    }
    const per = { "1s": 1, "1m0s": 60, "1h0m0s": 3600 }[s.capacity && s.capacity.per];
    if (per) curves.push({ name: `capacity ${amount(s.capacity.rate / per)}/s`, kind: "level", color: 0, values: [s.capacity.rate / per] });
    const l = s.lately, rejected = sum(observe ? l.observed : l.rejected);
    figure("flow", "Requests per second", "/s", curves, `now ${amount(l.arrivals)}/s arriving, ${amount(l.arrivals - rejected)}/s admitted, ${amount(rejected)}/s ${observe ? "that would be " : ""}rejected`, { stacked: true, high: 250 });
  }

  function charts(s) {
    flow(s);
    const wait = s.waiting;
    const latest = limits.slice(-3), tall = limit(s) && latest.length ? 150 + 27 * latest.length : 150; // as high as the card beside it
    figure("backlog", "Backlog", " s", [{ name: "time until the last appointment", kind: "area", color: 1, values: column("backlog_ms", 0.001) }],
      wait ? `about ${amount(wait.clients)} clients will return, ${wait.over_seconds < 0 ? "with no end in sight" : `the last at ${clock(base + since + wait.over_seconds)}`}` : "no rejected client is waiting to return", { high: tall });
    $("place-card").hidden = !limit(s) && !most([column("in_flight")]);
    if (!$("place-card").hidden) {
      const curves = [{ name: "in flight", kind: "area", color: 2, values: column("in_flight") }];
      if (limit(s)) curves.push({ name: `limit (${limit(s)})`, kind: "level", color: 0, values: column("limit").map(v => v || null) });
      figure("places", "In flight and limit", "", curves, limits.length ? "latest changes below" : s.search ? "the limit has not changed" : "");
    }
    notes($("limits"), latest);
    figure("appointments", "Appointments per second", "/s", [
      { name: "kept", kind: "area", color: 4, values: column("kept") }, { name: "missed by the client", kind: "area", color: 8, values: column("no_show") },
      { name: "broken by shield", kind: "area", color: 3, values: column("broken") }], promised(), { stacked: true });
    $("queue").hidden = !s.queue || !limit(s);
    if (!$("queue").hidden) {
      figure("queue", "Queue", "", [{ name: "requests waiting for a permit", kind: "area", color: 3, values: column("queue") }, { name: `size: ${s.queue.size}`, kind: "level", color: 0, values: [s.queue.size] }], "");
    }
  }
  function kept() {
    const of = name => column(name).reduce((a, b) => a + b, 0), kept = of("kept"), missed = of("no_show"), broken = of("broken");
    return { share: kept + missed ? kept / (kept + missed) : null, kept, missed, broken };
  }
  function promised() {
    const k = kept();
    return k.share === null ? "no appointments were due" : `${amount(k.kept)} kept, ${amount(k.missed)} missed by the client, ${amount(k.broken)} broken by shield`;
  }

  function tiles(s) {
    const l = s.lately, row = seconds.get(base + since) || {}, rejected = sum(s.mode === "observe" ? l.observed : l.rejected), k = kept(), list = [
      ["Arrivals", amount(l.arrivals), "/s", `mean of ${last.mean_seconds} s`],
      ["Admitted", amount(l.arrivals - rejected), "/s", s.capacity ? `capacity ${s.capacity.rate}/${{ "1s": "s", "1m0s": "min", "1h0m0s": "h" }[s.capacity.per] || s.capacity.per}` : "no capacity set"],
      [s.mode === "observe" ? "Would reject" : "Rejected", amount(rejected), "/s", l.arrivals ? `${Math.round(100 * rejected / l.arrivals)}% of arrivals` : ""],
      ["Backlog", s.waiting ? s.waiting.over_seconds < 0 ? "∞" : long(s.waiting.over_seconds) : "0 s", "", s.waiting ? `about ${amount(s.waiting.clients)} clients` + (row.deferred ? `, ${amount(row.deferred)} deferred` : "") : "none"],
    ];
    if (limit(s) || row.in_flight) list.push(["In flight", amount(row.in_flight || 0), limit(s) ? ` of ${amount(row.limit || 0)}` : "", s.paused_seconds ? `paused for another ${long(s.paused_seconds)}` : limit(s) ? `limit: ${limit(s)}` : ""]);
    if (s.queue && limit(s)) list.push(["Queue", amount(row.queue || 0), ` of ${s.queue.size}`, ""]);
    list.push(["Appointments kept", k.share === null ? "–" : Math.round(100 * k.share), k.share === null ? "" : "%", k.broken ? `${amount(k.broken)} broken by shield` : "none broken by shield"]);
    if (s.herd) list.push(["Herd", amount(s.herd.size), s.herd.kind === "backlog" ? " clients" : " requests", s.herd.period ? `${s.herd.kind}, every ${s.herd.period} s` : "arrived together"]);
    if (s.sharing) list.push(["Replicas", amount(s.sharing.replicas), "", s.sharing.alone ? "alone: the store is down" : "sharing the limits"]);
    const host = $("tiles");
    while (host.childElementCount > list.length) host.lastChild.remove();
    list.forEach(([name, value, unit, more], i) => {
      let e = host.children[i];
      if (!e) {
        e = make("div");
        const dd = make("dd"), v = make("div", "value");
        v.append(make("span"), make("small"));
        dd.append(v, make("div", "more"));
        e.append(make("dt"), dd);
        host.append(e);
      }
      write(e.querySelector("dt"), name);
      write(e.querySelector("span"), String(value));
      write(e.querySelector("small"), unit);
      write(e.querySelector(".more"), more);
    });
  }

  // notes lists notes, the latest first.
  function notes(host, list) {
    host.hidden = !list.length;
    const key = list.map(e => `${e.boot}${e.id}${e.t}`).join();
    if (host.dataset.key === key) return;
    host.dataset.key = key;
    host.replaceChildren(...[...list].reverse().map(e => {
      const li = make("li"), at = make("time", "", clock(e.t));
      at.dateTime = new Date(1000 * e.t).toISOString();
      li.append(at, make("span", "dot " + (e.level || "")), make("span", "", e.text));
      return li;
    }));
  }

  function classes(s) {
    $("classes").hidden = !s.classes;
    const busy = c => most([column(`class.${c.name}.admitted`), column(`class.${c.name}.rejected`)]) > 0;
    $("class-list").replaceChildren(...(s.classes || []).filter(c => c.name !== "unpaid" || busy(c)).map(c => {
      const mean = kind => column(`class.${c.name}.${kind}`).slice(-10).reduce((a, b) => a + b, 0) / 10;
      const admitted = mean("admitted"), all = admitted + mean("rejected"), li = make("li"), track = make("span", all ? "track busy" : "track"), bar = make("i", "c2");
      bar.style.width = `${all ? 100 * admitted / all : 0}%`;
      track.append(bar);
      track.setAttribute("aria-hidden", "true");
      li.append(make("span", "", c.name), track, make("span", "dim", `${amount(admitted)} of ${amount(all)}/s`));
      return li;
    }));
  }

  function shields() {
    const nav = $("shields"), list = last.shields;
    if (nav.childElementCount !== list.length || list.some((s, i) => nav.children[i].lastChild.textContent !== s.name)) {
      nav.replaceChildren(...list.map(s => {
        const a = make("a");
        a.href = "#" + encodeURIComponent(s.name);
        a.append(make("span", "dot"), make("span", "", s.name));
        return a;
      }));
    }
    list.forEach((s, i) => {
      const a = nav.children[i];
      a.firstChild.className = "dot " + s.level;
      a.title = s.says;
      if (s.name === shown) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
    });
  }

  function draw() {
    if (!last) return;
    look();
    write($("host"), last.host);
    shields();
    const lost = last.store && !last.store.up;
    $("store").hidden = !lost;
    if (lost) write($("store"), `The store at ${last.store.address} hasn't responded for ${long(last.store.for_seconds)}, so this replica enforces only its own part of all limits.`);
    const s = current();
    $("body").hidden = !s || !samples();
    const says = s ? s.says : "The running config has no shield.";
    if ($("says").textContent !== says || $("says").dataset.level !== (s ? s.level : "")) {
      const cut = says.search(/ because |;|$/), b = make("b", s ? s.level : "", says.slice(0, cut));
      $("says").dataset.level = s ? s.level : "";
      $("says").replaceChildren(b, says.slice(cut));
    }
    document.title = s && s.level !== "good" ? `${s.name}: ${amount(sum(s.mode === "observe" ? s.lately?.observed : s.lately?.rejected))}/s rejected – shield` : "shield";
    if (!s || !samples()) return;
    tiles(s);
    charts(s);
    classes(s);
    notes($("event-list"), events);
    for (const tell of listeners) tell(s);
  }

  function choice(seconds) {
    span = seconds;
    for (const b of document.querySelectorAll("[data-window]")) b.setAttribute("aria-pressed", String(+b.dataset.window === span));
    draw();
  }
  for (const b of document.querySelectorAll("[data-window]")) b.addEventListener("click", () => choice(+b.dataset.window));
  addEventListener("hashchange", () => { if (last && last.shields.some(s => s.name === chosen())) show(chosen()) });
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey || $("dialog").open || /INPUT|SELECT|TEXTAREA/.test(e.target.tagName)) return;
    const s = last && last.shields[+e.key - 1];
    if (s) location.hash = encodeURIComponent(s.name);
    if (e.key === "w") choice(span === 600 ? 120 : 600);
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden && stop) stop.abort() });
  setInterval(look, 500);
  follow();
  return { $, make, write, amount, long, clock, column, shown: () => shown, current, said: () => last, onDraw: f => listeners.push(f) };
})();
