/* ---- DataTables ------------------------------------------------------------------------------ */

const SHAPES = {
  circle: "●", square: "■", diamond: "◆", cross: "✚",
  "triangle-up": "▲", "triangle-down": "▼", "triangle-left": "◀", "triangle-right": "▶",
};

function swatch({ colors, dash, marker }) {
  const style = `--light: ${colors[0]}; --dark: ${colors[1]}`;
  const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  line.innerHTML = '<line x2="34" y1="2" y2="2" stroke-width="2.25" stroke="currentColor"/>';
  line.firstChild.setAttribute("stroke-dasharray", dash.map((length) => length * 2.25).join(" "));
  return h("span", { class: "swatch", style, "aria-hidden": "true" }, line, h("span", {}, SHAPES[marker]));
}

/**
 * Make a table. A column has a title and `value(row)`, for order and export, and optionally
 * `show(row)`, a text or a node, `order(row)`, and `at`: "first" stays on a phone, "hidden" is only
 * exported. The other columns of a row are below it on a phone, after a press of its button.
 */
function makeTable(id, columns, { file, order, length = 25 }) {
  const more = {
    title: '<span class="unseen">More</span>', data: null, className: "more", orderable: false,
    render: (_, type, row) => (type === "display" ? moreButton(row) : ""),
  };
  const table = new DataTable(`#${id}`, {
    autoWidth: false, deferRender: true, order, pageLength: length, searching: false,
    columns: [...columns.map(columnOf), more],
    language: { emptyTable: "No run is selected.", entries: { _: "rows", 1: "row" } },
    layout: {
      topStart: { buttons: [csvButton(file), { extend: "colvis", text: "Columns", columns: ":not(.more, .hidden)" }] },
      topEnd: null,
      bottomStart: ["info", "pageLength"], bottomEnd: "paging",
    },
  });

  function details(row) {
    const [{ title, value }, ...others] = columns;
    const below = others.filter(({ at }) => !at).map((column) => [column.title, shownIn(column, row)]);
    return h("dl", { class: "facts" }, ...[[title, value(row)], ...below].map(definition));
  }

  function moreButton(row) {
    return h("button", {
      type: "button", class: "button", "aria-expanded": "false", "aria-label": `More about ${row.label ?? row.path}`,
      click: ({ currentTarget }) => {
        const child = table.row(currentTarget.closest("tr")).child;
        const isOpen = !child.isShown();
        if (isOpen) child(details(row)).show();
        else child.hide();
        currentTarget.setAttribute("aria-expanded", String(isOpen));
      },
    }, "⋯");
  }

  function fit() {
    table.columns(":not(.first, .more, .hidden)").visible(!narrow.matches, false);
    table.columns(".more").visible(narrow.matches, false);
    table.rows().every(function hide() { this.child.hide(); });
    table.columns.adjust();
  }
  table.table().container().querySelector("nav").setAttribute("aria-label", `Pages of ${file}`);
  narrow.addEventListener("change", fit);
  fit();
  return (rows) => table.clear().rows.add(rows).draw();
}

const shownIn = ({ value, show = value }, row) => show(row);

function columnOf(column) {
  const { title, value, order = value, at = "", isNumber } = column;
  const render = (_, type, row) => {
    if (type === "export") return value(row);
    if (type !== "display") return order(row);
    const shown = shownIn(column, row);
    return shown instanceof Node ? shown : escaped(String(shown));
  };
  const className = [at, isNumber ? "number" : "text"].join(" ");
  return { title: escaped(cut(title, 28)), data: null, className, visible: at !== "hidden", type: "num", render };
}

const csvButton = (file) => ({
  extend: "csvHtml5", text: "CSV", filename: file, bom: true, footer: false,
  titleAttr: "All rows and columns, in full precision",
  exportOptions: { columns: ":not(.more)", orthogonal: "export", stripHtml: false, decodeEntities: false },
});

const numberColumn = (title, value, format, at = "") => ({
  title, at, isNumber: true,
  value: (row) => value(row) ?? "", order: (row) => value(row) ?? null, show: (row) => format(value(row) ?? null),
});
const settingColumn = ({ name }, setting) => ({
  title: name, value: (run) => run.shown[setting], order: (run) => run.settings[setting],
  show: ({ shown }) => (shown[setting] === UNUSED ? "–" : shown[setting]),
});

/* ---- The two tables -------------------------------------------------------------------------- */

function groupColumns(onToggle) {
  const box = (group) => h(
    "label", { class: "name" },
    h("input", {
      type: "checkbox", checked: state.shown.has(group.index),
      change: ({ target }) => onToggle(group.index, target.checked),
    }),
    swatch(group), h("span", {}, group.label),
  );
  const settings = DATA.settings.flatMap((setting, index) => {
    if (!setting.varies) return [];
    const value = ({ runs }) => (grouping().by.includes(index) ? runs[0].shown[index] : "");
    return [{ title: setting.name, at: "hidden", value }];
  });
  return [
    { title: "Group", at: "first", value: ({ label }) => label, order: ({ index }) => index, show: box },
    ...settings,
    numberColumn("Runs", ({ runs }) => runs.length, formatCount),
    numberColumn("Mean regret", ({ regret }) => regret.mean, formatRegret, "first"),
    numberColumn("Std. error", ({ regret }) => regret.error, formatRegret, "first"),
    numberColumn("Median", ({ regret }) => regret.median, formatRegret),
    ...DATA.predictions.map((name) => numberColumn(PREDICTIONS[name], (group) => group[name].mean, formatPrediction)),
    ...Object.entries(MEASURES).map(([name, { title, format }]) => numberColumn(title, (group) => group[name].mean, format)),
  ];
}

function runColumns(onPick) {
  const pick = (run) => h("input", {
    type: "checkbox", checked: state.picked.has(run.path), "aria-label": `Compare ${run.path}`,
    change: ({ target }) => onPick(run.path, target.checked),
  });
  const name = (run) => h("span", { class: "name" }, pick(run), h("a", { href: runLink(run) }, run.path));
  return [
    { title: "Run", at: "first", value: ({ path }) => path, order: ({ index }) => index, show: name },
    numberColumn("Final regret", ({ regret }) => regret, formatRegret, "first"),
    ...DATA.settings.flatMap((setting, index) => (setting.varies ? [settingColumn(setting, index)] : [])),
    ...DATA.predictions.map((key) => numberColumn(PREDICTIONS[key], (run) => run[key], formatPrediction)),
    ...Object.entries(MEASURES).map(([key, { title, format }]) => numberColumn(title, (run) => run[key], format)),
  ];
}

const runLink = ({ path }) => `#run=${encodeURIComponent(path)}`;
