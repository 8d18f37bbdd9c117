"use strict";
/* The data of the runs is one block of JSON. It is not trusted: texts become text nodes, or are escaped by DataTables
   and by the generator where a library takes markup. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 40rem)");
const scheme = matchMedia("(prefers-color-scheme: dark)");

/** Create an element; functions are listeners, strings become text nodes. */
function h(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node[typeof value === "function" ? "addEventListener" : "setAttribute"](key, value);
  node.append(...children);
  return node;
}

/** Return a value with the colors of the present scheme; all colors in it are for white. */
const themed = (value) => (scheme.matches
  ? JSON.parse(JSON.stringify(value).replace(/#[0-9a-f]{6}/g, (color) => DATA.dark[color] ?? color)) : value);

/** Return a number with fixed digits, so that the numbers of a column are aligned. */
function shown(number, digits = 2) {
  if (!Number.isFinite(number)) return "–";
  if (number && Math.abs(number) < 10 ** -digits) return number.toExponential(2);
  return number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/* ---- Charts ---------------------------------------------------------------------------------- */

/** Make a chart with buttons for scales and export, read by keys; return the function that draws a figure. */
function makeChart(id, title) {
  const live = h("p", { class: "unseen", "aria-live": "polite" });
  const label = `${title}, a chart. Left and right: along the curve. Up and down: another curve. Plus and minus: zoom. 0: all.`;
  const plot = h("div", { class: "plot", tabindex: 0, role: "group", "aria-label": label });
  let figure = null;
  const types = { x: "linear", y: "linear" };
  /** Return the number of lines of the legend. */
  const lines = (showsAll) => figure.data.filter(({ visible = true, showlegend = showsAll }) => visible && showlegend).flatMap(({ name }) => name.split("<br>")).length;
  /** Return the layout; the chart is high enough for a legend beside it, or higher with a legend below it. */
  function layout(isBelow) {
    const all = { ...figure.layout };
    for (const axis of ["x", "y"]) all[`${axis}axis`] = { ...all[`${axis}axis`], type: types[axis] };
    const rows = lines(all.showlegend);
    if (!isBelow) return { ...all, height: Math.max(all.height, 20 * rows + 60) };
    const legend = { ...all.legend, itemwidth: 30, x: -0.1, y: -0.2, yanchor: "top" };
    return { ...all, legend, hoverlabel: { ...all.hoverlabel, font: { size: 9 } }, height: 360 + 20 * rows, margin: { ...all.margin, b: 50 + 20 * rows } };
  }
  const config = { responsive: true, displaylogo: false, displayModeBar: true, modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  function draw() {
    const next = themed({ data: figure.data, layout: layout(narrow.matches), config });
    plot.style.height = `${next.layout.height}px`;
    Plotly.react(plot, next);
  }
  const scale = (axis) => h("button", { type: "button", "aria-pressed": "false", class: `log-${axis}`, click: ({ currentTarget }) => {
    types[axis] = types[axis] === "log" ? "linear" : "log";
    currentTarget.setAttribute("aria-pressed", String(types[axis] === "log"));
    draw();
  } }, `Log ${axis}`);
  const save = (format) => h("button", { type: "button", class: `save-${format}`, "aria-label": `Save ${title} as ${format.toUpperCase()}`, click: () => Plotly.downloadImage(
    { data: figure.data, layout: { ...layout(), paper_bgcolor: "#ffffff", showlegend: true, height: null } },
    { format, filename: id, width: 900, height: Math.max(560, 20 * lines(true) + 60), scale: format === "png" ? 3 : 1 },
  ) }, format.toUpperCase());
  byId(id).append(h("div", { class: "row" }, scale("x"), scale("y"), save("svg"), save("png")), plot, live);
  plot.addEventListener("keydown", keysOf(plot, live));
  plot.addEventListener("blur", () => Plotly.Fx.unhover(plot));
  return (next) => { figure = next; draw(); };
}

/** Return a listener by which keys move between the points of a chart, and zoom. */
function keysOf(plot, live) {
  let [curve, point] = [-1, 0];
  const traces = () => plot.calcdata.map((points) => points[0].trace).filter((trace) => trace.hovertemplate && trace.visible === true);
  const zooms = { "+": "in", "=": "in", "-": "out", 0: "reset" };
  function move(dx, dy) {
    const order = traces().toSorted((a, b) => a.y.at(-1) - b.y.at(-1));
    if (!order.length) return;
    let place = order.findIndex(({ index }) => index === curve);
    if (place < 0) [place, point] = [0, order[0].x.length >> 1];
    else if (dy || order[place].x.length === 1) place = Math.min(Math.max(place + (dy || Math.sign(dx)), 0), order.length - 1);
    else point += dx;
    const trace = order[place];
    [curve, point] = [trace.index, Math.min(Math.max(point, 0), trace.x.length - 1)];
    const error = trace.customdata?.[point];
    live.textContent = `${trace.name.replaceAll("<br>", " ")}: ${shown(trace.x[point])}, ${shown(trace.y[point])}${error ? ` ± ${shown(error)}` : ""}`;
    Plotly.Fx.hover(plot, plot.layout.hovermode === "closest" ? [{ curveNumber: curve, pointNumber: point }] : { xval: trace.x[point] });
  }
  return (event) => {
    const far = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], Home: [-1e9, 0], End: [1e9, 0] };
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== plot) return;
    if (moves[event.key]) move(...moves[event.key]);
    else if (zooms[event.key]) plot.querySelector(`.modebar-btn[data-val="${zooms[event.key]}"]`).click();
    else return;
    event.preventDefault();
  };
}

/* ---- Tables ---------------------------------------------------------------------------------- */

const text = DataTable.render.text();

function makeTable(id, { columns, rows }, options, isSelectable = false) {
  const pick = { title: '<span class="unseen">Select</span>', data: null, className: "dt-select", orderable: false, defaultContent: "", render: DataTable.render.select(), columnControl: [] };
  const columnOf = ({ title, kind, digits }, place) => ({
    title: text.display(title), data: place, ...(kind === "number" && { type: "num" }), className: place ? kind : "name", visible: kind !== "path",
    render: kind === "number" ? (value, type) => (type === "display" ? shown(value, digits) : value) : text,
    columnControl: ["order", kind === "text" && place ? ["searchList"] : "searchDropdown"],
  });
  const exportOptions = { columns: ":not(.dt-select)", orthogonal: "export", stripHtml: false, decodeEntities: false };
  const csv = { extend: "csvHtml5", text: "CSV", filename: id, bom: true, exportOptions };
  const all = [...(isSelectable ? [pick] : []), ...columns.map(columnOf)];
  byId(id).append(h("thead", {}, h("tr", {}, ...all.map(() => h("th", { scope: "col" })))));
  const clear = h("button", { type: "button", click: () => table.search("").columns().columnControl.searchClear().draw().table().container().querySelector("input[type=search]").focus() }, "Clear filter");
  const info = h("div", { role: "status" });
  const table = new DataTable(byId(id), {
    columns: all, data: rows, autoWidth: false, ordering: { handler: false, indicators: false },
    layout: { topStart: { buttons: [csv, { extend: "colvis", text: "Columns" }] }, topEnd: "search", bottomStart: () => info },
    language: { zeroRecords: `No ${id} match.`, search: "Search" },
    drawCallback() {
      const { start, end, recordsDisplay: found, recordsTotal: total } = this.api().page.info();
      info.replaceChildren(...(found < total ? [`${found} of ${total} ${id} match`, clear] : [`${start + 1} to ${end} of ${total} ${id}`]));
    },
    ...options,
  });
  table.table().container().querySelector("nav").setAttribute("aria-label", `Pages of ${id}`);
  return table;
}

/** Show the columns that differ, or names on a narrow screen, but not the last ones if they do not fit. */
function arrange(table, { columns, rows }) {
  const skip = table.columns().count() - columns.length; // the column of checkboxes
  const show = (place, isVisible) => table.column(place + skip).visible(isVisible, false);
  const differs = columns.map(({ kind }, place) => place && kind === "text" && !narrow.matches && new Set(rows.map((row) => row[place])).size > 1);
  columns.forEach(({ kind }, place) => show(place, place ? kind === "number" || differs[place] : skip || !differs.some(Boolean)));
  table.draw(false);
  for (let place = columns.length - 1, node = table.table().node(); place && node.offsetWidth > node.parentElement.clientWidth; place--) if (!columns[place].title.endsWith("regret")) show(place, false);
}

/* ---- Groups: the rows on the page of the table are in the charts -------------------------------- */

const groupings = Object.entries(DATA.groupings);
const drawGroups = {
  regret: makeChart("regret", "Cumulative regret"),
  exchanges: makeChart("exchanges", "Regret against exchanges"),
  bytes: makeChart("bytes", "Regret against bytes per agent"),
};
const CHANNELS = ["color", "dash", "marker"];
let present = groupings[0][1];
const dashOf = (lengths) => lengths.map((length) => `${2 * length}px`).join() || "solid";

/** Return color, dash and marker of a group: each encodes the value of one setting. */
const styleOf = (index) => Object.fromEntries(CHANNELS.map((channel) => {
  const key = byId(channel).value || present.encoding[channel];
  return [channel, present.scales[key][present.levels[index][key] ?? 0][channel]];
}));

const groups = makeTable("groups", present.table, {
  pageLength: 20,
  order: [[present.table.columns.findIndex(({ title }) => title === "Mean regret"), "asc"]],
  rowCallback: (row, _, __, ___, index) => { row.style.setProperty("--group", themed(styleOf(index).color)); },
});

/** Return a trace in the style of its group; curves have marks only if these encode another setting. */
function styled(trace, isFilled) {
  const { color, dash: lengths, marker } = styleOf(trace.meta);
  if (trace.fill) return { ...trace, fillcolor: `${color}26` };
  if (trace.mode === "markers") return { ...trace, marker: { symbol: isFilled ? marker : `${marker}-open`, size: 11, color, line: { width: 2, color } } };
  const isMarked = ![byId("color").value, byId("dash").value].includes(byId("marker").value);
  return { ...trace, mode: isMarked ? "lines+markers" : "lines", line: { color, dash: dashOf(lengths), width: 2.25 }, marker: { symbol: marker, color, size: 8, maxdisplayed: 6 } };
}

function drawCharts() {
  const chosen = new Set(groups.rows({ page: "current", search: "applied" }).indexes().toArray());
  for (const [name, draw] of Object.entries(drawGroups)) {
    const { data, layout } = present.charts[name];
    byId(name).hidden = !chosen.size;
    const points = data.filter(({ mode, meta }) => mode === "markers" && chosen.has(meta)).toSorted((a, b) => a.x[0] - b.x[0]);
    const best = points.filter(({ x: [x], y: [y] }) => !points.some((other) => other.x[0] <= x && other.y[0] <= y && (other.x[0] < x || other.y[0] < y)));
    const frontier = { x: best.flatMap(({ x }) => x), y: best.flatMap(({ y }) => y), mode: "lines", line: { shape: "hv", dash: "dot", width: 1.5, color: "#1a2027" }, hoverinfo: "skip", showlegend: false };
    draw({ data: [frontier, ...data.map((trace) => ({ ...styled(trace, best.includes(trace)), visible: chosen.has(trace.meta) }))], layout });
  }
}

function groupBy(grouping) {
  present = grouping;
  for (const channel of CHANNELS) {
    byId(channel).replaceChildren(...Object.keys(present.scales).map((key) => h("option", {}, key)));
    byId(channel).value = present.encoding[channel];
  }
  byId("mixed").hidden = !present.mixed;
  groups.clear().rows.add(present.table.rows);
  follow();
}

function restyle() {
  const others = Object.keys(present.scales).filter((key) => !CHANNELS.some((channel) => byId(channel).value === key));
  byId("unstyled").textContent = others.length ? `In the names only: ${others.join(", ")}.` : "";
  groups.rows().invalidate();
  arrange(groups, present.table);
}

/* ---- Directions in which people differ ----------------------------------------------------------- */

byId("directions").closest("section").hidden = !DATA.directions;
if (DATA.directions) makeTable("directions", DATA.directions, { order: [], rowCallback: ({ cells }, row) => { cells[1].style.setProperty("--share", `${row[1]}%`); } });

/* ---- Comparison of the selected runs ----------------------------------------------------------- */

const drawSelected = makeChart("selected", "Curves of the selected runs");
const runs = makeTable("runs", DATA.runs, {
  select: { style: "multi", selector: "td.dt-select", headerCheckbox: false },
  pageLength: 25, order: [[2, "asc"]],
  rowCallback: ({ cells: [box, name] }, _, __, ___, index) => {
    box.querySelector("input")?.setAttribute("aria-label", `Select ${DATA.runs.rows[index][0]}`);
    name.replaceChildren(h("a", { href: DATA.links[index] }, DATA.runs.rows[index][0]));
  },
}, true);

function compare() {
  const chosen = runs.rows({ selected: true }).indexes().toArray();
  byId("comparison").hidden = !chosen.length;
  if (!chosen.length) return;
  const lines = DATA.runs.columns.map(({ title, kind, digits }, place) => [title, ...chosen.map((index) => DATA.runs.rows[index][place]).map((value) => (kind === "number" ? shown(value, digits) : value))]);
  const notes = new Set(chosen.flatMap((index) => Object.keys(DATA.details[index].notes)));
  for (const note of notes) lines.push([note, ...chosen.map((index) => DATA.details[index].notes[note] ?? "")]);
  fill(byId("differences"), lines);

  const offered = new Set(chosen.flatMap((index) => Object.keys(DATA.details[index].curves)));
  const measure = offered.has(byId("measure").value) ? byId("measure").value : [...offered][0];
  byId("measure").replaceChildren(...[...offered].map((name) => h("option", {}, name)));
  byId("measure").value = measure;
  const { layout } = present.charts.regret;
  const data = chosen.flatMap((index, number) => {
    const { color, curves: { [measure]: curve } } = DATA.details[index];
    const line = { width: 2, color, dash: dashOf(DATA.dashes[number % DATA.dashes.length]) };
    return curve ? [{ ...curve, line, mode: "lines", name: text.display(DATA.runs.rows[index][0]), hovertemplate: "%{y:,.5~g}" }] : [];
  });
  drawSelected({ data: data.toSorted((a, b) => b.end - a.end), layout: { ...layout, yaxis: { ...layout.yaxis, title: { text: measure } } } });
}

/** Fill a table of texts and numbers; rows with differing values are bold. */
function fill(table, lines) {
  const row = ([name, ...values]) => h("tr", { class: new Set(values).size > 1 ? "differs" : "" }, h("th", { scope: "row" }, name), ...values.map((value) => h("td", {}, value)));
  table.replaceChildren(...lines.map(row));
}

/* ---- Assembly ---------------------------------------------------------------------------------- */

byId("counts").textContent = `${DATA.runs.rows.length.toLocaleString("en")} runs. Made ${new Date(DATA.created).toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short" })}.`;
byId("widths").hidden = !DATA.note;
byId("widths").textContent = `Note: ${DATA.note}.`;
fill(byId("common"), Object.entries(DATA.common));
byId("unfinished").hidden = !DATA.unfinished.length;
byId("unfinished").querySelector("ul").append(...DATA.unfinished.map(([path, reason]) => h("li", {}, `${path}: ${reason}`)));
byId("grouping").append(...groupings.map(([title]) => h("option", {}, title)));
byId("grouping").addEventListener("change", ({ target }) => groupBy(groupings[target.selectedIndex][1]));
byId("measure").addEventListener("change", compare);
for (const channel of CHANNELS) byId(channel).addEventListener("change", restyle);
groups.on("draw", drawCharts);
runs.on("select deselect", compare);
function follow() {
  document.documentElement.classList.toggle("dark", scheme.matches);
  arrange(runs, DATA.runs);
  restyle();
  compare();
}
for (const query of [scheme, narrow]) query.addEventListener("change", follow);
groupBy(groupings[0][1]);
performance.mark("report-ready");
