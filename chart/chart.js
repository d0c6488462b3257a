"use strict";
// Chart draws figures into a page: rows of charts with the same axes. A figure has a title, a note, axes x and y (label,
// unit, min, max, log), series (name, color, kind: area, line or level), spans (from, to) and charts (name, text, start, step,
// and values for each series). Each area may stand on those before it (stacked), charts be so many pixels high (high), and an
// axis have Unix seconds that are shown as the time of day (clock). Charts on one page share a cursor, which follows
// the pointer, a finger, or the arrow keys. All text is set as text, never as HTML.
const Chart = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const HIGH = 200, TOP = 8, BOTTOM = 22, LABEL = 16, RIGHT = 14, LETTER = 6.4;
  const shown = new Set(); // charts that share the cursor

  // add appends a new element with these attributes and this text.
  function add(parent, name, attributes = {}, text) {
    const svg = name === "svg" || parent.namespaceURI === NS;
    const e = svg ? document.createElementNS(NS, name) : document.createElement(name);
    for (const key in attributes) e.setAttribute(key, attributes[key]);
    if (text !== undefined) e.textContent = text;
    parent.append(e);
    return e;
  }

  // number writes v with at most four digits, or all before the point.
  function number(v) {
    const digits = { maximumSignificantDigits: Math.abs(v) >= 1000 ? 15 : 4 };
    return (Math.abs(v) >= 1000 ? Math.round(v) : v + 0).toLocaleString("en", digits);
  }

  // text writes a value of an axis with its unit; Unix seconds as the time of day.
  function text(axis, v, seconds = true) {
    if (!axis.clock) return number(v) + axis.unit;
    return new Date(1000 * v).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined });
  }

  // scale returns a function from values on an axis to pixels, 0 to length. A value
  // beyond the axis is at its end.
  function scale(axis, length) {
    const f = axis.log ? v => Math.log10(Math.max(v, axis.min)) : v => v;
    const least = f(axis.min), span = f(axis.max) - least || 1;
    return v => length * Math.min(1, Math.max(0, (f(v) - least) / span));
  }

  // ticks returns about n round values on an axis, or its powers of ten.
  function ticks(axis, n) {
    const at = [];
    if (axis.log) {
      for (let v = axis.min; v <= axis.max * 1.0001; v *= 10) at.push(v);
      return at;
    }
    const span = axis.max - axis.min || 1;
    if (axis.clock) {
      const step = [5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600].find(s => span / s <= n) || 7200;
      for (let v = Math.ceil(axis.min / step) * step; v <= axis.max; v += step) at.push(v);
      return at;
    }
    let step = 10 ** Math.floor(Math.log10(span / n));
    step *= [1, 2, 5, 10].find(times => span / (times * step) <= n + 1e-9) || 10;
    for (let i = Math.ceil(axis.min / step - 1e-9); i * step <= axis.max + step * 1e-9; i++) at.push(i * step);
    return at;
  }

  // path returns a line of steps through values, down to base if that is given. It has a
  // gap where a value is null.
  function path(values, x, y, base) {
    const close = base === undefined ? "" : `V${base}Z`;
    let d = "", last = null;
    values.forEach((v, i) => {
      const at = v === null ? null : y(v).toFixed(1), from = x(i).toFixed(1);
      if (at === last) return;
      if (last === null) d += base === undefined ? `M${from} ${at}` : `M${from} ${base}V${at}`;
      else d += `H${from}` + (at === null ? close : `V${at}`);
      last = at;
    });
    return last === null ? d : d + `H${x(values.length).toFixed(1)}${close}`;
  }

  // stack returns the values of a figure's series, in which each area stands on those before it.
  function stack(series, values) {
    let sums = [];
    return values.map((list, n) => {
      if (series[n].kind !== "area") return list;
      return sums = list.map((v, i) => v === null ? null : v + (sums[i] || 0));
    });
  }

  // A Cell is one chart of a figure.
  class Cell {
    constructor(host) {
      this.box = add(host, "figure", { class: "cell" });
      const head = add(this.box, "figcaption");
      this.name = add(head, "b");
      this.text = add(head, "output");
      this.svg = add(this.box, "svg", { class: "chart", role: "img", tabindex: "0" });
      this.svg.addEventListener("pointermove", e => move(this, this.valueAt(e)));
      this.svg.addEventListener("pointerdown", e => move(this, this.valueAt(e)));
      this.svg.addEventListener("pointerleave", () => move(this, null));
      this.svg.addEventListener("blur", () => move(this, null));
      this.svg.addEventListener("keydown", e => this.key(e));
      new ResizeObserver(() => this.draw()).observe(this.box);
      shown.add(this);
    }

    show(figure, chart) {
      Object.assign(this, { figure, chart });
      this.name.textContent = chart.name;
      this.svg.setAttribute("aria-label", `${figure.title}. ${chart.name}: ${chart.text}`);
      this.draw();
    }

    // hide takes the chart off the page.
    hide() {
      shown.delete(this);
      this.box.remove();
    }

    draw() {
      if (!this.figure || !this.box.clientWidth) return;
      const { figure, chart, svg } = this, width = this.box.clientWidth;
      svg.replaceChildren();
      svg.setAttribute("width", width);
      const high = figure.high || HIGH, bottom = this.bottom = high - BOTTOM - (figure.x.label ? LABEL : 0);
      svg.setAttribute("height", high);
      const yTicks = ticks(figure.y, Math.max(2, high / 50));
      const left = Math.ceil(LETTER * Math.max(...yTicks.map(v => number(v).length + figure.y.unit.length))) + 10;
      const wide = this.wide = width - left - RIGHT;
      const along = scale(figure.x, wide), up = scale(figure.y, bottom - TOP);
      const x = this.x = v => left + along(v), y = v => bottom - up(v);
      this.left = left;

      for (const span of figure.spans || []) {
        if (span.to < figure.x.min || span.from > figure.x.max) continue;
        add(svg, "rect", { class: "span", x: x(span.from), y: TOP, width: Math.max(2, x(span.to) - x(span.from)), height: bottom - TOP });
      }
      for (const v of yTicks) {
        add(svg, "path", { class: "grid", d: `M${left} ${y(v)}H${left + wide}` });
        add(svg, "text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, number(v) + figure.y.unit);
      }
      const xTicks = ticks(figure.x, Math.max(2, wide / 75));
      for (const v of xTicks) {
        add(svg, "path", { class: "axis", d: `M${x(v)} ${bottom}v4` });
        add(svg, "text", { x: x(v), y: bottom + 16, "text-anchor": "middle" }, text(figure.x, v, xTicks.some(v => v % 60)));
      }
      if (figure.x.label) add(svg, "text", { x: left + wide / 2, y: high - 6, "text-anchor": "middle" }, figure.x.label);
      const values = figure.stacked ? stack(figure.series, chart.values) : chart.values || [];
      const order = figure.series.map((series, i) => [series, values[i] || []]);
      const area = ([series]) => figure.stacked && series.kind === "area"; // the highest of a stack is painted first
      for (const [series, list] of [...order.filter(area).reverse(), ...order.filter(s => !area(s))]) this.series(series, list, y, bottom);
      add(svg, "path", { class: "axis", d: `M${left} ${TOP}V${bottom}H${left + wide}` });
      this.cursor = add(svg, "path", { class: "cursor" });
      this.point(this.at >= figure.x.min ? this.at : null);
    }

    // series draws one of the figure's series.
    series(series, values, y, bottom) {
      if (!values.length) return;
      const { svg, chart, left, wide } = this, color = "c" + series.color;
      const at = i => this.x(chart.start + i * chart.step);
      switch (series.kind) {
        case "area":
          add(svg, "path", { class: "area " + color, d: path(values, at, y, bottom) });
          break;
        case "line":
          if (values.some(v => v > 0)) add(svg, "path", { class: "line " + color, d: path(values, at, y) });
          break;
        case "level":
          add(svg, "path", { class: "level", d: values.length > 1 ? path(values, at, y) : `M${left} ${y(values[0])}H${left + wide}` });
          break;
      }
    }

    // valueAt returns where on the x axis a pointer is.
    valueAt(event) {
      const { min, max } = this.figure.x;
      const at = (event.clientX - this.svg.getBoundingClientRect().left - this.left) / this.wide;
      return min + Math.min(1, Math.max(0, at)) * (max - min);
    }

    key(event) {
      const { min, max } = this.figure.x, step = this.chart.step * (event.shiftKey ? 10 : 1), at = this.at ?? (event.key === "ArrowLeft" ? max : min);
      const to = { ArrowLeft: at - step, ArrowRight: at + step, Home: min, End: max, Escape: null }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      move(this, to === null ? null : Math.min(max, Math.max(min, to)));
    }

    // point puts the cursor at a value of the x axis, or away, and says what is there.
    point(at) {
      this.at = at;
      const { figure, chart } = this, i = at === null ? -1 : Math.floor((at - chart.start) / chart.step + 1e-9);
      this.cursor.setAttribute("d", at === null ? "" : `M${this.x(at)} ${TOP}V${this.bottom}`);
      const parts = [];
      figure.series.forEach((series, n) => {
        const values = (chart.values || [])[n] || [], v = values[Math.min(i, values.length - 1)];
        if (v != null && (series.kind !== "level" || values.length > 1)) parts.push(`${series.name} ${number(v)}${figure.y.unit}`);
      });
      this.text.textContent = parts.length ? `${text(figure.x, Math.round(at * 100) / 100)}: ${parts.join(", ")}` : chart.text;
    }
  }

  // move puts the cursors of all charts with the same x axis where that of cell is.
  function move(cell, at) {
    for (const other of shown) {
      if (other.cursor && other.figure.x.label === cell.figure.x.label) other.point(at);
    }
  }

  // legend says what the colours of a figure mean.
  function legend(host, series) {
    host.replaceChildren();
    for (const s of series) {
      const item = add(host, "li");
      add(item, "span", { class: `key ${s.kind} c${s.color}`, "aria-hidden": "true" });
      add(item, "span", {}, s.name);
    }
  }

  // figure draws a figure into host, and returns a function that shows another one in
  // its place, as a page does that is updated.
  return function figure(host, first) {
    host.classList.add("figure");
    const title = add(host, "h2"), key = add(host, "ul", { class: "legend" }), note = add(host, "p", { class: "note" });
    const row = add(host, "div", { class: "cells" }), cells = [];
    function show(next) {
      title.textContent = next.title;
      note.textContent = next.note || "";
      note.hidden = !next.note;
      legend(key, next.series);
      while (cells.length > next.charts.length) cells.pop().hide();
      next.charts.forEach((chart, i) => (cells[i] ||= new Cell(row)).show(next, chart));
    }
    show(first);
    return show;
  };
})();
