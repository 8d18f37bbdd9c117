"use strict";
/* The data of the runs is one block of JSON. It is not trusted: texts become text nodes, or are escaped by DataTables
   and by the generator where a library takes markup. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const SHOWN = 12; // groups on a page of their table, and in the charts
const byId = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 40rem)");
const scheme = matchMedia("(prefers-color-scheme: dark)");

/** Create an element; functions are listeners, strings become text nodes. */
function h(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else node.setAttribute(key, value);
  }
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

const HELP = "Left and right: along the curve. Up and down: another curve. Plus and minus: zoom. 0: all.";

/** Make a chart with buttons for scales and export, read by keys; return the function that draws a figure. */
function makeChart(id, title) {
  const live = h("p", { class: "unseen", "aria-live": "polite" });
  const plot = h("div", { class: "plot", tabindex: 0, role: "group", "aria-label": `${title}, a chart. ${HELP}` });
  let figure = null;
  const log = {};
  const layout = () => ({
    ...figure.layout,
    legend: narrow.matches ? { orientation: "h", y: -0.25 } : {},
    xaxis: { ...figure.layout.xaxis, type: log.x ? "log" : "linear" },
    yaxis: { ...figure.layout.yaxis, type: log.y ? "log" : "linear" },
  });
  const config = { responsive: true, displaylogo: false, displayModeBar: true, modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  const draw = () => Plotly.react(plot, ...themed([figure.data, layout()]), config);
  const scale = (axis) => h("button", {
    type: "button", "aria-pressed": "false", class: `log-${axis}`,
    click: ({ currentTarget }) => {
      log[axis] = !log[axis];
      currentTarget.setAttribute("aria-pressed", String(log[axis]));
      draw();
    },
  }, `Log ${axis}`);
  const save = (format) => h("button", {
    type: "button", class: `save-${format}`, "aria-label": `Save ${title} as ${format.toUpperCase()}`,
    click: () => Plotly.downloadImage(
      { data: figure.data, layout: { ...layout(), paper_bgcolor: "#ffffff", showlegend: true, height: null } },
      { format, filename: id, width: 900, height: 560, scale: format === "png" ? 3 : 1 },
    ),
  }, format.toUpperCase());
  byId(id).append(h("div", { class: "row" }, scale("x"), scale("y"), save("svg"), save("png")), plot, live);
  plot.addEventListener("keydown", keysOf(plot, live));
  return (next) => {
    figure = next;
    return draw();
  };
}

/** Return a listener by which keys move between the points of a chart, and zoom. */
function keysOf(plot, live) {
  let [curve, point] = [-1, 0];
  const traces = () => plot.calcdata.map((points) => points[0].trace).filter((trace) => trace.hovertemplate && trace.visible === true);
  const zooms = { "+": "in", "=": "in", "-": "out", 0: "reset" };
  function move(dx, dy) {
    const found = traces();
    if (!found.length) return;
    const order = found.toSorted((a, b) => a.y.at(-1) - b.y.at(-1));
    let place = order.findIndex(({ index }) => index === curve);
    if (place < 0) [place, point] = [0, order[0].x.length >> 1];
    else if (dy || order[place].x.length === 1) place = Math.min(Math.max(place + (dy || Math.sign(dx)), 0), order.length - 1);
    else point += dx;
    const trace = order[place];
    [curve, point] = [trace.index, Math.min(Math.max(point, 0), trace.x.length - 1)];
    const error = trace.customdata?.[point];
    live.textContent = `${trace.name}: ${shown(trace.x[point])}, ${shown(trace.y[point])}${error ? ` ± ${shown(error)}` : ""}`;
    Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: point }]);
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
const escaped = (name) => text.display(name);

function makeTable(id, { columns, rows }, options, isSelectable = false) {
  const pick = { title: '<span class="unseen">Select</span>', data: null, className: "dt-select", orderable: false, defaultContent: "", render: DataTable.render.select(), columnControl: [] };
  const columnOf = ({ title, kind, digits }, place) => ({
    title: escaped(title), data: place, className: place ? kind : "name",
    render: kind === "text" ? text : (value, type) => (type === "display" ? shown(value, digits) : value),
    columnControl: ["order", kind === "text" && place ? ["searchList"] : "searchDropdown"],
  });
  const csv = {
    extend: "csvHtml5", text: "CSV", filename: id, bom: true,
    exportOptions: { columns: ":not(.dt-select)", orthogonal: "export", stripHtml: false, decodeEntities: false },
  };
  const all = [...(isSelectable ? [pick] : []), ...columns.map(columnOf)];
  byId(id).append(h("thead", {}, h("tr", {}, ...all.map(() => h("th", { scope: "col" })))));
  const table = new DataTable(byId(id), {
    columns: all, data: rows, autoWidth: false, ordering: { handler: false, indicators: false },
    layout: { topStart: { buttons: [csv, { extend: "colvis", text: "Columns" }] }, topEnd: "search" },
    ...options,
  });
  table.table().container().querySelector("nav").setAttribute("aria-label", `Pages of ${id}`);
  return table;
}

/* ---- Groups: the rows on the page of the table are in the charts -------------------------------- */

const groupings = Object.entries(DATA.groupings);
const drawCost = { exchanges: makeChart("exchanges", "Regret against exchanges"), bytes: makeChart("bytes", "Regret against bytes") };
const drawGroups = { regret: makeChart("regret", "Cumulative regret"), ...drawCost };
let { charts: figures, colors } = groupings[0][1];
const columns = groupings[0][1].table.columns;
const groups = makeTable("groups", groupings[0][1].table, {
  pageLength: SHOWN, lengthMenu: [5, SHOWN, 25, 100],
  order: [[columns.findIndex(({ title }) => title === "Mean regret"), "asc"]],
  rowCallback: (row, _, __, ___, index) => { row.cells[0].style.borderLeft = `6px solid ${themed(colors[index])}`; },
});

function drawCharts() {
  const visible = new Set(groups.rows({ page: "current", search: "applied" }).indexes().toArray());
  for (const [name, draw] of Object.entries(drawGroups)) {
    const { data, layout } = figures[name];
    draw({ data: data.map((trace) => ({ ...trace, visible: visible.has(trace.meta) })), layout });
  }
}

function groupBy({ table, charts: others, colors: own }) {
  [figures, colors] = [others, own];
  groups.clear().rows.add(table.rows);
  const varies = (place) => new Set(table.rows.map((row) => row[place])).size > 1;
  const settings = [...columns.keys()].filter((place) => place && columns[place].kind === "text");
  columns.forEach(({ kind }, place) => groups.column(place).visible(place ? kind !== "text" || varies(place) : !settings.some(varies), false));
  groups.draw();
}

/* ---- Comparison of the selected runs ----------------------------------------------------------- */

const drawSelected = makeChart("selected", "Curves of the selected runs");
const runs = makeTable("runs", DATA.runs, {
  select: { style: "multi", selector: "td.dt-select", headerCheckbox: false },
  pageLength: 25,
  order: [[2, "asc"]],
  rowCallback: (row, _, __, ___, index) => {
    const [box, name] = row.cells;
    box.querySelector("input")?.setAttribute("aria-label", `Select ${DATA.runs.rows[index][0]}`);
    name.replaceChildren(h("a", { href: DATA.links[index] }, DATA.runs.rows[index][0]));
  },
}, true);

function compare() {
  const chosen = runs.rows({ selected: true }).indexes().toArray();
  byId("comparison").hidden = !chosen.length;
  if (!chosen.length) return;
  const names = chosen.map((index) => DATA.runs.rows[index][0]);
  const lines = DATA.runs.columns.map(({ title, kind, digits }, place) => [title, ...chosen.map((index) => {
    const value = DATA.runs.rows[index][place];
    return kind === "number" ? shown(value, digits) : value;
  })]);
  const notes = new Set(chosen.flatMap((index) => Object.keys(DATA.details[index].notes)));
  for (const note of notes) lines.push([note, ...chosen.map((index) => DATA.details[index].notes[note] ?? "")]);
  fill(byId("differences"), lines);

  const offered = new Set(chosen.flatMap((index) => Object.keys(DATA.details[index].curves)));
  const measure = offered.has(byId("measure").value) ? byId("measure").value : [...offered][0];
  byId("measure").replaceChildren(...[...offered].map((name) => h("option", {}, name)));
  byId("measure").value = measure;
  const { layout } = figures.regret;
  const data = chosen.flatMap((index, number) => {
    const curve = DATA.details[index].curves[measure];
    return curve ? [{
      ...curve, mode: "lines", name: escaped(names[number]), hovertemplate: `iteration %{x:,}<br>${measure} %{y:,.5~g}`,
      line: { width: 2, color: PALETTE[number % PALETTE.length], dash: DASHES[Math.floor(number / PALETTE.length) % DASHES.length] },
    }] : [];
  });
  drawSelected({ data, layout: { ...layout, yaxis: { ...layout.yaxis, title: { text: measure } } } });
}

const PALETTE = DATA.palette;
const DASHES = ["solid", "dash", "dot", "dashdot"];

/** Fill a table of texts and numbers; rows with differing values are bold. */
function fill(table, lines) {
  table.replaceChildren(...lines.map(([name, ...values]) => h(
    "tr", { class: new Set(values).size > 1 ? "differs" : "" }, h("th", { scope: "row" }, name),
    ...values.map((value) => h("td", {}, value)),
  )));
}

/* ---- Assembly ---------------------------------------------------------------------------------- */

byId("counts").textContent = `${DATA.runs.rows.length.toLocaleString("en")} runs. Made ${DATA.created}.`;
fill(byId("common"), Object.entries(DATA.common));
byId("unfinished").hidden = !DATA.unfinished.length;
byId("unfinished").querySelector("ul").append(...DATA.unfinished.map(([path, reason]) => h("li", {}, `${path}: ${reason}`)));
byId("grouping").append(...groupings.map(([title]) => h("option", {}, title)));
byId("grouping").addEventListener("change", ({ target }) => groupBy(groupings[target.selectedIndex][1]));
byId("measure").addEventListener("change", compare);
groups.on("draw", drawCharts);
runs.on("select deselect", compare);
function follow() {
  document.documentElement.classList.toggle("dark", scheme.matches);
  groups.rows().invalidate().draw(false);
  compare();
}
scheme.addEventListener("change", follow);
narrow.addEventListener("change", follow);
document.documentElement.classList.toggle("dark", scheme.matches);
groupBy(groupings[0][1]);
performance.mark("report-ready");
