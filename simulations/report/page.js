"use strict";
// All that a run's files said is in one block of JSON. It is untrusted: it reaches the page only
// as text nodes, as numbers, and as links that the generator quoted.
const DATA = JSON.parse(document.getElementById("data").textContent);

/* ---- Numbers as text ------------------------------------------------------------------- */

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function formatNumber(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const digits = size >= 1 ? 2 : clamp(3 - Math.floor(Math.log10(size)), 2, 6); // or four significant ones
  return value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits });
}

/** Bytes with a decimal unit; `format` writes the number, here with four significant digits. */
function formatBytes(value, format = (number) => Number(number.toPrecision(4)).toLocaleString("en")) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = value < 1 ? 0 : clamp(Math.floor(Math.log10(value) / 3), 0, units.length - 1);
  return `${format(value / 1000 ** power)} ${units[power]}`;
}

/** Bytes in a column: three digits, so that 56.0 kB and 1.70 MB line up. */
const formatByteCell = (value) =>
  formatBytes(value, (number) => (value < 1000 ? formatNumber(number) : number.toFixed(number < 10 ? 2 : number < 100 ? 1 : 0)));
const formatTick = (value) => {
  const large = Math.abs(value) >= 1e5 ? { notation: "compact", maximumFractionDigits: 3 } : { maximumFractionDigits: 8 };
  return Number(value.toPrecision(10)).toLocaleString("en", large);
};
const formatError = (error, format) => (error === null || error === undefined ? "" : ` ± ${format(error)}`);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/* ---- Scales ---------------------------------------------------------------------------- */

function makeScale(log, [low, high], [from, to]) {
  const map = log ? Math.log10 : (value) => value;
  const back = log ? (value) => 10 ** value : (value) => value;
  const [start, span] = [map(low), map(high) - map(low)];
  return {
    log,
    domain: [low, high],
    to: (value) => from + ((map(value) - start) / span) * (to - from),
    from: (pixel) => back(start + ((pixel - from) / (to - from)) * span),
  };
}

function linearTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) || 10);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

function logTicks(low, high, count) {
  const ticks = [];
  const decades = Math.log10(high / low);
  const factors = decades > count ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.9999 && value <= high * 1.0001) ticks.push(value);
    }
  }
  return ticks.length >= 3 ? thinTicks(ticks, count * 2) : linearTicks(low, high, count);
}

const thinTicks = (ticks, most) => {
  const every = Math.ceil(ticks.length / most);
  return ticks.filter((_, index) => index % every === 0);
};

const ticksOf = (scale, count) => (scale.log ? logTicks : linearTicks)(...scale.domain, count);

/** Widen an interval so that marks at its ends are whole; a logarithmic one by a factor. */
function padded([low, high], log, share) {
  if (log) {
    const factor = high > low ? (high / low) ** share : 1.5;
    return [low / factor, high * factor];
  }
  const pad = high > low ? (high - low) * share : Math.abs(high) * 0.1 || 1;
  return [low - pad, high + pad];
}

/** Zoom an interval by a factor about a point given as a share of it; on the scale's own terms. */
function zoomed(scale, [from, to], share, factor) {
  const at = from + (to - from) * share;
  return [scale.from(at + (from - at) * factor), scale.from(at + (to - at) * factor)];
}

/* ---- The page's elements ---------------------------------------------------------------- */

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(key, value);
  }
  node.append(...children); // strings become text nodes: nothing is parsed as markup
  return node;
}

function button(text, attributes, onClick) {
  const made = element("button", { type: "button", class: "button small", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

/* ---- How a configuration looks: hue, dash and shape, so that none alone must be told apart -- */

const HUES = 8;
const DASHES = [null, "8 4", "2 3", "10 3 2 3"];
const look = (group) => {
  const round = Math.floor(group / HUES);
  return {
    stroke: `var(--s${group % HUES})`,
    dash: DASHES[(group + round) % DASHES.length],
    shape: (group + round) % 4,
  };
};

/** Outline of a circle, square, triangle or diamond about a point. */
function shapePath(shape, x, y, r) {
  if (shape === 0) return `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0Z`;
  if (shape === 1) return `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`;
  if (shape === 2) return `M${x},${y - r * 1.2}L${x + r * 1.15},${y + r * 0.9}H${x - r * 1.15}Z`;
  return `M${x},${y - r * 1.35}L${x + r * 1.35},${y}L${x},${y + r * 1.35}L${x - r * 1.35},${y}Z`;
}

function swatch(group, width = 40) {
  const { stroke, dash, shape } = look(group);
  return svg(
    "svg",
    { class: "swatch", width, height: 14, viewBox: `0 0 ${width} 14`, "aria-hidden": "true" },
    svg("line", { x1: 0, x2: width, y1: 7, y2: 7, stroke, "stroke-width": 2.25, "stroke-dasharray": dash }),
    svg("path", { d: shapePath(shape, width / 2, 7, 4), fill: stroke }),
  );
}

/* ---- What is shown: shared by legend, charts and table ------------------------------------ */

const state = { hidden: new Set(), seeds: false, charts: [] };
const redraw = () => state.charts.forEach((chart) => chart.draw());
const labelOf = (group) => DATA.groups[group].label.join("  ") || "all runs";
const shownGroups = () => DATA.groups.map((_, index) => index).filter((index) => !state.hidden.has(index));

function highlight(group) {
  for (const mark of document.querySelectorAll(".marks [data-group]")) {
    const isOwn = Number(mark.dataset.group) === group;
    mark.classList.toggle("dim", group !== null && !isOwn);
    mark.classList.toggle("lit", isOwn);
  }
}

/** Curves now visible: the mean of each configuration and, if asked for, its single seeds. */
function visibleCurves() {
  const means = shownGroups().map((group) => {
    const { grid, mean, error } = DATA.groups[group];
    return { group, seed: null, xs: DATA.grids[grid], ys: mean, error: state.seeds ? null : error };
  });
  const seeds = (state.seeds ? DATA.runs : [])
    .filter((run) => run.curve && !state.hidden.has(run.group))
    .map((run) => ({
      group: run.group, seed: run.seed, ys: run.curve, error: null,
      xs: DATA.grids[DATA.groups[run.group].grid],
    }));
  return [...seeds, ...means]; // means are drawn on top
}

/** Points of a scatter now visible, the same way. */
function visiblePoints(measure) {
  const means = shownGroups().map((group) => {
    const { figures, spread } = DATA.groups[group];
    const error = spread && !state.seeds ? spread.regret : null;
    return { group, seed: null, x: measure(figures), y: figures.regret, error };
  });
  const seeds = (state.seeds ? DATA.runs : [])
    .filter((run) => run.curve && !state.hidden.has(run.group))
    .map((run) => ({ group: run.group, seed: run.seed, x: measure(run), y: run.regret, error: null }));
  return [...seeds, ...means];
}

/** Points that no other beats in regret or cost without losing in the other, by cost; equals stay. */
function paretoFrontier(points) {
  const ordered = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
  let best = { x: NaN, y: Infinity };
  return ordered.filter((point) => {
    const isBetter = point.y < best.y;
    const isEqual = point.y === best.y && point.x === best.x;
    if (isBetter) best = point;
    return isBetter || isEqual;
  });
}

/** Index of the entry of an increasing list that is nearest to a value. */
function nearestIndex(xs, value) {
  let [low, high] = [0, xs.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - xs[low - 1] < xs[low] - value ? low - 1 : low;
}

/* ---- A chart: axes, zoom, cursor. What it shows is its content's business -------------------- */

/*
 * A content has
 *   items()                what is visible now
 *   extent(items, log)     [[x low, x high], [y low, y high]] that show all of it
 *   paint(layer, items, x, y)
 *   nearest(items, px, py, x, y)   the cursor there: {item, index}, or null
 *   step(items, cursor, dx, dy)    the cursor one key press on
 *   place(items, cursor)   {x, y, group, head, lines}
 *   moved(place)           called when the cursor moved; place may be null
 */
class Chart {
  constructor(host, options) {
    Object.assign(this, { view: null, cursor: null, anchor: null, drag: null, log: { x: false, y: false } }, options);
    this.clip = `clip-${host.id}`;
    this.build(host);
    this.listen();
    state.charts.push(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  build(host) {
    this.svg = svg("svg", { "aria-hidden": "true" });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.live = element("p", { class: "unseen", "aria-live": "polite" });
    this.plot = element(
      "div",
      {
        class: "plot", tabindex: 0, role: "application", "aria-roledescription": "interactive chart",
        "aria-label": `${this.title}. Left and right arrows move along a curve or between points, up and down change`
          + " to another, plus and minus zoom, 0 resets the zoom.",
      },
      this.svg, this.tip,
    );
    this.reset = button("Reset zoom", { disabled: "", class: "button small reset" }, () => this.zoomTo(null));
    host.append(
      element(
        "div",
        { class: "chart-head", role: "group", "aria-label": `${this.title}: display` },
        ...(this.heading ? [element("h3", {}, this.heading)] : []),
        ...(this.extra || []),
        this.logButton("x"), this.logButton("y"),
        button("+", { "aria-label": "Zoom in" }, () => this.zoomBy(0.6)),
        button("−", { "aria-label": "Zoom out" }, () => this.zoomBy(1 / 0.6)),
        this.reset,
      ),
      this.plot, this.live,
    );
  }

  logButton(axis) {
    const pressed = String(this.log[axis]);
    const made = button(`Log ${axis}`, { "aria-pressed": pressed, class: `button small log-${axis}` }, () => {
      this.log[axis] = !this.log[axis];
      made.setAttribute("aria-pressed", String(this.log[axis]));
      this.zoomTo(null); // a view of the other scale would be a surprise
    });
    return made;
  }

  /** Everything is drawn anew: at 200 curves that takes a few milliseconds. */
  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const height = clamp(width * this.ratio, 260, 460);
    const margin = { left: 70, right: 14, top: 10, bottom: 46 };
    this.box = { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
    this.items = this.content.items();
    this.full = this.content.extent(this.items, this.log);
    const [xs, ys] = this.view || this.full;
    this.x = makeScale(this.log.x, xs, [this.box.left, this.box.right]);
    this.y = makeScale(this.log.y, ys, [this.box.bottom, this.box.top]);
    const marks = svg("g", { class: "marks", "clip-path": `url(#${this.clip})` });
    this.over = svg("g", {});
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren(this.clipPath(), this.axes(width, height), marks, this.over);
    if (this.items.length) this.content.paint(marks, this.items, this.x, this.y, this.log);
    else this.svg.append(svg("text", { class: "empty", x: width / 2, y: height / 2 }, "Nothing selected"));
    this.reset.disabled = this.view === null;
    this.moveCursor(null);
  }

  clipPath() {
    const { left, right, top, bottom } = this.box;
    return svg("clipPath", { id: this.clip },
      svg("rect", { x: left, y: top, width: Math.max(0, right - left), height: bottom - top }));
  }

  axes(width, height) {
    const { left, right, top, bottom } = this.box;
    const grid = svg("g", { class: "grid" });
    for (const value of ticksOf(this.x, clamp(width / 110, 3, 8))) {
      const at = this.x.to(value);
      grid.append(
        svg("line", { x1: at, x2: at, y1: top, y2: bottom }),
        svg("text", { class: "tick-x", x: at, y: bottom + 18, "text-anchor": "middle" }, this.tick.x(value)),
      );
    }
    for (const value of ticksOf(this.y, 5)) {
      const at = this.y.to(value);
      grid.append(
        svg("line", { x1: left, x2: right, y1: at, y2: at }),
        svg("text", { class: "tick-y", x: left - 8, y: at + 4, "text-anchor": "end" }, this.tick.y(value)),
      );
    }
    grid.append(
      svg("path", { class: "frame", d: `M${left},${top}V${bottom}H${right}` }),
      svg("text", { class: "axis-label", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, this.label.x),
      svg("text", {
        class: "axis-label", "text-anchor": "middle",
        transform: `translate(14 ${(top + bottom) / 2}) rotate(-90)`,
      }, this.label.y),
    );
    return grid;
  }

  /* Zoom */

  zoomTo(view) {
    this.view = view;
    if (!view) this.anchor = null;
    this.draw();
  }

  /** Zoom by a factor about a pixel: the pointer, where the cursor was last, or the middle. */
  zoomBy(factor, point = this.focusPoint()) {
    const { left, right, top, bottom } = this.box;
    const cursor = this.cursor;
    const xs = zoomed(this.x, [left, right], (point.x - left) / (right - left), factor);
    const ys = zoomed(this.y, [bottom, top], (bottom - point.y) / (bottom - top), factor);
    this.zoomTo(this.limited(xs, ys));
    this.moveCursor(cursor);
  }

  /** Keep a view inside the full extent; a view that shows everything is no zoom at all. */
  limited(xs, ys) {
    const within = ([low, high], [least, most]) => [Math.max(low, least), Math.min(high, most)];
    const view = [within(xs, this.full[0]), within(ys, this.full[1])];
    const isFull = view.every(([low, high], axis) => low <= this.full[axis][0] && high >= this.full[axis][1]);
    const isEmpty = view.some(([low, high]) => !(high - low > 1e-9 * Math.abs(high)));
    if (isEmpty) return this.view;
    return isFull ? null : view;
  }

  focusPoint() {
    const { left, right, top, bottom } = this.box;
    const place = this.anchor;
    if (!place) return { x: (left + right) / 2, y: (top + bottom) / 2 };
    return { x: clamp(this.x.to(place.x), left, right), y: clamp(this.y.to(place.y), top, bottom) };
  }

  /** A flat drag selects iterations, a tall one a rectangle. */
  zoomToDrag({ from, to }) {
    const { top, bottom } = this.box;
    const flat = Math.abs(from.y - to.y) < 24;
    const xs = [this.x.from(Math.min(from.x, to.x)), this.x.from(Math.max(from.x, to.x))];
    const ys = flat
      ? [this.y.from(bottom), this.y.from(top)]
      : [this.y.from(Math.max(from.y, to.y)), this.y.from(Math.min(from.y, to.y))];
    this.zoomTo(this.limited(xs, ys));
  }

  /** Shift the view so that the keyboard's cursor stays in sight. */
  follow(place) {
    const hasPlace = Number.isFinite(this.x.to(place.x)) && Number.isFinite(this.y.to(place.y));
    if (!this.view || !hasPlace) return;
    const { left, right, top, bottom } = this.box;
    const shift = (scale, pixel, low, high, from, to) => {
      const by = pixel < low ? pixel - low - (high - low) * 0.2 : pixel > high ? pixel - high + (high - low) * 0.2 : 0;
      return [scale.from(from + by), scale.from(to + by)];
    };
    const xs = shift(this.x, this.x.to(place.x), left, right, left, right);
    const ys = shift(this.y, this.y.to(place.y), top, bottom, bottom, top);
    const cursor = this.cursor;
    this.zoomTo(this.limited(xs, ys));
    this.cursor = cursor;
  }

  /* Cursor */

  moveCursor(cursor) {
    this.cursor = cursor;
    const place = cursor && this.content.place(this.items, cursor);
    this.over.replaceChildren();
    this.tip.hidden = !place;
    if (place) this.showPlace(place);
    if (place) this.anchor = place; // a finger has to leave the curve to reach the zoom buttons
    this.content.moved(place);
    markLegend(place ? place.group : null);
  }

  showPlace(place) {
    const { left, right, top, bottom } = this.box;
    const [x, y] = [this.x.to(place.x), this.y.to(place.y)];
    const inside = x >= left - 1 && x <= right + 1 && y >= top - 1 && y <= bottom + 1;
    this.over.append(svg("line", { class: "cursor-line", x1: x, x2: x, y1: top, y2: bottom }));
    if (inside) this.over.append(svg("circle", { class: "cursor-dot", cx: x, cy: y, r: 6, fill: look(place.group).stroke }));
    this.tip.replaceChildren(element("strong", {}, place.head), ...place.lines.map((line) => element("div", {}, line)));
    const room = { x: this.plot.clientWidth - this.tip.offsetWidth, y: bottom - this.tip.offsetHeight };
    const beside = x + 14 > room.x ? x - this.tip.offsetWidth - 14 : x + 14;
    this.tip.style.left = `${clamp(beside, 0, Math.max(0, room.x))}px`;
    this.tip.style.top = `${clamp(y - this.tip.offsetHeight - 12, 0, Math.max(0, room.y))}px`;
  }

  say(place) {
    this.live.textContent = place ? [place.head, ...place.lines].join(", ") : "";
  }

  /* Events */

  listen() {
    const { svg: node, plot } = this;
    node.addEventListener("pointerdown", (event) => this.pointerDown(event));
    node.addEventListener("pointermove", (event) => this.pointerMove(event));
    node.addEventListener("pointerup", (event) => this.pointerUp(event));
    node.addEventListener("pointercancel", () => this.endDrag());
    node.addEventListener("pointerleave", (event) => this.pointerLeave(event));
    node.addEventListener("dblclick", () => this.zoomTo(null));
    node.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    plot.addEventListener("keydown", (event) => this.key(event));
    plot.addEventListener("blur", () => this.moveCursor(null));
  }

  point(event) {
    const frame = this.svg.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  }

  insideBox({ x, y }) {
    const { left, right, top, bottom } = this.box;
    return { x: clamp(x, left, right), y: clamp(y, top, bottom) };
  }

  pointerDown(event) {
    if (event.button !== 0) return;
    this.plot.focus({ preventScroll: true });
    const point = this.insideBox(this.point(event));
    if (event.pointerType === "touch") { // a finger moves the cursor; the buttons zoom
      this.moveCursor(this.content.nearest(this.items, point.x, point.y, this.x, this.y));
      return;
    }
    this.drag = { from: point, to: point };
    this.svg.setPointerCapture(event.pointerId);
  }

  pointerMove(event) {
    const point = this.insideBox(this.point(event));
    if (!this.drag) {
      this.moveCursor(this.content.nearest(this.items, point.x, point.y, this.x, this.y));
      return;
    }
    this.drag.to = point;
    this.moveCursor(null);
    this.over.replaceChildren(this.brush(this.drag));
  }

  /** A mouse takes the cursor along; a lifted finger leaves it, to be read. */
  pointerLeave(event) {
    if (this.drag || event.pointerType === "touch") return;
    this.moveCursor(null);
    this.anchor = null;
  }

  brush({ from, to }) {
    const { top, bottom } = this.box;
    const flat = Math.abs(from.y - to.y) < 24;
    return svg("rect", {
      class: "brush", x: Math.min(from.x, to.x), width: Math.abs(from.x - to.x),
      y: flat ? top : Math.min(from.y, to.y), height: flat ? bottom - top : Math.abs(from.y - to.y),
    });
  }

  pointerUp() {
    const drag = this.drag;
    this.endDrag();
    if (drag && Math.abs(drag.from.x - drag.to.x) > 6) this.zoomToDrag(drag);
  }

  endDrag() {
    this.drag = null;
    this.over.replaceChildren();
  }

  wheel(event) {
    const point = this.point(event);
    const outwards = event.deltaY > 0 && !this.view; // nothing left to show: let the page scroll
    const scrolling = performance.now() - lastScroll < 300 && !event.ctrlKey; // passing by
    if (event.deltaY === 0 || outwards || scrolling || !this.items.length) return;
    event.preventDefault();
    this.zoomBy(Math.exp(clamp(event.deltaY, -120, 120) * 0.0025), this.insideBox(point));
  }

  key(event) {
    const far = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
      Home: [-Infinity, 0], End: [Infinity, 0],
    };
    const zooms = { "+": 0.6, "=": 0.6, "-": 1 / 0.6 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) this.stepCursor(...moves[event.key]);
    else if (zooms[event.key]) this.zoomBy(zooms[event.key]);
    else if (event.key === "0" || event.key === "Escape") this.zoomTo(null);
    else return;
    event.preventDefault();
  }

  stepCursor(dx, dy) {
    if (!this.items.length) return;
    const { left, right, top, bottom } = this.box;
    const start = () => this.content.nearest(this.items, (left + right) / 2, (top + bottom) / 2, this.x, this.y);
    this.cursor = this.cursor ? this.content.step(this.items, this.cursor, dx, dy) : start();
    if (!this.cursor) return; // nothing here has a logarithm
    const place = this.content.place(this.items, this.cursor);
    this.follow(place);
    this.moveCursor(this.cursor);
    this.say(place);
  }
}

let lastScroll = -Infinity;
addEventListener("scroll", () => { lastScroll = performance.now(); }, { passive: true });

/* ---- Content: curves of regret ------------------------------------------------------------- */

const nameOf = ({ group, seed }) => labelOf(group) + (seed === null ? "" : `  seed=${seed}`);

function curvePath(xs, ys, x, y) {
  let path = "";
  let pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (y.log && ys[i] <= 0) { pen = "M"; continue; } // no logarithm: a gap
    path += `${pen}${x.to(xs[i]).toFixed(1)},${y.to(ys[i]).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

function bandPath({ xs, ys, error }, x, y) {
  const floor = y.log ? y.domain[0] : -Infinity;
  const corner = (i, sign) => `${x.to(xs[i]).toFixed(1)},${y.to(Math.max(floor, ys[i] + sign * error[i])).toFixed(1)}`;
  const upper = xs.map((_, i) => corner(i, 1));
  const lower = xs.map((_, i) => corner(i, -1)).reverse();
  return `M${upper.join("L")}L${lower.join("L")}Z`;
}

const curveContent = {
  items: visibleCurves,

  extent(items, log) {
    let [right, top, bottom, ground] = [2, 0, Infinity, 0];
    for (const { xs, ys, error } of items) {
      right = Math.max(right, xs[xs.length - 1]);
      ys.forEach((value, i) => {
        top = Math.max(top, value + (error ? error[i] : 0));
        ground = Math.min(ground, value);
        if (value > 0) bottom = Math.min(bottom, value);
      });
    }
    const high = (top || 1) * (log.y ? 1.15 : 1.04);
    const low = log.y ? (bottom < Infinity ? bottom : high / 10) / 1.15 : ground;
    return [[log.x ? 1 : 0, right], [low, high]];
  },

  paint(layer, items, x, y) {
    const banded = items.filter((curve) => curve.error);
    const opacity = clamp(0.6 / banded.length, 0.04, 0.2); // many that overlap must not add up to a wall
    for (const curve of banded) {
      const fill = look(curve.group).stroke;
      layer.append(svg("path", {
        class: "band", d: bandPath(curve, x, y), fill, "fill-opacity": opacity, "data-group": curve.group,
      }));
    }
    for (const curve of items) {
      const { stroke, dash } = look(curve.group);
      layer.append(svg("path", {
        class: curve.seed === null ? "line" : "line seed", d: curvePath(curve.xs, curve.ys, x, y), stroke,
        "stroke-dasharray": curve.seed === null ? dash : null, "data-group": curve.group,
      }));
    }
  },

  nearest(items, px, py, x, y) {
    let best = null;
    items.forEach(({ xs, ys }, item) => {
      const index = nearestIndex(xs, x.from(px));
      const [dx, dy] = [x.to(xs[index]) - px, y.to(ys[index]) - py];
      const distance = dx * dx + dy * dy;
      if (Number.isFinite(distance) && (!best || distance < best.distance)) best = { item, index, distance };
    });
    return best;
  },

  step(items, { item, index }, dx, dy) {
    const at = items[item].xs[index];
    if (dx) return { item, index: clamp(index + dx, 0, items[item].xs.length - 1) };
    const order = items // the next curve above or below, at this iteration
      .map(({ xs, ys }, other) => ({ item: other, index: nearestIndex(xs, at), value: ys[nearestIndex(xs, at)] }))
      .sort((a, b) => a.value - b.value || a.item - b.item);
    const now = order.findIndex((entry) => entry.item === item);
    return order[clamp(now + dy, 0, order.length - 1)];
  },

  place(items, { item, index }) {
    const { xs, ys, error, group, seed } = items[item];
    const value = `regret ${formatNumber(ys[index])}${formatError(error && error[index], formatNumber)}`;
    return { x: xs[index], y: ys[index], group, head: `iteration ${xs[index]}`, lines: [nameOf({ group, seed }), value] };
  },

  moved: (place) => showLegendValues(place ? place.x : null),
};

/* ---- Content: regret against a cost ---------------------------------------------------------- */

function scatterContent(measure, formatCost) {
  return {
    items: () => visiblePoints(measure),

    extent(items, log) {
      const usable = items.filter(({ x, y }) => (!log.x || x > 0) && (!log.y || y > 0));
      if (!usable.length) return [[1, 10], [1, 10]];
      const xs = usable.map((point) => point.x);
      const ys = usable.flatMap(({ y, error }) => [y - (error || 0), y + (error || 0)]).filter((y) => !log.y || y > 0);
      return [
        padded([Math.min(...xs), Math.max(...xs)], log.x, 0.08),
        padded([Math.min(...ys), Math.max(...ys)], log.y, 0.08),
      ];
    },

    paint(layer, items, x, y) {
      const frontier = paretoFrontier(items.filter((point) => point.seed === null));
      layer.append(svg("path", { class: "frontier", d: stairs(frontier, x, y) }));
      for (const point of items) this.paintPoint(layer, point, frontier.includes(point), x, y);
      this.tellLost(layer, items.filter((point) => (x.log && point.x <= 0) || (y.log && point.y <= 0)), x, y);
    },

    /** A baseline that never communicates has no place on a logarithmic axis: say so. */
    tellLost(layer, lost, x, y) {
      if (!lost.length) return;
      const groups = [...new Set(lost.map((point) => labelOf(point.group)))];
      const who = groups.length > 2 ? `${groups.length} configurations` : groups.join(" and ");
      const at = { class: "lost", x: x.to(x.domain[1]) - 6, y: y.to(y.domain[1]) + 14, "text-anchor": "end" };
      layer.append(svg("text", at, `at 0, not on a log axis: ${who}`));
    },

    paintPoint(layer, { group, seed, x: cost, y: regret, error }, isBest, x, y) {
      const { stroke, shape } = look(group);
      const [px, py] = [x.to(cost), y.to(regret)];
      if (!Number.isFinite(px) || !Number.isFinite(py)) return;
      if (error) {
        const low = Math.max(regret - error, y.log ? y.domain[0] : -Infinity);
        layer.append(svg("line", {
          class: "whisker", x1: px, x2: px, y1: y.to(low), y2: y.to(regret + error), stroke, "data-group": group,
        }));
      }
      layer.append(svg("path", {
        class: seed === null ? "mark" : "mark seed", d: shapePath(shape, px, py, seed === null ? 5.5 : 3),
        stroke, fill: isBest ? stroke : "var(--card)", "data-group": group,
      }));
    },

    nearest(items, px, py, x, y) {
      let best = null;
      items.forEach((point, item) => {
        const distance = Math.hypot(x.to(point.x) - px, y.to(point.y) - py);
        if (Number.isFinite(distance) && (!best || distance <= best.distance)) best = { item, distance };
      });
      return best;
    },

    step(items, { item }, dx, dy) {
      const by = dx ? "x" : "y";
      const order = items.map((_, index) => index).sort((a, b) => items[a][by] - items[b][by] || a - b);
      return { item: order[clamp(order.indexOf(item) + (dx || dy), 0, order.length - 1)] };
    },

    place(items, { item }) {
      const { x, y, group, seed, error } = items[item];
      const lines = [`regret ${formatNumber(y)}${formatError(error, formatNumber)}`, formatCost(x)];
      return { x, y, group, head: nameOf({ group, seed }), lines };
    },

    moved: (place) => highlight(place ? place.group : null),
  };
}

/** The border of what is attained: from each best point right to the next one's cost, then down. */
function stairs(frontier, x, y) {
  if (!frontier.length) return "";
  const [far, near] = [99999, -999]; // beyond the frame; where 0 is on a logarithmic axis
  const corners = frontier.map((point) => [Math.max(near, x.to(point.x)), Math.min(far, y.to(point.y))]);
  const path = corners.map(([px, py]) => `H${px.toFixed(1)}V${py.toFixed(1)}`).join("");
  return `M${corners[0][0].toFixed(1)},${near}${path}H${far}`;
}

/* ---- Legend ------------------------------------------------------------------------------- */

const legendEntries = [];

function buildLegend() {
  DATA.groups.forEach((_, group) => {
    const value = element("span", { class: "value" });
    const entry = element(
      "button", { type: "button", "aria-pressed": "true" },
      swatch(group), element("span", { class: "name" }, labelOf(group)), value,
    );
    entry.addEventListener("click", () => setHidden([group], !state.hidden.has(group)));
    for (const type of ["pointerenter", "focus"]) entry.addEventListener(type, () => highlight(group));
    for (const type of ["pointerleave", "blur"]) entry.addEventListener(type, () => highlight(null));
    legendEntries.push({ entry, value });
    byId("legend").append(element("li", {}, entry));
  });
  const all = DATA.groups.map((_, group) => group);
  byId("show-all").addEventListener("click", () => setHidden(all, false));
  byId("show-none").addEventListener("click", () => setHidden(all, true));
  showLegendValues(null);
}

function setHidden(groups, isHidden) {
  for (const group of groups) {
    if (isHidden) state.hidden.add(group);
    else state.hidden.delete(group);
    legendEntries[group].entry.setAttribute("aria-pressed", String(!isHidden));
  }
  redraw();
}

function markLegend(current) {
  legendEntries.forEach(({ entry }, group) => entry.classList.toggle("current", group === current));
}

/** The legend is the readout of all curves: at an iteration, or at the end. */
function showLegendValues(iteration) {
  const hasError = DATA.groups.some((group) => group.error);
  const where = iteration === null ? "Final regret" : `Regret at iteration ${iteration}`;
  byId("legend-note").textContent = `${where}${hasError ? ", mean ± standard error" : ""}`;
  legendEntries.forEach(({ value }, group) => {
    const { grid, mean, error } = DATA.groups[group];
    const xs = DATA.grids[grid];
    const index = iteration === null ? xs.length - 1 : nearestIndex(xs, iteration);
    const beyond = iteration !== null && iteration > xs[xs.length - 1];
    value.textContent = beyond ? "–" : formatNumber(mean[index]) + formatError(error && error[index], formatNumber);
  });
}

/* ---- Table --------------------------------------------------------------------------------- */

const COLUMNS = [
  { title: "Run", value: (run) => run.path },
  ...DATA.varying.map((title, index) => ({ title, value: (run) => run.settings[index] })),
  { title: "Final regret", value: (run) => run.regret, format: formatNumber },
  { title: "Exchanges", value: (run) => run.exchanges, format: formatNumber },
  { title: "Bytes up", value: (run) => run.up, format: formatByteCell },
  { title: "Bytes down", value: (run) => run.down, format: formatByteCell },
  { title: "Seconds", value: (run) => run.seconds, format: formatNumber },
];
const collator = new Intl.Collator("en", { numeric: true });

/** Numbers by value, before texts; texts as people count: run 10 after run 9. */
function compareValues(a, b) {
  const [x, y] = [a, b].map((value) => (value === "" ? NaN : Number(value)));
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
  return collator.compare(a, b);
}

function tableRow(run) {
  const cells = COLUMNS.map(({ value, format }, index) => {
    if (index > 0) return element("td", {}, format ? format(value(run)) : value(run));
    return element("td", { title: run.path }, swatch(run.group, 26), element("a", { href: run.href }, run.path));
  });
  const row = element("tr", {}, ...cells);
  row.addEventListener("pointerenter", () => highlight(run.group));
  row.addEventListener("pointerleave", () => highlight(null));
  return row;
}

function buildTable() {
  const rows = DATA.runs.map((run) => ({ run, row: tableRow(run) }));
  const heads = COLUMNS.map(({ title }, index) => {
    const control = element("button", { type: "button" }, title);
    control.addEventListener("click", () => sortBy(index));
    return element("th", { scope: "col" }, control);
  });
  const body = document.querySelector("#runs tbody");

  function sortBy(index) {
    const ascending = heads[index].getAttribute("aria-sort") !== "ascending";
    const { value } = COLUMNS[index];
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[index].setAttribute("aria-sort", ascending ? "ascending" : "descending");
    rows.sort((a, b) => (ascending ? 1 : -1) * compareValues(value(a.run), value(b.run)));
    body.replaceChildren(...rows.map(({ row }) => row));
  }

  document.querySelector("#runs thead").append(element("tr", {}, ...heads));
  sortBy(COLUMNS.findIndex(({ title, format }) => title === "Final regret" && format));
}

/* ---- Words ---------------------------------------------------------------------------------- */

function describe() {
  const seeds = DATA.groups.map((group) => group.seeds);
  const [least, most] = [Math.min(...seeds), Math.max(...seeds)];
  const each = least === most ? plural(most, "seed") : `${least} to ${most} seeds`;
  const split = `${plural(DATA.groups.length, "configuration")}${DATA.groups.length > 1 ? `, ${each} each` : `, ${each}`}`;
  byId("counts").textContent = `${plural(DATA.runs.length, "run")}: ${split}`;
  const thinned = DATA.thinned
    ? " The curves are thinned to at most 200 of their iterations; values shown are exact there."
    : "";
  const average = most > 1 ? " Lines are means over seeds, bands one standard error; a repeated seed counts once." : "";
  byId("curves-note").textContent =
    `Average per agent, in units of latent reward.${average}${thinned} Drag, turn the wheel or press + to zoom.`;
  byId("trade-note").textContent =
    "Down and to the left is better. Filled marks lie on the Pareto frontier (dotted): no other configuration"
    + " shown has both less regret and less communication.";
  byId("footer").textContent = `Made ${DATA.created.replace("T", " ")} by python -m simulations.report`;
}

function listSettings() {
  if (!DATA.varying.length) byId("varying").append(element("dd", {}, "Nothing: all runs have the same settings."));
  DATA.varying.forEach((name, index) => {
    const shown = DATA.values[index].slice(0, 24).map((value) => element("span", { class: "chip" }, value));
    const more = DATA.values[index].length - shown.length;
    byId("varying").append(element("dt", {}, name), element("dd", {}, ...shown, more > 0 ? `and ${more} more` : ""));
  });
  for (const [name, value] of DATA.common) {
    byId("common").append(element("div", {}, element("dt", {}, name), element("dd", {}, value === "" ? "(empty)" : value)));
  }
}

function listUnfinished() {
  byId("unfinished-card").hidden = !DATA.unfinished.length;
  for (const { path, reason } of DATA.unfinished) {
    byId("unfinished").append(element("li", {}, element("strong", {}, path), `: ${reason}`));
  }
}

/* ---- Theme: the system's, until the reader says otherwise --------------------------------------- */

function buildTheme() {
  const themes = ["auto", "light", "dark"];
  let now = 0;
  byId("theme").addEventListener("click", () => {
    now = (now + 1) % themes.length;
    byId("theme").textContent = `Theme: ${themes[now]}`;
    if (now) document.documentElement.dataset.theme = themes[now];
    else delete document.documentElement.dataset.theme;
  });
}

/* ---- Together ------------------------------------------------------------------------------- */

function seedsButton() {
  const hasSeeds = DATA.groups.some((group) => group.seeds > 1);
  const made = button("Single seeds", { "aria-pressed": "false", id: "seeds", disabled: hasSeeds ? false : "" }, () => {
    state.seeds = !state.seeds;
    made.setAttribute("aria-pressed", String(state.seeds));
    redraw();
  });
  return made;
}

/** Values that span more than a factor of 20 crowd at one end of a linear axis; 0 needs one. */
function isWide(measure) {
  const values = DATA.groups.map((group) => measure(group.figures));
  return Math.min(...values) > 0 && Math.max(...values) > 20 * Math.min(...values);
}

function buildCharts() {
  new Chart(byId("curves"), {
    title: "Cumulative regret against iterations", heading: "", ratio: 0.56, content: curveContent,
    label: { x: "iteration", y: "cumulative regret" }, tick: { x: formatTick, y: formatTick }, extra: [seedsButton()],
  });
  const bytes = (figures) => figures.up + figures.down;
  const scatters = [
    ["by-exchanges", "exchanges", (figures) => figures.exchanges, formatTick, (cost) => `exchanges ${formatNumber(cost)}`],
    ["by-bytes", "bytes of all agents, up and down", bytes, (value) => formatBytes(value), (cost) => `${formatBytes(cost)} up and down`],
  ];
  for (const [id, name, measure, tick, words] of scatters) {
    new Chart(byId(id), {
      title: `Final regret against ${name}`, heading: `By ${name}`, ratio: 0.7,
      log: { x: isWide(measure), y: isWide((figures) => figures.regret) },
      content: scatterContent(measure, words), label: { x: name, y: "final regret" }, tick: { x: tick, y: formatTick },
    });
  }
}

describe();
listSettings();
buildTheme();
buildLegend();
buildCharts();
buildTable();
listUnfinished();
