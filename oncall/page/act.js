
// Who is refused, why, and what to do about it: the endpoints who, explain, forgive and
// overrides, as far as there are any.
(() => {
  const { $, make, write, amount, long } = On;
  const SLOW = 5000; // between two questions
  let tag = "", readOnly = true, known = [], asked = 0;

  async function ask(path, options = {}) {
    const answer = await fetch(path, { cache: "no-store", ...options });
    const text = await answer.text();
    let said = {};
    try { said = text ? JSON.parse(text) : {} } catch { said = { error: text } }
    if (answer.status === 412) throw new Error("Another person has changed the overrides meanwhile. Look at them, and try again.");
    if (!answer.ok) throw new Error(said.error || `The endpoint answers ${answer.status}.`);
    return { said, tag: answer.headers.get("ETag") || "" };
  }
  const has = panel => On.panels().includes(panel);
  const post = (path, body) => ask(path, { method: "POST", headers: { "Content-Type": "application/json", ...(tag && path === "overrides" ? { "If-Match": tag } : {}) }, body: JSON.stringify(body) });

  function button(text, name, act) {
    const b = make("button", name, text);
    b.type = "button";
    b.addEventListener("click", act);
    return b;
  }

  // dialog asks before something is done. fields have a name, a label, and a value or choices.
  function dialog(title, lines, fields = [], act, verb) {
    const form = $("dialog-form"), inputs = {};
    write($("dialog-title"), title);
    $("dialog-text").replaceChildren(...lines.map(l => l instanceof Node ? l : make("p", "", l)));
    form.replaceChildren();
    for (const f of fields) {
      const label = make("label", "", f.label), input = make(f.choices ? "select" : "input");
      for (const c of f.choices || []) input.append(make("option", "", c));
      input.value = f.value;
      label.append(input);
      form.append(label);
      inputs[f.name] = input;
    }
    form.append(button(act ? "Cancel" : "Close", "", () => $("dialog").close()));
    form.onsubmit = e => { e.preventDefault(); if (act) done() };
    async function done() {
      try {
        await act(Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value])));
        $("dialog").close();
      } catch (e) {
        $("dialog-text").replaceChildren(...lines.map(l => l instanceof Node ? l : make("p", "", l)), make("p", "bad", e.message));
      }
      look(true);
    }
    if (act) form.append(button(verb, "main", done));
    if (!$("dialog").open) $("dialog").showModal();
  }

  function facts(pairs) {
    const dl = make("dl");
    for (const [name, value] of pairs) if (value !== undefined && value !== "") dl.append(make("dt", "", name), make("dd", "", String(value)));
    return dl;
  }
  async function explain(client) {
    try {
      const { said } = await ask(`explain?client=${encodeURIComponent(client)}&shield=${encodeURIComponent(On.shown())}`);
      const s = said.shields[0];
      const wait = s.retry_after_seconds ? ` and Retry-After ${s.retry_after_seconds}` : "";
      dialog(client, [s.would === "admit" ? "A request now would be admitted." : s.would === "queue" ? "A request now would wait in the queue." : `A request now would be refused with ${s.status}${wait}: ${s.reason}${s.zone ? " of zone " + s.zone : ""}.`, facts([
        ...(s.zones || []).map(z => ["zone " + z.name, z.tokens === undefined ? "not known" : `${amount(z.tokens)} of ${amount(z.burst)} tokens left` + (z.wait_seconds ? `, enough in ${long(z.wait_seconds)}` : "")]),
        ["capacity", s.capacity && `${amount(s.capacity.tokens)} of ${amount(s.capacity.burst)} tokens left, for all clients`],
        ["in flight", s.concurrency && `${s.concurrency.in_flight} of ${s.concurrency.limit}, ${s.in_flight} of this client`],
        ["appointment", s.promise_in_seconds === undefined ? "none" : s.promise_in_seconds > 0 ? `due in ${long(s.promise_in_seconds)}` : "due now"],
        ["early returns", s.strikes], ["retries", s.kind], ["class", s.class],
      ])]);
    } catch (e) { dialog(client, [e.message]) }
  }
  function forgive(client) {
    dialog(`Forgive ${client}?`, [`${On.shown()} forgets what it has counted against this client: its early returns, and what it has used of its quota.`], [],
      () => post("forgive", { client, shield: On.shown() }), "Forgive");
  }
  const override = (title, text, fields, body) => dialog(title, [text], [...fields, { name: "for", label: "for", value: "10m" }],
    form => post("overrides", { shield: On.shown(), ...body, ...form }), "Do it");
  function block(client) {
    override(`Block ${client}?`, `${On.shown()} refuses all requests of this client for that long. Other clients notice nothing.`, [], { kind: "block", client });
  }

  function who(said) {
    const s = said.shields.find(s => s.name === On.shown());
    $("who").hidden = !s;
    if (!s) return;
    const of = (list, client, field) => ((list || []).find(c => c.client === client) || {})[field];
    const clients = [...new Map([...(s.refused || []), ...(s.in_flight || [])].map(c => [c.client, c])).keys()].slice(0, 12);
    write($("who-note"), clients.length ? `last ${said.window_seconds} s, most refused first${said.masked ? ", addresses are masked" : ""}` : "no client was refused in the last minute");
    const table = $("who").querySelector("table"), rows = clients.map(client => {
      const r = (s.refused || []).find(c => c.client === client) || {};
      return [client, r.per_second === undefined ? "–" : amount(r.per_second), r.last_minute === undefined ? "–" : amount(r.last_minute), amount(of(s.early, client, "last_minute") || 0), amount(of(s.in_flight, client, "in_flight") || 0), r.reason || "", r.class || "", r.agent || ""];
    });
    const acts = !said.masked && (has("explain") || !readOnly), key = JSON.stringify([rows, acts, readOnly]);
    if (table.dataset.key === key || table.contains(document.activeElement)) return; // not while a button has the focus
    table.dataset.key = key;
    const head = make("tr"), names = ["Client", "Refused/s", "Last minute", "Early", "In flight", "Reason", "Class", "Agent"];
    names.forEach((name, i) => { const th = make("th", i > 0 && i < 5 ? "n" : "", name); th.scope = "col"; head.append(th) });
    if (acts) head.append(make("td"));
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...rows.map(row => {
      const tr = make("tr");
      row.forEach((text, i) => { const td = make("td", i === 0 ? "client" : i < 5 ? "n" : "text", text); td.title = i > 4 ? text : ""; tr.append(td) });
      if (!acts || /^"|…$/.test(row[0])) return tr; // no whole name
      const td = make("td", "acts"), named = (text, act) => { const b = button(text, "small", () => act(row[0])); b.setAttribute("aria-label", `${text} ${row[0]}`); td.append(b) };
      if (has("explain")) named("Why?", explain);
      if (has("forgive") && !readOnly) named("Forgive", forgive);
      if (has("overrides") && !readOnly) named("Block", block);
      tr.append(td);
      return tr;
    }));
  }

  function overrides(said) {
    known = said.overrides || [];
    readOnly = said.read_only !== false;
    $("do").hidden = false;
    write($("do-note"), readOnly ? "read only" : known.length ? "" : "none is in force");
    $("overrides").replaceChildren(...known.map(o => {
      const what = o.kind === "block" ? `${o.client} is blocked` : o.kind === "mode" ? `mode ${o.value}` : `${o.setting} ${o.value}`;
      const li = make("li", "", `${o.shield ? o.shield + ": " : ""}${what}, for another ${long(o.left_seconds)}${o.by ? `, by ${o.by}` : ""}`);
      if (!readOnly) li.append(button("End", "small", () => dialog("End this override?", [li.firstChild.textContent], [],
        () => ask("overrides/" + encodeURIComponent(o.id), { method: "DELETE", headers: tag ? { "If-Match": tag } : {} }), "End it")));
      return li;
    }));
    if ($("actions").childElementCount && !readOnly) return;
    $("actions").replaceChildren(...readOnly ? [] : [
      button("Set a limit…", "", () => override(`Set a limit of ${On.shown()}?`, "It is in force at once, and what the config says is back when the time is over.",
        [{ name: "setting", label: "setting", value: "capacity", choices: ["capacity", "concurrency"] }, { name: "value", label: "value, as in the config", value: "100/s" }], { kind: "set" })),
      button("Observe only…", "", () => override(`Let ${On.shown()} refuse no request?`, "All requests reach the backend, whatever the limits say.", [], { kind: "mode", value: "observe" })),
    ]);
  }

  // look asks for who, and for overrides, as long as the page is seen.
  async function look(now) {
    if (document.hidden || !now && Date.now() - asked < SLOW) return;
    asked = Date.now();
    try {
      if (has("overrides")) {
        const answer = await ask("overrides");
        tag = answer.tag;
        overrides(answer.said);
      } else $("do").hidden = true;
      if (has("who")) who((await ask(`who?n=12&shield=${encodeURIComponent(On.shown())}`)).said); else $("who").hidden = true;
    } catch { /* the page says when it is disconnected */ }
  }
  let of = "";
  On.onDraw(s => { look(s.name !== of); of = s.name });
})();
