"use strict";
// Contents of duels are untrusted: they are inserted as text nodes and URLs of images only.

const POLL = 3000; // milliseconds between two requests
const SETTLE = 450; // milliseconds in which a press still belongs to the previous duel
const PATIENCE = 40000; // milliseconds; the service waits up to 30 seconds for a locked store
const BARS = 8;
const byId = (id) => document.getElementById(id);
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/* ---- The service ----------------------------------------------------------------------- */

class WrongToken extends Error {}
class Unreachable extends Error {}

/** Remove the token from the address bar, where it could be copied or photographed by accident. */
function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem("token", found);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

/** Send one request, and return the status and the JSON of its reply. */
async function ask(path, method = "GET", body) {
  const token = sessionStorage.getItem("token");
  if (!token) throw new WrongToken();
  const headers = { Authorization: `Bearer ${token}`, ...(body && { "Content-Type": "application/json" }) };
  let response, data;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE) });
    data = response.status === 204 ? null : await response.json();
  } catch {
    throw new Unreachable("The service does not answer");
  }
  if (response.status === 401) throw new WrongToken();
  if (response.status >= 500) throw new Unreachable(data.detail);
  return { status: response.status, data };
}

/** Repeat a request until the service replies. All requests of this page may be repeated. */
async function insist(...request) {
  for (let gone = false; ; gone = true) {
    try {
      const reply = await ask(...request);
      if (gone) say();
      return reply;
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      say(error.message, request.length > 1
        ? "Your answer is kept in this page and sent again every few seconds until the service has stored it."
        : "No answer is lost. This page tries again every few seconds.");
      await sleep(POLL);
    }
  }
}

/* ---- Notices and status ---------------------------------------------------------------------- */

function announce(text) {
  byId("live").textContent = text;
}

/** Show a notice; without a title, hide it. */
function say(title, text) {
  const shown = byId("notice-title");
  if (title && (byId("notice").hidden || shown.textContent !== title)) announce(`${title}. ${text}`);
  shown.textContent = title || "";
  byId("notice-text").textContent = text || "";
  byId("notice").hidden = !title;
}

function inWords(seconds) {
  if (seconds === null) return "never";
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  for (const [unit, length] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    const number = Math.floor(passed / length);
    if (number >= 1) return `${number.toLocaleString("en")} ${unit}${number === 1 ? "" : "s"} ago`;
  }
  return "just now";
}

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const shortNumber = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 });

/* ---- What was learned ---------------------------------------------------------------------- */

/** Return what the estimate is computed from, and when this person's answers count. */
function sourceOf({ answered, duels, received }, { own, weights }) {
  if (!weights.some(Boolean)) {
    return answered ? "No preference is visible in the answers so far." : "Nothing has been learned yet. What you prefer appears here after your first answers.";
  }
  if (!own) return `From ${plural(duels, "answer")} of all devices, as of the last round. Your new answers count from the next round on.`;
  if (!answered) return "From what other devices have learned. Each of your answers counts at once.";
  const others = received === null ? "" : " and from what other devices have learned";
  return `From your ${plural(answered, "answer")}${others}. Each answer counts at once.`;
}

function drawFavourites(arms, own) {
  byId("favourites").hidden = !arms.length;
  byId("favourites-title").textContent = own ? "Your favourites so far" : "Favourites so far";
  byId("best").replaceChildren(...arms.map((arm) => {
    const label = element("span", "label", arm.text || arm.key);
    label.dir = "auto";
    const words = element("span", "words");
    words.append(label);
    if (arm.features) words.append(element("span", "muted", inLine(arm.features)));
    const shown = element("div", "arm");
    if (arm.image) {
      const image = element("img", "");
      image.alt = arm.text ? "" : arm.key || "Picture";
      image.src = arm.image;
      shown.append(image);
    }
    shown.append(words);
    const row = element("li", "");
    row.append(shown);
    return row;
  }));
}

function sizeOf(value) {
  if (value >= 0.005) return value.toFixed(2);
  return value >= 0.001 ? value.toLocaleString("en", { maximumSignificantDigits: 1 }) : value.toExponential(0);
}

/** Draw the largest components of theta as a list with numbers and bars. */
function drawWeights(weights, names) {
  const largest = weights
    .map((value, index) => ({ value, name: names ? names[index] : `Feature ${index + 1}` }))
    .filter(({ value }) => value)
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    .slice(0, BARS);
  byId("weights").hidden = !largest.length;
  const scale = Math.max(...largest.map(({ value }) => Math.abs(value)));
  byId("weights-note").textContent =
    "To the right: more of the feature is preferred. To the left: less of it is preferred." +
    (weights.length > BARS ? ` The largest ${BARS} of ${weights.length} weights are shown.` : "");
  byId("bars").replaceChildren(...largest.map(({ value, name }) => {
    const row = element("li", "");
    const track = element("span", "track");
    const bar = element("span", value < 0 ? "bar less" : "bar");
    const share = (Math.abs(value) / scale) * 50;
    bar.style.width = `${share}%`;
    bar.style.left = `${value < 0 ? 50 - share : 50}%`;
    track.append(bar);
    const size = sizeOf(Math.abs(value));
    row.append(element("span", "name", name), track, element("span", "value", (value < 0 ? "−" : "+") + size));
    return row;
  }));
}

let learnedFrom = ""; // the state of the device that is drawn
let drawings = 0;

/** Draw favourites and weights if the device has learned since. */
async function drawLearned(status) {
  const { answered, counted, received, dimension } = status;
  const state = JSON.stringify([answered, counted, received, dimension]);
  if (state === learnedFrom) return;
  const number = ++drawings;
  let weights, favourites;
  try {
    [weights, favourites] = await Promise.all([ask("/weights"), ask("/favourites")]);
  } catch (error) {
    if (error instanceof Unreachable || error instanceof WrongToken) return; // the next status draws it
    throw error;
  }
  if (number !== drawings) return; // a later one was faster
  learnedFrom = state;
  byId("learned").hidden = false;
  byId("learned-note").textContent = sourceOf(status, weights.data);
  drawFavourites(favourites.data, weights.data.own);
  drawWeights(weights.data.weights, weights.data.names);
}

/* ---- Progress ------------------------------------------------------------------------------ */

/** Return in words which answers wait for a round, and how many are needed. */
function inRounds({ answered, counted, sent, needed, received }) {
  const waiting = answered - sent;
  const parts = [];
  if (sent > counted) parts.push(`${plural(sent - counted, "answer")} uploaded, not yet confirmed by the server.`);
  if (needed) {
    const missing = `at least ${plural(needed, waiting ? "more answer" : "answer")}`;
    parts.push(`${waiting ? `${plural(waiting, "answer")} for the next round, which` : "The next round"} needs ${missing}.`);
  } else if (waiting && (needed === 0 || received !== null)) {
    parts.push(`${plural(waiting, "answer")} for the next round.`);
  } else if (received === null) {
    parts.push("This device has not taken part in a round yet.");
  } else if (answered && !parts.length) {
    parts.push("All answers are counted.");
  }
  return parts.join(" ");
}

function drawStatus(status) {
  const { answered, counted, sent, needed, received } = status;
  byId("progress").hidden = false;
  byId("answered").textContent = answered.toLocaleString("en");
  byId("counted").textContent = counted.toLocaleString("en");
  byId("synchronized").textContent = inWords(received);
  byId("waiting").textContent = inRounds(status);
  byId("upload").hidden = !needed;
  byId("upload").max = answered - sent + (needed || 1);
  byId("upload").value = answered - sent;
  if (last && last.number <= sent) {
    last = null;
    remark("Your last answer was uploaded. It can no longer be undone.");
  }
  drawUndo();
  drawLearned(status);
}

/* ---- The duel -------------------------------------------------------------------------- */

let choose = null; // called with the name of a button while the page waits for one
let last = null; // the duel that was answered last, while its answer can be undone

function drawUndo() {
  byId("undo").hidden = !last;
  byId("before").hidden = !last && !byId("note").textContent;
}

/** Show a remark about the last answer until the next one. */
function remark(text) {
  byId("note").textContent = text;
  drawUndo();
}

const inLine = (features) => features.map(({ name, value }) => `${name} ${shortNumber(value)}`).join(", ");

function drawCard(card, arm, name) {
  const image = card.querySelector("img");
  const text = arm.text || (arm.image ? "" : arm.key || "nothing to show");
  image.alt = arm.text ? "" : arm.key || `Picture ${name}`;
  image.hidden = !arm.image;
  image.onerror = () => {
    image.hidden = true;
    card.querySelector(".text").textContent = text || `${arm.key || "The picture"} (cannot be shown)`;
  };
  if (arm.image) image.src = arm.image;
  else image.removeAttribute("src");
  card.querySelector(".text").textContent = text;
  const features = card.querySelector(".features");
  features.hidden = !arm.features;
  features.replaceChildren(...(arm.features || []).map(({ name, value }) => {
    const row = element("span", "feature");
    row.append(element("span", "", name), " ", element("span", "", shortNumber(value)));
    return row;
  }));
  const described = (text || image.alt).slice(0, 200);
  return `${name}: ${arm.features ? `${described}, ${inLine(arm.features)}` : described}.`;
}

/** Return the two arms from left to right. */
function placed(duel) {
  // The first arm is the favourite: if it were always left, a habit would look like a preference.
  duel.swapped ??= Math.random() < 0.5;
  return duel.swapped ? [duel.second, duel.first] : [duel.first, duel.second];
}

/** Show a duel, in which nothing is focused, highlighted or chosen. */
function drawDuel(duel, note) {
  const [left, right] = placed(duel);
  if (note && document.activeElement !== document.body) byId("question").focus({ preventScroll: true });
  document.body.classList.remove("pointing");
  for (const id of ["left", "right", "tie", "skip"]) byId(id).classList.remove("chosen");
  byId("duel").hidden = false;
  say();
  const spoken = [drawCard(byId("left"), left, "A"), drawCard(byId("right"), right, "B")];
  announce([note && `${note} Next:`, ...spoken].join(" ").trim());
  const pair = document.querySelector(".pair");
  pair.classList.remove("arriving");
  void pair.offsetWidth; // restarts the animation
  pair.classList.add("arriving");
}

/** Wait for a button, for a limited time if there is a limit, and return its name. */
async function pressed(limit) {
  const name = await new Promise((done) => {
    choose = done;
    if (limit) setTimeout(done, limit);
  });
  choose = null;
  return name;
}

function take(name) {
  const done = choose;
  if (!done || !byId(name).offsetParent) return; // not while it is hidden
  choose = null; // the next press belongs to the next duel
  byId(name).classList.add("chosen");
  done(name);
}

const KEYS = { ArrowLeft: "left", ArrowRight: "right", ArrowDown: "tie", ArrowUp: "skip", Backspace: "undo" };
for (const name of Object.values(KEYS)) byId(name).addEventListener("click", () => take(name));
document.addEventListener("keydown", (event) => {
  if (event.repeat && event.key === "Enter") event.preventDefault(); // a key that is held down is one press
  const name = KEYS[event.key];
  if (!name || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  if (name !== "undo" && byId("duel").hidden) return;
  event.preventDefault();
  if (!event.repeat) take(name);
});

// A pointer that rests where the last answer was given would highlight one of the next two arms.
let pointer = [];
addEventListener("pointermove", ({ clientX, clientY }) => {
  if (pointer.length && Math.hypot(clientX - pointer[0], clientY - pointer[1]) > 2) document.body.classList.add("pointing");
  pointer = [clientX, clientY];
});

/** Return the next duel, or null if there is none now. */
async function nextDuel() {
  const { status, data } = await insist("/duels/next");
  if (status === 200) return data;
  byId("duel").hidden = true;
  if (status === 404) say("Nothing to answer now", "This page checks again every few seconds.");
  else say("There is no duel to show", data.detail);
  return null;
}

const pathOf = (duel) => `/duels/${encodeURIComponent(duel.id)}`;

/** Send an answer; return what is said about it. */
async function answer(duel, side) {
  const preferred = side === "tie" ? "tie" : (side === "left") === !duel.swapped ? "first" : "second";
  const { status, data } = await insist(`${pathOf(duel)}/answer`, "POST", { preferred });
  if (status === 200) {
    last = { ...duel, number: data.number };
    return "Answered.";
  }
  return status === 409 ? "This duel had already been answered elsewhere." : "This duel had expired.";
}

async function skip(duel) {
  await insist(pathOf(duel), "DELETE"); // if it is open no more, there is nothing to skip
  return "Skipped.";
}

/** Undo the last answer; return its duel, with the same arms on the same sides, if it is open again. */
async function undo() {
  const duel = last;
  last = null;
  const { status, data } = await insist(`${pathOf(duel)}/answer`, "DELETE");
  return status === 200 ? { ...duel, id: data.id } : null;
}

async function duels() {
  let duel = null;
  let note = "";
  for (;;) {
    duel ??= await nextDuel();
    let name;
    if (duel) {
      drawDuel(duel, note);
      await sleep(SETTLE);
      name = await pressed();
    } else {
      name = await pressed(POLL);
      if (!name) continue;
    }
    if (name === "undo") {
      const undone = await undo();
      note = undone ? "Your last answer was undone." : "Your last answer can no longer be undone.";
      duel = undone || duel;
    } else {
      note = name === "skip" ? await skip(duel) : await answer(duel, name);
      duel = null;
    }
    remark(note === "Answered." ? "" : note);
    byId("undo").classList.remove("chosen");
    drawStatus((await insist("/status")).data);
    scrollTo(0, 0);
  }
}

async function progress() {
  for (;;) {
    try {
      drawStatus((await ask("/status")).data);
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error; // duels() shows a notice
    }
    await sleep(POLL);
  }
}

async function main() {
  takeToken();
  try {
    await Promise.all([duels(), progress()]);
  } catch (error) {
    if (!(error instanceof WrongToken)) throw error;
    sessionStorage.removeItem("token");
    byId("duel").hidden = true;
    say("This page needs the service's token",
      "Open the address that the service prints when it starts. It ends in #token=… and is valid on this device only.");
  }
}

addEventListener("hashchange", () => location.reload()); // an address with a token was opened in this tab
main();
