
// Who is rejected, why, and what to do about it: the endpoints who, explain, forgive and overrides.
(() => {
  const { $, make, write, amount, long } = On;
  const SLOW = 5000; // between two looks: a person is to read, and to press what is there
  let readOnly = true, of = "", shown = 0;

  async function ask(path, options = {}) {
    const answer = await fetch(path, { cache: "no-store", ...options });
    const text = await answer.text();
    let said = {};
    try { said = text ? JSON.parse(text) : {} } catch { said = { error: text } }
    if (!answer.ok) throw new Error(said.error || `The endpoint responded with ${answer.status}.`);
    return said;
  }
  const post = (path, body) => ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

  function button(text, name, act) {
    const b = make("button", name, text);
    b.type = "button";
    b.addEventListener("click", act);
    return b;
  }

  // dialog asks before something is done. fields have a name, a label, and a value or choices, pairs
  // of a value and a text. act is given what is in them; what it returns is said in the end. dialog
  // returns the inputs.
  function dialog(title, lines, fields = [], act, verb) {
    const form = $("dialog-form"), inputs = {};
    const say = (...more) => $("dialog-text").replaceChildren(...[...lines, ...more].map(l => l instanceof Node ? l : make("p", "", l)));
    write($("dialog-title"), title);
    say();
    form.replaceChildren();
    for (const f of fields) {
      const label = make("label", "", f.label), input = make(f.choices ? "select" : "input");
      for (const [value, text] of f.choices || []) input.append(Object.assign(make("option", "", text), { value }));
      input.value = f.value;
      label.append(input);
      form.append(label);
      inputs[f.name] = input;
    }
    form.append(button(act ? "Cancel" : "Close", "", () => $("dialog").close()));
    form.onsubmit = e => { e.preventDefault(); if (act) done() };
    async function done() {
      try {
        const said = await act(Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value])));
        if (said) dialog(title, said); else $("dialog").close();
        look();
      } catch (e) {
        say(make("p", "bad", e.message));
      }
    }
    if (act) form.append(button(verb, "main", done));
    if (!$("dialog").open) $("dialog").showModal();
    return inputs;
  }

  function facts(pairs) {
    const dl = make("dl");
    for (const [name, value] of pairs) if (value !== undefined && value !== "") dl.append(make("dt", "", name), make("dd", "", String(value)));
    return dl;
  }
  const due = is => is.appointment_in_seconds === undefined ? "none" : (is.appointment_in_seconds > 0 ? `due in ${long(is.appointment_in_seconds)}` : "due now") + (is.appointments > 1 ? `, first of ${is.appointments}` : "");
  // A client is called by its handle, if it has one: its name may be masked.
  const called = c => ({ client: c.handle || c.client });
  async function explain(c) {
    try {
      const said = await ask(`explain?${new URLSearchParams({ ...called(c), shield: On.shown() })}`);
      const s = said.shields[0];
      const wait = s.retry_after_seconds ? ` and Retry-After ${s.retry_after_seconds}` : "";
      dialog(c.client, [s.would === "admit" ? "A request now would be admitted." : s.would === "queue" ? `A request now would wait briefly: ${s.reason}.` : `A request now would be rejected with ${s.status}${wait}: ${s.reason}${s.zone ? " of zone " + s.zone : ""}.`, facts([
        ...(s.zones || []).map(z => ["zone " + z.name, z.tokens === undefined ? "unknown" : `${amount(z.tokens)} of ${amount(z.burst)} ${z.unit || "tokens"} left` + (z.cost ? `, and a request now costs ${amount(z.cost)}` : "") + (z.wait_seconds ? `, enough in ${long(z.wait_seconds)}` : "")]),
        ["capacity", s.capacity && `${amount(s.capacity.tokens)} of ${amount(s.capacity.burst)} tokens left, for all clients`],
        ["in flight", s.concurrency && `${s.concurrency.in_flight} of ${s.concurrency.limit}, ${s.in_flight} of this client`],
        ...(s.zones || []).filter(z => z.appointments).map(z => ["appointment, zone " + z.name, due(z)]),
        ["appointment", due(s)],
        ["retries", s.kind], ["class", s.class],
        ...Object.entries(s.unknown || {}).map(([limit, template]) => [limit, `unknown: the name doesn't determine ${template}`]),
      ])]);
    } catch (e) { dialog(c.client, [e.message]) }
  }
  function forgive(c) {
    dialog(`Forgive ${c.client}?`, ["Resets this client: lifts its block, drops its appointments, and refills its quotas."], [scope()], async form => {
      const said = await post("forgive", { ...called(c), ...form });
      const told = is => [...is.zones.map(z => `its quota in zone ${z}`), ...is.appointments ? ["its appointment"] : [], ...is.blocked ? ["its block"] : []];
      return said.shields.map(is => `${said.shields.length > 1 ? is.name + ": " : ""}${told(is).length ? `Reset: ${told(is).join(", ")}.` : "There was nothing to reset."}`);
    }, "Forgive");
  }
  // override asks for one for a while, of this shield or, if they can have it, of all.
  const scope = () => ({ name: "shield", label: "shield", value: On.shown(), choices: [[On.shown(), On.shown()], ["", "all shields"]] });
  const override = (title, text, fields, body) => dialog(title, [text], [...fields, { name: "for", label: "for how long, 1s to 24h", value: "10m" }],
    async form => { await post("overrides", { shield: On.shown(), ...body, ...form }) }, "Apply");
  function block(c) {
    override(`Block ${c.client}?`, "Rejects all requests from this client for that long. Other clients aren't affected.", [scope()], { kind: "block", ...called(c) });
  }
  function set() {
    const { settings } = On.current(), { setting, value } = override(`Set a limit of ${On.shown()}?`, "Takes effect immediately. When the time is up, the config's value applies again.", [
      { name: "setting", label: "setting", value: settings[0].setting, choices: settings.map(s => [s.setting, s.setting]) },
      { name: "value", label: "value, as in the config", value: settings[0].value }], { kind: "set" });
    setting.addEventListener("change", () => value.value = settings.find(s => s.setting === setting.value).value);
  }
  function mode() {
    const other = On.current().mode === "observe" ? "enforce" : "observe";
    override("Set the mode?", "observe lets every request through and only counts what it would reject. enforce rejects.",
      [{ name: "value", label: "mode", value: other, choices: [["observe", "observe"], ["enforce", "enforce"]] }, scope()], { kind: "mode" });
  }

  // refill gives host new children, and the focus to the button that had it.
  function refill(host, children) {
    const at = host.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
    host.replaceChildren(...children);
    if (at) [...host.querySelectorAll("button")].find(b => b.getAttribute("aria-label") === at)?.focus({ preventScroll: true });
  }
  // labelled returns a small button that says to a screen reader what it is for.
  function labelled(text, of, act) {
    const b = button(text, "small", act);
    b.setAttribute("aria-label", `${text} ${of}`);
    return b;
  }

  function who(said) {
    const s = said.shields.find(s => s.name === On.shown());
    $("who").hidden = !s;
    if (!s) return;
    const rejected = s.rejected || [], busy = s.in_flight || [], same = c => o => o.handle === c.handle;
    const clients = [...rejected, ...busy.filter(c => !rejected.some(same(c)))].slice(0, 12);
    write($("who-note"), rejected.length ? `last ${said.window_seconds} s, most rejected first${said.masked ? ", names masked" : ""}` : "no client rejected in the last minute");
    const table = $("who").querySelector("table"), rows = clients.map(c => {
      const counts = c.reason ? [c.per_second, c.last_minute, c.early || 0].map(amount) : ["–", "–", "–"];
      return [c.client, ...counts, amount((busy.find(same(c)) || {}).in_flight || 0), c.reason || "", c.class || "", c.agent || "", c.path || ""];
    });
    for (const b of $("other").querySelectorAll("[value]")) b.hidden = readOnly;
    const key = JSON.stringify([rows, clients.map(c => c.handle), readOnly]);
    if (table.dataset.key === key || table.querySelector(":active")) return; // not while a button is pressed
    table.dataset.key = key;
    const head = make("tr"), names = ["Client", "Rejected/s", "Last minute", "Early", "In flight", "Reason", "Class", "Agent", "Path"];
    names.forEach((name, i) => { const th = make("th", i > 0 && i < 5 ? "n" : "", name); th.scope = "col"; head.append(th) });
    head.append(make("td"));
    table.tHead.replaceChildren(...clients.length ? [head] : []);
    refill(table.tBodies[0], rows.map((row, n) => {
      const tr = make("tr"), td = make("td", "acts"), c = clients[n];
      row.forEach((text, i) => { const td = make("td", i === 0 ? "client" : i < 5 ? "n" : "text", text); td.title = i > 4 ? text : ""; tr.append(td) });
      td.append(labelled("Why?", c.client, () => explain(c)));
      if (!readOnly) td.append(labelled("Forgive", c.client, () => forgive(c)), labelled("Block", c.client, () => block(c)));
      tr.append(td);
      return tr;
    }));
  }
  $("other").onsubmit = e => { e.preventDefault(); explain({ client: $("client").value }) };
  for (const b of $("other").querySelectorAll("[value]")) {
    b.onclick = () => { if ($("other").reportValidity()) ({ forgive, block })[b.value]({ client: $("client").value }) };
  }

  const words = o => `${o.shields.join(", ") || "no running shield"}: ${o.kind === "block" ? `${o.client} is blocked` : o.kind === "mode" ? `mode ${o.value}` : `${o.setting} ${o.value}`}, ${long(o.left_seconds)} left, set by ${o.by}`;
  function overrides(known) {
    $("do").hidden = false;
    write($("do-note"), readOnly ? "read only" : known.length ? "" : "none active");
    refill($("overrides"), known.map(o => {
      const li = make("li", "", words(o));
      if (!readOnly) li.append(labelled("End", `override ${o.id}`, () => dialog("End this override?", [words(o)], [],
        async () => { await ask("overrides/" + encodeURIComponent(o.id), { method: "DELETE" }) }, "End it")));
      return li;
    }));
    $("set").hidden = readOnly || !On.current()?.settings;
    $("mode").hidden = readOnly;
  }
  $("set").onclick = set;
  $("mode").onclick = mode;

  // show shows who and overrides, if the endpoint says them.
  function show(said) {
    shown = Date.now();
    of = On.shown();
    readOnly = said.read_only;
    if (said.who) { overrides(said.overrides || []); who(said.who) } else $("do").hidden = $("who").hidden = true;
  }
  // look asks what is in force now that something was done: the next second is late for that.
  async function look() {
    try {
      show(await ask(`live?all=1&since=9007199254740991&shield=${encodeURIComponent(On.shown())}`));
    } catch { /* the page says when it is disconnected */ }
  }
  On.onDraw(s => { if (s.name !== of || Date.now() - shown > SLOW) show(On.said()) });
})();
