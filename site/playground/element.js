// <shield-playground>: sliders, and what they do to a herd of clients in front of two limiters. It is dark when the system is, or
// with by-class when <html> has the class dark. bundle.mjs puts Chart, STYLE, WORKER and PROGRAM in front of this file.
const LIMITERS = {
  fixed: "1 s for everyone (usual limiters)",
  random: "random, 1–10 s",
  appointments: "appointments (shield)",
};
const NAMES = { fixed: "Usual limiter", random: "Random limiter", appointments: "shield" };

// The controls: name, label, least, most, step, start, and how a value is written.
const SLIDERS = [
  ["clients", "Clients that arrive together", 50, 5000, 50, 1000, v => v.toLocaleString("en")],
  ["capacity", "Backend capacity", 10, 500, 10, 100, v => `${v} requests/s`],
  ["obey", "Clients that honor Retry-After", 0, 100, 5, 50, v => `${v}%`],
];

const ROWS = [
  ["Clients served", o => o.served.toLocaleString("en")],
  ["Clients that gave up", o => o.gaveUp.toLocaleString("en")],
  ["Time until all were served", o => o.until ? `${o.until.toFixed(1)} s` : "never"],
  ["Requests per client", o => o.perClient.toFixed(1)],
];

const SERIES = [
  { name: "requests that arrive", kind: "area", color: 1 },
  { name: "requests that the backend serves", kind: "line", color: 2 },
];

const SHEET = new CSSStyleSheet(); // a page's Content-Security-Policy may refuse a <style>
SHEET.replaceSync(STYLE);

let count = 0;

class Playground extends HTMLElement {
  connectedCallback() {
    if (!this.root) this.build();
    this.leave = new AbortController(); // ends what runs while the element is in the page
    this.light(this.leave.signal);
    this.work(this.leave.signal);
    this.ask();
  }

  disconnectedCallback() { this.leave.abort(); }

  build() {
    const root = this.root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [SHEET];
    this.id ||= `shield-playground-${++count}`;
    root.innerHTML = `<div class="all">
      <form aria-label="Playground">
        ${SLIDERS.map(([id, label, min, max, step, value]) => `<div>
          <label for="${id}">${label}</label> <output for="${id}"></output>
          <input type="range" id="${id}" min="${min}" max="${max}" step="${step}" value="${value}">
        </div>`).join("")}
        ${["first", "second"].map(id => `<div>
          <label for="${id}">Retry-After of the ${id} limiter</label>
          <select id="${id}">${Object.entries(LIMITERS).map(([key, text]) => `<option value="${key}">${text}</option>`).join("")}</select>
        </div>`).join("")}
      </form>
      <div class="charts"></div>
      <table><caption>What the herd got</caption><thead><tr><td></td><th scope="col"></th><th scope="col"></th></tr></thead>
        <tbody>${ROWS.map(([name]) => `<tr><th scope="row">${name}</th><td></td><td></td></tr>`).join("")}</tbody></table>
      <p class="tip">Clients that don't honor Retry-After retry after up to 1, 2, 4, 8 and 16 s, whatever they are told. Set the slider to 0%:
        shield can't spread them, and serves about as many as the other limiters, or fewer in a large herd.</p>
      <p class="status" role="status"></p></div>`;
    this.get("second").value = "appointments";
    root.querySelector("form").addEventListener("input", () => this.ask());
    root.querySelector("form").addEventListener("submit", e => e.preventDefault());
  }

  // light keeps to what is light or dark around the element.
  light(signal) {
    const html = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
    const look = () => this.get("all").classList.toggle("dark", this.hasAttribute("by-class") ? html.classList.contains("dark") : system.matches);
    system.addEventListener("change", look, { signal });
    const watch = new MutationObserver(look);
    watch.observe(html, { attributeFilter: ["class"] });
    signal.addEventListener("abort", () => watch.disconnect());
    look();
  }

  // work starts the simulator.
  work(signal) {
    this.get("status").textContent = "Loading the simulator …";
    this.playing = this.worker = null;
    // Chromium tells the worker, without a message, that a policy refuses it; other browsers throw an error.
    const refused = () => this.show({ error: "This page doesn't allow workers; its Content-Security-Policy needs worker-src blob:" });
    const url = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
    signal.addEventListener("abort", () => URL.revokeObjectURL(url));
    try {
      this.worker = new Worker(url);
    } catch {
      return refused();
    }
    signal.addEventListener("abort", () => this.worker.terminate());
    this.worker.addEventListener("message", ({ data }) => this.show(data), { signal });
    this.worker.addEventListener("error", e => e.message ? this.show({ error: `The simulator failed: ${e.message}` }) : refused(), { signal });
    this.worker.postMessage({ program: PROGRAM });
  }

  get(id) { return this.root.getElementById(id) || this.root.querySelector("." + id); }

  // ask has the worker play what the controls say. While it plays, only the latest change waits.
  ask() {
    for (const [id, , , , , , write] of SLIDERS) {
      const input = this.get(id), text = write(Number(input.value));
      this.root.querySelector(`output[for=${id}]`).value = text;
      input.setAttribute("aria-valuetext", text);
    }
    this.next = {
      clients: Number(this.get("clients").value), capacity: Number(this.get("capacity").value),
      obey: Number(this.get("obey").value) / 100, limiters: [this.get("first").value, this.get("second").value],
    };
    this.send();
  }

  send() {
    if (!this.worker || this.playing || !this.next) return;
    this.playing = this.next;
    this.next = null;
    this.worker.postMessage(this.playing);
  }

  show({ outcomes, took, error }) {
    const asked = this.playing;
    this.playing = null;
    if (error) {
      this.get("status").textContent = error;
      return;
    }
    const { limiters, clients, capacity } = asked;
    // The same limiter twice needs two names.
    const names = limiters.map((key, i) => NAMES[key] + (limiters[0] === limiters[1] ? ` (${["first", "second"][i]})` : ""));
    this.root.querySelectorAll("thead th").forEach((cell, i) => cell.textContent = names[i]);
    this.root.querySelectorAll("tbody tr").forEach((row, n) => {
      row.querySelectorAll("td").forEach((cell, i) => cell.textContent = ROWS[n][1](outcomes[i]));
    });
    const figure = this.figure(outcomes, names);
    if (this.redraw) this.redraw(figure);
    else this.redraw = Chart(this.get("charts"), figure);
    this.get("status").textContent = `${clients.toLocaleString("en")} clients, ${capacity} requests/s: two runs in ${Math.round(took)} ms, in your browser, with the same code as the proxy.`;
    this.dispatchEvent(new CustomEvent("played", { detail: { outcomes, took } }));
    this.send();
  }

  // figure returns the charts of two outcomes, with the same axes. Values are requests per second in steps that are wide enough to see.
  figure(outcomes, names) {
    const least = outcomes[0].step, end = Math.max(...outcomes.map(o => o.arrived.length)) * least;
    const per = [1, 2, 5, 10, 20, 50].find(n => end / (n * least) <= 300) || 100, step = per * least;
    const rates = values => Array.from({ length: Math.ceil(values.length / per) }, (_, i) =>
      values.slice(i * per, i * per + per).reduce((a, b) => a + b, 0) / step);
    const charts = outcomes.map((o, i) => {
      const values = [rates(o.arrived), rates(o.done)], peak = Math.max(...values[0].slice(Math.ceil(0.5 / step)), 0);
      const text = o.until ? `all served after ${o.until.toFixed(1)} s` : `${o.gaveUp.toLocaleString("en")} gave up`;
      return { name: names[i], text: `${text}; up to ${Math.round(peak).toLocaleString("en")} retries/s`, start: 0, step, values };
    });
    const most = Math.max(...charts.flatMap(c => c.values[0]), 100);
    return {
      title: "Requests per second (logarithmic scale)", high: 220, series: SERIES, charts,
      x: { label: "seconds since the clients arrived", unit: " s", min: 0, max: end },
      y: { label: "", unit: "", min: 1, max: 10 ** Math.ceil(Math.log10(most)), log: true },
    };
  }
}

customElements.define("shield-playground", Playground);
