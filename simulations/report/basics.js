/* The data of the runs is one block of JSON. It is not trusted: the page uses it as text nodes, as
   numbers, as links that the generator has quoted, and escaped where a library takes markup. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const BEST = 12; // groups that are shown at first
const UNUSED = "not used";

const byId = (id) => document.getElementById(id);

/** Create an element; functions are listeners, strings become text nodes. */
function h(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const escaped = (text) => text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
const cut = (text, most = 60) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** Return a format with fixed digits, so that the numbers of a column are aligned. */
const fixed = (digits) => (value) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 10 ** -digits)) return value.toExponential(2);
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
};
const formatRegret = fixed(2);
const formatCount = (value) => fixed(Number.isInteger(value) || value >= 100 ? 0 : 1)(value);

function formatBytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = value < 1 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), units.length - 1);
  const number = value / 1000 ** power;
  return `${power === 0 ? formatCount(number) : number.toFixed(number < 10 ? 2 : number < 100 ? 1 : 0)} ${units[power]}`;
}

const MEASURES = {
  exchanges: { title: "Exchanges", format: formatCount },
  up: { title: "Bytes up", format: formatBytes },
  down: { title: "Bytes down", format: formatBytes },
  seconds: { title: "Seconds", format: fixed(2) },
};
const PREDICTIONS = { log_loss: "Log loss", accuracy: "Accuracy" };
const formatPrediction = fixed(4);

/* ---- Runs ------------------------------------------------------------------------------------ */

DATA.runs.forEach((run, index) => {
  run.index = index;
  run.shown = run.settings.map((place, setting) => DATA.settings[setting].values[place]);
  const words = run.shown.flatMap((value, setting) => {
    const { name, varies } = DATA.settings[setting];
    return varies && value !== UNUSED ? [`${name}=${value}`] : [];
  });
  run.words = [run.path, ...words].join("\n").toLowerCase();
});

/** Decode base64 of float32; JavaScript and the file are both little-endian. */
const decoded = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const curveOf = (run) => (run.values ??= decoded(run.curve));
const iterationsOf = (length) => DATA.iterations.slice(0, length);

/* ---- State: what is selected and shown ------------------------------------------------------- */

const state = { grouping: 0, search: "", filters: new Map(), shown: new Set(), picked: new Set(), single: false };
const grouping = () => DATA.groupings[state.grouping];

function selectedRuns() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const filters = [...state.filters].filter(([, places]) => places.size);
  return DATA.runs.filter((run) =>
    words.every((word) => run.words.includes(word))
    && filters.every(([setting, places]) => places.has(run.settings[setting])));
}

/** Groups of runs in the current grouping, with their statistics. */
function summaries(runs) {
  const { groups, of } = grouping();
  const members = new Map();
  for (const run of runs) members.set(of[run.index], [...(members.get(of[run.index]) ?? []), run]);
  const algorithms = new Set([...members.keys()].map((index) => groups[index].algorithm));
  return [...members].sort(([a], [b]) => a - b).map(([index, all]) => {
    // A run that was repeated with equal settings counts once.
    const distinct = [...new Map(all.toReversed().map((run) => [run.settings.join(), run])).values()].reverse();
    const measured = ["regret", ...Object.keys(MEASURES), ...DATA.predictions]
      .map((name) => [name, statistics(distinct.map((run) => run[name]).filter((value) => value !== undefined))]);
    const style = algorithms.size > 1 ? groups[index].style : groups[index].alone;
    return { ...style, label: groups[index].label, ...Object.fromEntries(measured), index, runs: distinct };
  });
}

function statistics(values) {
  if (!values.length) return { mean: null, error: null, median: null };
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return { ...meanAndError(sorted), median };
}

/** Mean and its standard error; the error of one value is null. */
function meanAndError(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  if (values.length === 1) return { mean, error: null };
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, error: Math.sqrt(squares / (values.length - 1) / values.length) };
}

/** Mean curve of runs, up to the end of the shortest. */
function meanCurve(runs) {
  const curves = runs.map(curveOf);
  const xs = iterationsOf(Math.min(...curves.map((curve) => curve.length)));
  const points = xs.map((_, i) => meanAndError(Float64Array.from(curves, (curve) => curve[i])));
  return { xs, ys: points.map(({ mean }) => mean), errors: runs.length > 1 ? points.map(({ error }) => error) : null };
}

/** Pareto-optimal points in regret (y) and cost (x), sorted by cost; equal points are kept. */
function paretoFrontier(points) {
  let best = { x: NaN, y: Infinity };
  return [...points].sort((a, b) => a.x - b.x || a.y - b.y).filter((point) => {
    const isBetter = point.y < best.y;
    const isEqual = point.y === best.y && point.x === best.x;
    if (isBetter) best = point;
    return isBetter || isEqual;
  });
}
