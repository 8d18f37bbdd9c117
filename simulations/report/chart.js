/* ---- Chart: axes, zoom and cursor; its content draws the data ------------------------------ */

/*
 * A content has
 *   items()                the visible items
 *   extent(items, log)     [[x low, x high], [y low, y high]] of all items
 *   paint(layer, items, x, y)
 *   nearest(items, px, py, x, y)   the cursor at a pixel: {item, index}, or null
 *   step(items, cursor, dx, dy)    the cursor after an arrow key
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
      this.zoomTo(null); // a view of the other scale does not apply
    });
    return made;
  }

  /** Draw everything again; with 200 curves, that takes a few milliseconds. */
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

  /** Zoom by a factor about a pixel: the pointer, the last cursor, or the centre. */
  zoomBy(factor, point = this.focusPoint()) {
    const { left, right, top, bottom } = this.box;
    const cursor = this.cursor;
    const xs = zoomed(this.x, [left, right], (point.x - left) / (right - left), factor);
    const ys = zoomed(this.y, [bottom, top], (bottom - point.y) / (bottom - top), factor);
    this.zoomTo(this.limited(xs, ys));
    this.moveCursor(cursor);
  }

  /** Limit a view to the full extent; the full extent is no zoom. */
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

  /** A flat drag selects iterations; a tall one selects a rectangle. */
  zoomToDrag({ from, to }) {
    const { top, bottom } = this.box;
    const flat = Math.abs(from.y - to.y) < 24;
    const xs = [this.x.from(Math.min(from.x, to.x)), this.x.from(Math.max(from.x, to.x))];
    const ys = flat
      ? [this.y.from(bottom), this.y.from(top)]
      : [this.y.from(Math.max(from.y, to.y)), this.y.from(Math.min(from.y, to.y))];
    this.zoomTo(this.limited(xs, ys));
  }

  /** Shift the view so that the cursor stays visible. */
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
    if (place) this.anchor = place; // on touch screens, the zoom buttons are pressed after the curve
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
    if (event.pointerType === "touch") { // touch moves the cursor; buttons zoom
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

  /** A mouse removes the cursor when it leaves; touch keeps it. */
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
    const outwards = event.deltaY > 0 && !this.view; // fully zoomed out: scroll the page
    const scrolling = performance.now() - lastScroll < 300 && !event.ctrlKey; // the page is scrolling
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
    if (!this.cursor) return; // no point can be shown on a logarithmic axis
    const place = this.content.place(this.items, this.cursor);
    this.follow(place);
    this.moveCursor(this.cursor);
    this.say(place);
  }
}

let lastScroll = -Infinity;
addEventListener("scroll", () => { lastScroll = performance.now(); }, { passive: true });
