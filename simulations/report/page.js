/* ---- Content: curves of regret ------------------------------------------------------------- */

const nameOf = ({ group, seed }) => labelOf(group) + (seed === null ? "" : `  seed=${seed}`);

function curvePath(xs, ys, x, y) {
  let path = "";
  let pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (y.log && ys[i] <= 0) { pen = "M"; continue; } // no logarithm: leave a gap
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
    const opacity = clamp(0.6 / banded.length, 0.04, 0.2); // many overlapping bands stay transparent
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

    /** Note groups that never communicate: 0 is not on a logarithmic axis. */
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

/** The staircase of the Pareto frontier. */
function stairs(frontier, x, y) {
  if (!frontier.length) return "";
  const [far, near] = [99999, -999]; // outside the frame; used for 0 on a logarithmic axis
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

/** Show the values of all curves in the legend, at an iteration or at the end. */
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

const PREDICTIONS = { log_loss: "Log loss", accuracy: "Accuracy" };
const COLUMNS = [
  { title: "Run", value: (run) => run.path },
  ...DATA.varying.map((title, index) => ({ title, value: (run) => run.settings[index] })),
  { title: "Final regret", value: (run) => run.regret, format: formatNumber },
  ...DATA.predictions.map((name) => (
    { title: PREDICTIONS[name], value: (run) => run[name] ?? "", format: (value) => (value === "" ? "–" : formatNumber(value)) }
  )),
  { title: "Exchanges", value: (run) => run.exchanges, format: formatNumber },
  { title: "Bytes up", value: (run) => run.up, format: formatByteCell },
  { title: "Bytes down", value: (run) => run.down, format: formatByteCell },
  { title: "Seconds", value: (run) => run.seconds, format: formatNumber },
];
const collator = new Intl.Collator("en", { numeric: true });

/** Compare numbers by value, before texts; numbers in texts by value, too. */
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

/* ---- Texts ---------------------------------------------------------------------------------- */

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
  if (!DATA.varying.length) byId("varying").append(element("dd", {}, "No setting: all runs have the same settings."));
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

/* ---- Theme: the system's by default -------------------------------------------------------------- */

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

/* ---- Assembly ------------------------------------------------------------------------------- */

function seedsButton() {
  const hasSeeds = DATA.groups.some((group) => group.seeds > 1);
  const made = button("Single seeds", { "aria-pressed": "false", id: "seeds", disabled: hasSeeds ? false : "" }, () => {
    state.seeds = !state.seeds;
    made.setAttribute("aria-pressed", String(state.seeds));
    redraw();
  });
  return made;
}

/** Use a logarithmic axis for values that span more than a factor of 20, unless one is 0. */
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
