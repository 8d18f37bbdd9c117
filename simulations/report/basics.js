"use strict";
// The data of the runs is one block of JSON. It is not trusted: the page uses it only as text nodes,
// as numbers, and as links that the generator has quoted.
const DATA = JSON.parse(document.getElementById("data").textContent);

/* ---- Numbers as text ------------------------------------------------------------------- */

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function formatNumber(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const digits = size >= 1 ? 2 : clamp(3 - Math.floor(Math.log10(size)), 2, 6); // or four significant digits
  return value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits });
}

/** Bytes with a decimal unit; `format` writes the number, here with four significant digits. */
function formatBytes(value, format = (number) => Number(number.toPrecision(4)).toLocaleString("en")) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = value < 1 ? 0 : clamp(Math.floor(Math.log10(value) / 3), 0, units.length - 1);
  return `${format(value / 1000 ** power)} ${units[power]}`;
}

/** Bytes in a column, with three digits, so that 56.0 kB and 1.70 MB are aligned. */
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

/** Widen an interval so that marks at its ends are not clipped; by a factor if logarithmic. */
function padded([low, high], log, share) {
  if (log) {
    const factor = high > low ? (high / low) ** share : 1.5;
    return [low / factor, high * factor];
  }
  const pad = high > low ? (high - low) * share : Math.abs(high) * 0.1 || 1;
  return [low - pad, high + pad];
}

/** Zoom an interval of a scale by a factor about a point, given as a share of the interval. */
function zoomed(scale, [from, to], share, factor) {
  const at = from + (to - from) * share;
  return [scale.from(at + (from - at) * factor), scale.from(at + (to - at) * factor)];
}

/* ---- Elements of the page ---------------------------------------------------------------- */

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
  node.append(...children); // strings become text nodes and are not parsed as markup
  return node;
}

function button(text, attributes, onClick) {
  const made = element("button", { type: "button", class: "button small", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

/* ---- Styles of configurations: hue, dash and shape ------------------------------------- */

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

/* ---- State: shared by legend, charts and table ------------------------------------ */

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

/** Visible curves: the mean of each configuration and, optionally, its single seeds. */
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

/** Visible points of a scatter plot. */
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

/** Pareto-optimal points in regret and cost, sorted by cost; equal points are kept. */
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
