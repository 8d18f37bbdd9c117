/* ---- Tools: search, filters, groups ----------------------------------------------------------- */

const MAX_CHOICES = 60; // values of a setting with a filter
let groups = []; // summaries of the selected runs
const shownGroups = () => groups.filter(({ index }) => state.shown.has(index));

function buildTools() {
  byId("search").addEventListener("input", ({ target }) => { state.search = target.value; select(); });
  byId("group").append(...DATA.groupings.map(({ title }, index) => h("option", { value: index }, title)));
  byId("group").addEventListener("change", ({ target }) => { state.grouping = Number(target.value); select(); });
  DATA.settings.forEach((setting, index) => {
    if (setting.varies && setting.values.length <= MAX_CHOICES) byId("filters").append(filterOf(setting, index));
  });
  byId("clear").addEventListener("click", () => {
    state.search = byId("search").value = "";
    state.filters.clear();
    for (const box of byId("filters").querySelectorAll("input")) box.checked = false;
    byId("filters").dispatchEvent(new Event("change"));
  });
  byId("filters").addEventListener("change", select);
  document.addEventListener("click", ({ target }) => {
    for (const open of document.querySelectorAll(".filter[open]")) if (!open.contains(target)) open.open = false;
  });
}

function filterOf({ name, values }, setting) {
  const places = new Set();
  const choices = values.map((value, place) => h("label", {}, h("input", {
    type: "checkbox",
    change: ({ target }) => {
      places[target.checked ? "add" : "delete"](place);
      state.filters.set(setting, places);
    },
  }), value === "" ? "(empty)" : cut(value)));
  const summary = h("summary", {}, cut(name, 30));
  byId("filters").addEventListener("change", () => {
    if (!state.filters.has(setting)) places.clear();
    summary.textContent = places.size ? `${cut(name, 30)}: ${places.size} of ${values.length}` : cut(name, 30);
  });
  const close = ({ key, currentTarget }) => {
    if (key !== "Escape") return;
    currentTarget.open = false;
    summary.focus();
  };
  const fields = h("fieldset", {}, h("legend", { class: "unseen" }, name), ...choices);
  return h("details", { class: "filter", keydown: close }, summary, fields);
}

/* ---- The overview ------------------------------------------------------------------------------ */

const tables = {};

function buildOverview() {
  const curves = { title: "Cumulative regret", file: "regret", figure: curvesFigure(shownGroups) };
  makeChart(byId("curves"), { ...curves, isFirst: true, heading: "h2" });
  const costs = [
    ["by-exchanges", "Exchanges", ({ exchanges }) => exchanges.mean, {}],
    ["by-bytes", "Bytes up and down", ({ up, down }) => up.mean + down.mean, { tickformat: "~s", ticksuffix: "B" }],
  ];
  for (const [id, title, measure, ticks] of costs) {
    const figure = tradeFigure(shownGroups, measure, title, ticks);
    makeChart(byId(id), { title: `Regret against ${title.toLowerCase()}`, file: `regret-${id}`, figure });
  }
  const single = h("button", {
    type: "button", class: "button", id: "single", "aria-pressed": "false",
    click: ({ currentTarget }) => {
      state.single = !state.single;
      currentTarget.setAttribute("aria-pressed", String(state.single));
      draw();
    },
  }, "Single runs");
  byId("curves").querySelector("h2").after(single);

  const lowest = [[groupColumns().findIndex(({ title }) => title === "Mean regret"), "asc"]];
  tables.groups = makeTable("groups", groupColumns(toggle), { file: "configurations", order: lowest });
  tables.runs = makeTable("runs", runColumns(pick), { file: "runs", order: [[1, "asc"]] });
  byId("show-best").textContent = `Show best ${BEST}`;
  byId("show-best").addEventListener("click", () => show(best()));
  byId("show-all").addEventListener("click", () => show(groups));
  byId("show-none").addEventListener("click", () => show([]));
  byId("compare").addEventListener("click", () => {
    location.hash = new URLSearchParams([...state.picked].map((path) => ["diff", path])).toString();
  });
}

const best = () => groups.toSorted((a, b) => a.regret.mean - b.regret.mean).slice(0, BEST);

function toggle(index, isShown) {
  state.shown[isShown ? "add" : "delete"](index);
  draw();
}

function choose(chosen) {
  state.shown = new Set(chosen.map(({ index }) => index));
  tables.groups(groups);
}

function show(chosen) {
  choose(chosen);
  draw();
}

function pick(path, isPicked) {
  state.picked[isPicked ? "add" : "delete"](path);
  byId("compare").disabled = state.picked.size !== 2;
}

/** Draw another selection of runs, or another grouping. */
function select() {
  group();
  draw();
}

function group() {
  const runs = selectedRuns();
  groups = summaries(runs);
  const { title } = grouping();
  const count = runs.length.toLocaleString("en");
  byId("selected").textContent = `${count} of ${plural(DATA.runs.length, "run")} in ${plural(groups.length, "group")}`;
  const titles = { configuration: "Configurations", run: "Single runs" };
  byId("groups-title").textContent = titles[title] ?? `Groups by ${title}`;
  tables.runs(runs);
  choose(best());
}

function draw() {
  const isWhole = state.shown.size === groups.length;
  byId("show-best").hidden = groups.length <= BEST;
  byId("shown").textContent = isWhole ? "All are drawn." : `${state.shown.size} of ${groups.length} are drawn.`;
  return Promise.all(charts.map((chart) => chart.draw()));
}

/* ---- Views of one run and of two ----------------------------------------------------------------- */

function definition([name, value]) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value === "" ? "(empty)" : value));
}

function heading(text) {
  return [h("p", {}, h("a", { href: "#" }, "← All runs")), h("h2", { tabindex: -1 }, text)];
}

function figuresOf(run) {
  return [
    ["Final regret", formatRegret(run.regret)],
    ...DATA.predictions.filter((name) => name in run).map((name) => [PREDICTIONS[name], formatPrediction(run[name])]),
    ...Object.entries(MEASURES).map(([name, { title, format }]) => [title, format(run[name])]),
  ];
}

/** One line chart of a view. */
function viewChart(place, title, file, lines, yaxis) {
  const legend = { ...LEGEND, orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };
  const figure = (shown) => ({
    data: lines.map(({ label, curve, color, dash }) =>
      lineTrace(label, curve, { color: color(shown), width: 2.25, dash }, ["iteration", yaxis.title.text])),
    layout: { height: 340, showlegend: lines.length > 1, legend, xaxis: REGRET_AXES.xaxis, yaxis },
  });
  const own = h("div", {});
  place.append(own);
  makeChart(own, { title, file, figure, hasScales: false, isFirst: charts.length === OVERVIEW_CHARTS });
}

const oneColor = (run) => (shown) => colorOf(groupOf(run), shown);
const groupOf = (run) => DATA.groupings[0].groups[DATA.groupings[0].of[run.index]].style;
const lineOf = (run, text, dash = "solid") => {
  const ys = [...decoded(text)];
  return { label: run.path, curve: { xs: iterationsOf(ys.length), ys, errors: null }, color: oneColor(run), dash };
};

function runView(run) {
  const place = h("section", { class: "card" }, ...heading(run.path));
  place.append(h("p", {}, h("a", { href: run.href }, "Open its folder")));
  place.append(h("dl", { class: "facts" }, ...figuresOf(run).map(definition)));
  const pair = h("div", { class: "pair" });
  place.append(pair);
  viewChart(pair, "Cumulative regret", "regret", [lineOf(run, run.curve)], REGRET_AXES.yaxis);
  addPredictions(pair, run);
  addParticipation(pair, run);
  const used = DATA.settings.map(({ name }, index) => [name, run.shown[index]]).filter(([, value]) => value !== UNUSED);
  place.append(h("h3", {}, "Settings"), h("dl", { class: "facts", id: "settings" }, ...used.map(definition)));
  return place;
}

function addPredictions(place, run) {
  if (run.predicted?.problem) place.append(h("p", { class: "note" }, run.predicted.problem));
  else if (run.predicted) {
    for (const [name, title] of Object.entries(PREDICTIONS)) {
      const yaxis = { title: { text: title.toLowerCase() }, rangemode: "normal" };
      viewChart(place, `${title} of predictions`, name, [lineOf(run, run.predicted[name])], yaxis);
    }
  }
}

function addParticipation(place, run) {
  if (!run.participation) return;
  const { problem, iterations, share, asked, replied, absent, rejected } = run.participation;
  if (problem) {
    place.append(h("p", { class: "note" }, problem));
    return;
  }
  const named = (list) => list.map(([node, count]) => `${node} (${count})`).join(", ");
  const line = { ...lineOf(run, share), curve: { xs: iterations, ys: [...decoded(share)], errors: null } };
  const yaxis = { title: { text: "share of replies" }, range: [0, 1.05] };
  viewChart(place, "Participation of nodes", "participation", [line], yaxis);
  const facts = [["Replies", `${replied.toLocaleString("en")} of ${asked.toLocaleString("en")}`]];
  if (absent.length) facts.push(["No reply", named(absent)]);
  if (rejected.length) facts.push(["Rejected", named(rejected)]);
  place.lastChild.append(h("dl", { class: "facts", id: "replies" }, ...facts.map(definition)));
}

function diffView(one, two) {
  const rows = DATA.settings.map(({ name }, index) => [name, one.shown[index], two.shown[index]]);
  const differing = rows.filter(([, a, b]) => a !== b);
  const others = rows.filter(([, a, b]) => a === b && a !== UNUSED);
  const figures = figuresOf(one).map(([title, value], index) => [title, value, figuresOf(two)[index]?.[1] ?? "–"]);
  const cell = (text) => h("td", {}, text === "" ? "(empty)" : text);
  const line = ([name, ...values]) => h("tr", {}, h("th", { scope: "row" }, name), ...values.map(cell));
  const column = (content) => h("th", { scope: "col" }, content);
  const links = () => [one, two].map((run) => column(h("a", { href: runLink(run) }, run.path)));
  const head = (title) => h("thead", {}, h("tr", {}, column(title), ...links()));
  const table = (id, caption, lines, title = "Setting") =>
    h("table", { id, class: "plain-table" }, h("caption", {}, caption), head(title), h("tbody", {}, ...lines.map(line)));
  const place = h("section", { class: "card" }, ...heading("Two runs"));
  place.append(
    table("diff", differing.length ? "Settings that differ" : "All settings are equal", differing),
    table("diff-results", "Results", figures, "Measure"),
  );
  const lines = [lineOf(one, one.curve), lineOf(two, two.curve, "6px,4px")];
  if (groupOf(one) === groupOf(two)) lines[1].color = (shown) => INK[shown].text;
  viewChart(place, "Cumulative regret", "regret", lines, REGRET_AXES.yaxis);
  const same = table("same", "Settings that are equal", others);
  place.append(h("details", {}, h("summary", {}, plural(others.length, "equal setting")), same));
  return place;
}

/** Show what the address asks for: the overview, a run, or two. */
function route() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const find = (path) => DATA.runs.find((run) => run.path === path);
  const paths = [...asked.getAll("run"), ...asked.getAll("diff")];
  const found = paths.map(find).filter(Boolean);
  const isView = found.length === paths.length && found.length > 0;
  byId("overview").hidden = isView;
  byId("view").hidden = !isView;
  charts.splice(OVERVIEW_CHARTS);
  byId("view").replaceChildren();
  if (isView) byId("view").append(found.length === 2 ? diffView(...found) : runView(found[0]));
  document.title = isView ? `${found.map(({ path }) => path).join(" and ")} – regret report` : "Regret report";
  if (isView) byId("view").querySelector("h2").focus();
  return draw();
}

/* ---- Texts and assembly ------------------------------------------------------------------------ */

function describe() {
  byId("counts").textContent = `${plural(DATA.runs.length, "run")}. Made ${DATA.created.replace("T", " ")}.`;
  const thinned = DATA.thinned ? " Curves are thinned to some of their iterations; the values there are exact." : "";
  byId("curves-note").textContent = "Average per agent, in units of latent reward. Lines are means of the runs of a"
    + ` group, bands one standard error.${thinned}`;
  const common = DATA.settings.filter(({ varies }) => !varies);
  byId("common").append(...common.map(({ name, values }) => definition([name, values[0]])));
  byId("unfinished-card").hidden = !DATA.unfinished.length;
  byId("unfinished").append(...DATA.unfinished.map(({ path, reason }) => h("li", {}, h("strong", {}, path), `: ${reason}`)));
}

function buildTheme() {
  byId("theme").value = document.documentElement.dataset.choice;
  byId("theme").addEventListener("change", ({ target }) => { theme.choose(target.value); draw(); });
  theme.dark.addEventListener("change", () => { theme.restore(); draw(); });
}

describe();
buildTheme();
buildTools();
buildOverview();
const OVERVIEW_CHARTS = charts.length;
group();
addEventListener("hashchange", route);
addEventListener("beforeprint", () => charts.forEach((chart) => chart.paint()));
route().then(() => performance.mark("report-ready"));
