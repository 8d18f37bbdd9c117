/* ---- Plotly ---------------------------------------------------------------------------------- */

const INK = {
  light: { text: "#1a2027", grid: "#e9ecf0", line: "#8a939d", card: "#ffffff" },
  dark: { text: "#e8ecf1", grid: "#2a323b", line: "#6d7885", card: "#191f26" },
};
const isDark = (shown) => shown === "dark";
const colorOf = (group, shown) => group.colors[Number(isDark(shown))];
const dashOf = (group) => group.dash.map((length) => `${length * 2}px`).join(",") || "solid";
const HELP = "Left and right: along the curve. Up and down: to another curve. Plus and minus: zoom. 0: all.";
const charts = [];
const narrow = matchMedia("(max-width: 40rem)");
const touch = matchMedia("(pointer: coarse)");

function layoutOf(shown, { xaxis, yaxis, ...layout }) {
  const ink = INK[shown];
  const axis = {
    gridcolor: ink.grid, linecolor: ink.line, tickcolor: ink.line, showline: true, ticks: "outside", zeroline: false,
    automargin: true, rangemode: "tozero", exponentformat: "power", minorloglabels: "none",
  };
  return {
    font: { family: "system-ui, sans-serif", size: 13, color: ink.text }, hovermode: "closest",
    dragmode: touch.matches ? false : "zoom", // touch scrolls the page
    paper_bgcolor: ink.card, plot_bgcolor: ink.card, margin: { l: 10, r: 14, t: 34, b: 10 }, showlegend: false,
    hoverlabel: { bgcolor: ink.card, bordercolor: ink.line, font: { color: ink.text }, align: "left", namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink.line, activecolor: ink.text },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...layout,
  };
}

/**
 * A chart with buttons for scales and export, and readings by keyboard. `figure(shown, log)` returns
 * Plotly's traces and layout, and a note. A trace that can be read has its name and unit in `meta`.
 */
function makeChart(place, { title, file, figure, hasScales = true, isFirst = false, heading = "h3" }) {
  const log = { x: false, y: false };
  let [isNear, isStale] = [isFirst, true]; // charts far below are drawn when they are scrolled to
  const live = h("p", { class: "unseen", "aria-live": "polite" });
  const note = h("p", { class: "note" });
  const plot = h("div", { class: "plot", tabindex: 0, role: "group", "aria-label": `${title}, a chart. ${HELP}` });

  function full(shown) {
    const { data, layout, text = "" } = figure(shown, log);
    const { xaxis, yaxis, ...others } = layout;
    const axes = {
      xaxis: { type: log.x ? "log" : "linear", ...xaxis }, yaxis: { type: log.y ? "log" : "linear", ...yaxis },
    };
    return { data, layout: layoutOf(shown, { ...axes, uirevision: `${log.x}${log.y}`, ...others }), text };
  }

  async function paint() {
    isStale = false;
    const { data, layout, text } = full(document.documentElement.dataset.theme);
    note.textContent = text;
    await Plotly.react(plot, data, layout, {
      responsive: true, displaylogo: false, displayModeBar: true,
      modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    });
  }

  function draw() {
    isStale = true;
    return isNear ? paint() : null;
  }

  function toggle(axis) {
    return h("button", {
      type: "button", class: `button log-${axis}`, "aria-pressed": "false",
      click: (event) => {
        log[axis] = !log[axis];
        event.currentTarget.setAttribute("aria-pressed", String(log[axis]));
        draw();
      },
    }, `Log ${axis}`);
  }

  function download(format) {
    const { data, layout } = full("light");
    const size = { width: 900, height: 560, scale: format === "png" ? 3 : 1 };
    const legend = { ...layout, showlegend: true, margin: { ...layout.margin, t: 20 }, height: undefined };
    return Plotly.downloadImage({ data, layout: legend }, { format, filename: file, ...size });
  }

  const exports = ["svg", "png"].map((format) => h("button", {
    type: "button", class: `button save-${format}`, "aria-label": `Save ${title} as ${format.toUpperCase()}`,
    click: () => download(format),
  }, format.toUpperCase()));
  const scales = hasScales ? ["x", "y"].map(toggle) : [];
  place.replaceChildren(h("div", { class: "row" }, h(heading, {}, title), ...scales, ...exports), plot, note, live);
  addReadings(plot, live);
  new IntersectionObserver((entries) => {
    isNear = entries.at(-1).isIntersecting || isFirst;
    if (isNear && isStale) paint();
  }, { rootMargin: "200px" }).observe(place);
  charts.push({ draw, paint });
}

/** Let arrow keys move between the points of a chart, and zoom by keys. */
function addReadings(plot, live) {
  let cursor = null;
  const readable = () => plot.data.flatMap((trace, curve) => (trace.meta ? [curve] : []));
  const nearest = (curve, x) => plot.data[curve].x.reduce(
    (best, value, i, xs) => (Math.abs(value - x) < Math.abs(xs[best] - x) ? i : best), 0,
  );
  const next = (points, step, axis) => {
    const at = ({ curve, point }) => plot.data[curve][axis][point];
    const order = points.sort((a, b) => at(a) - at(b) || a.curve - b.curve);
    const now = order.findIndex(({ curve }) => curve === cursor.curve);
    return order[Math.min(Math.max(now + step, 0), order.length - 1)];
  };

  function move(dx, dy) {
    const curves = readable();
    if (!curves.length) return;
    if (!cursor || !curves.includes(cursor.curve)) cursor = { curve: curves[0], point: plot.data[curves[0]].x.length >> 1 };
    else {
      const { x } = plot.data[cursor.curve];
      const last = x.length - 1;
      const points = curves.map((curve) => ({ curve, point: last ? nearest(curve, x[cursor.point]) : 0 }));
      if (dy || !last) cursor = next(points, dy || Math.sign(dx), dy ? "y" : "x");
      else cursor = { curve: cursor.curve, point: Math.min(Math.max(cursor.point + dx, 0), last) };
    }
    const trace = plot.data[cursor.curve];
    const error = trace.customdata?.[cursor.point];
    const reading = (number) => number.toLocaleString("en", { maximumSignificantDigits: 6 });
    const value = `${reading(trace.y[cursor.point])}${error ? ` ± ${reading(error)}` : ""}`;
    live.textContent = `${trace.meta.label}, ${trace.meta.x} ${reading(trace.x[cursor.point])}, ${trace.meta.y} ${value}`;
    Plotly.Fx.hover(plot, [{ curveNumber: cursor.curve, pointNumber: cursor.point }]);
  }

  const press = (selector) => plot.querySelector(`.modebar-btn${selector}`).click();
  const zooms = { "+": '[data-val="in"]', "=": '[data-val="in"]', "-": '[data-val="out"]', 0: '[data-val="reset"]' };
  plot.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
      Home: [-Infinity, 0], End: [Infinity, 0],
    };
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== plot) return;
    if (moves[event.key]) move(...moves[event.key]);
    else if (zooms[event.key]) press(zooms[event.key]);
    else return;
    event.preventDefault();
  });
  plot.addEventListener("blur", () => Plotly.Fx.unhover(plot));
}

/* ---- Traces ---------------------------------------------------------------------------------- */

const nameOf = (label) => escaped(cut(label, narrow.matches ? 36 : 48));

function lineTrace(label, { xs, ys, errors }, line, [x, y]) {
  const error = errors ? " ± %{customdata:.4~g}" : "";
  return {
    x: xs, y: ys, customdata: errors, mode: "lines", name: nameOf(label), line, meta: { label, x, y },
    hovertemplate: `<b>%{fullData.name}</b><br>${x} %{x:,}<br>${y} %{y:,.5~g}${error}<extra></extra>`,
  };
}

function bandTrace({ xs, ys, errors }, color, opacity, isLog) {
  const edge = (sign) => ys.map((value, i) => {
    const at = value + sign * errors[i];
    return isLog && at <= 0 ? value / 10 : at; // a logarithmic axis has no zero
  });
  return {
    x: [...xs, ...xs.toReversed()], y: [...edge(1), ...edge(-1).reverse()], fill: "toself", mode: "none",
    fillcolor: `${color}${Math.round(opacity * 255).toString(16).padStart(2, "0")}`, hoverinfo: "skip", showlegend: false,
  };
}

/** Single runs of a group as one trace, with gaps. */
function singlesTrace(group, color) {
  const parts = group.runs.map(curveOf);
  return {
    x: parts.flatMap((ys) => [...iterationsOf(ys.length), null]), y: parts.flatMap((ys) => [...ys, null]),
    mode: "lines", line: { color, width: 1 }, opacity: 0.5, hoverinfo: "skip", showlegend: false, name: "single runs",
  };
}

const REGRET_AXES = { xaxis: { title: { text: "iteration" } }, yaxis: { title: { text: "cumulative regret per agent" } } };

const LEGEND = { itemclick: false, itemdoubleclick: false }; // the table below shows and hides

function curvesFigure(shownGroups) {
  return (shown, log) => {
    const curves = shownGroups().map((group) => ({ group, curve: meanCurve(group.runs), color: colorOf(group, shown) }));
    const opacity = Math.min(0.2, Math.max(0.05, 0.8 / curves.length));
    const below = curves.flatMap(({ group, curve, color }) => {
      if (!curve.errors) return [];
      return [state.single ? singlesTrace(group, color) : bandTrace(curve, color, opacity, log.y)];
    });
    const lines = curves.map(({ group, curve, color }) =>
      lineTrace(group.label, curve, { color, width: 2.25, dash: dashOf(group) }, ["iteration", "regret"]));
    const layout = { height: 440, showlegend: !narrow.matches && lines.length <= BEST, legend: LEGEND, ...REGRET_AXES };
    return { data: [...below, ...lines], layout, text: curves.length ? "" : "No group is shown." };
  };
}

function tradeFigure(shownGroups, measure, title, ticks = {}) {
  return (shown, log) => {
    const points = shownGroups().map((group) => (
      { group, x: measure(group), y: group.regret.mean, error: group.regret.error }
    ));
    const frontier = paretoFrontier(points);
    const marks = points.map((point) => ({
      x: [point.x], y: [point.y], customdata: [point.error ?? 0], mode: "markers", name: nameOf(point.group.label),
      meta: { label: point.group.label, x: title.toLowerCase(), y: "regret", best: frontier.includes(point) },
      marker: {
        symbol: point.group.marker + (frontier.includes(point) ? "" : "-open"), size: 11, color: colorOf(point.group, shown),
        line: { width: 2, color: colorOf(point.group, shown) },
      },
      error_y: { type: "data", array: [point.error ?? 0], visible: point.error !== null, thickness: 1.5, width: 4 },
      hovertemplate: `<b>%{fullData.name}</b><br>${title.toLowerCase()} %{x:,.5~s}<br>`
        + "regret %{y:,.5~g} ± %{customdata:.4~g}<extra></extra>",
    }));
    const lost = points.filter(({ x }) => log.x && x <= 0).length;
    return {
      data: [...stairs(frontier, points, shown, log), ...marks],
      layout: {
        height: 380, xaxis: { title: { text: title }, rangemode: "normal", ...ticks },
        yaxis: { title: { text: "final regret per agent" }, rangemode: "normal" },
      },
      text: lost ? `${plural(lost, "group")} at 0 ${lost === 1 ? "is" : "are"} not on a log axis.` : "",
    };
  };
}

/** The staircase of the Pareto frontier. */
function stairs(frontier, points, shown, log) {
  const kept = frontier.filter(({ x }) => !log.x || x > 0);
  if (!kept.length) return [];
  const [top, right] = [Math.max(...points.map(({ y }) => y)), Math.max(...points.map(({ x }) => x))];
  return [{
    x: [kept[0].x, ...kept.map(({ x }) => x), right], y: [top, ...kept.map(({ y }) => y), kept.at(-1).y],
    mode: "lines", name: "Pareto frontier",
    line: { shape: "hv", dash: "dot", width: 1.5, color: INK[shown].text }, hoverinfo: "skip", showlegend: false,
  }];
}
