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

/** Send one request: a POST if there is an `answer`. */
async function ask(path, answer) {
  const token = sessionStorage.getItem("token");
  if (!token) throw new WrongToken();
  const headers = { Authorization: `Bearer ${token}` };
  const post = { method: "POST", body: JSON.stringify(answer), headers: { ...headers, "Content-Type": "application/json" } };
  let response, data;
  try {
    response = await fetch(path, { ...(answer ? post : { headers }), signal: AbortSignal.timeout(PATIENCE) });
    data = await response.json();
  } catch {
    throw new Unreachable("The service does not answer");
  }
  if (response.status === 401) throw new WrongToken();
  if (response.status >= 500) throw new Unreachable(data.detail);
  return { status: response.status, data };
}

/** Repeat a request until the service replies. */
async function insist(path, answer) {
  for (let gone = false; ; gone = true) {
    try {
      const reply = await ask(path, answer);
      if (gone) say();
      return reply;
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      say(error.message, answer
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

/** Draw the largest components of theta as a list with numbers and bars. */
function drawLearned(theta, duels) {
  byId("learned").hidden = false;
  const largest = (theta || [])
    .map((value, index) => ({ value, index }))
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    .slice(0, BARS);
  const scale = Math.max(...largest.map(({ value }) => Math.abs(value))) || 1;
  byId("learned-note").textContent = theta
    ? `From ${duels.toLocaleString("en")} answers on all devices. Bars to the right: more of this feature is preferred; to the left: less of it is preferred.` +
      (theta.length > BARS ? ` The ${BARS} largest of ${theta.length} are shown.` : "")
    : "Nothing yet: this device was never synchronized. Pairs are selected for exploration.";
  byId("bars").replaceChildren(...largest.map(({ value, index }) => {
    const row = element("li", "");
    const track = element("span", "track");
    const bar = element("span", value < 0 ? "bar less" : "bar");
    const share = (Math.abs(value) / scale) * 50;
    bar.style.width = `${share}%`;
    bar.style.left = `${value < 0 ? 50 - share : 50}%`;
    track.append(bar);
    const size = Math.abs(value) >= 0.005 || value === 0 ? Math.abs(value).toFixed(2) : Math.abs(value).toExponential(0);
    row.append(element("span", "name", `Feature ${index + 1}`), track, element("span", "value", (value < 0 ? "−" : "+") + size));
    return row;
  }));
}

function drawStatus(status) {
  byId("progress").hidden = false;
  byId("answered").textContent = status.answered.toLocaleString("en");
  byId("counted").textContent = status.counted.toLocaleString("en");
  byId("synchronized").textContent = inWords(status.received);
  drawLearned(status.theta, status.duels);
}

/* ---- The duel -------------------------------------------------------------------------- */

let choose = null; // called with "left", "right" or "tie" while the page waits for an answer

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
  return `${name}: ${(text || image.alt).slice(0, 200)}.`;
}

/** Show a duel and return the promise of its answer. */
async function answered(duel, before) {
  // The first arm is the favourite: if it were always left, a habit would look like a preference.
  const swapped = Math.random() < 0.5;
  const [left, right] = swapped ? [duel.second, duel.first] : [duel.first, duel.second];
  byId("duel").hidden = false;
  const spoken = [drawCard(byId("left"), left, "A"), drawCard(byId("right"), right, "B")];
  announce([before, ...spoken].join(" ").trim());
  const pair = document.querySelector(".pair");
  pair.classList.remove("arriving");
  void pair.offsetWidth; // restarts the animation
  pair.classList.add("arriving");
  for (const id of ["left", "right", "tie"]) byId(id).classList.remove("chosen");
  await sleep(SETTLE);
  const side = await new Promise((done) => { choose = done; });
  choose = null;
  byId(side).classList.add("chosen");
  return { tie: "tie", left: swapped ? "second" : "first", right: swapped ? "first" : "second" }[side];
}

function take(side) {
  const done = choose;
  choose = null; // the next press belongs to the next duel
  if (done) done(side);
}

for (const side of ["left", "right", "tie"]) byId(side).addEventListener("click", () => take(side));
document.addEventListener("keydown", (event) => {
  if (event.repeat && event.key === "Enter") event.preventDefault(); // a key that is held down is one press
  const side = { ArrowLeft: "left", ArrowRight: "right", ArrowDown: "tie" }[event.key];
  if (!side || byId("duel").hidden || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (!event.repeat) take(side);
});

/** Wait for the next duel and return it. */
async function nextDuel() {
  for (;;) {
    const { status, data } = await insist("/duels/next");
    if (status === 200) {
      say();
      return data;
    }
    byId("duel").hidden = true;
    if (status === 404) say("Nothing to answer now", "This page checks again every few seconds.");
    else say("There is no duel to show", data.detail);
    await sleep(POLL);
  }
}

async function duels() {
  let before = "";
  for (;;) {
    const duel = await nextDuel();
    const preferred = await answered(duel, before);
    const { status } = await insist(`/duels/${encodeURIComponent(duel.id)}/answer`, { preferred });
    before = status === 200 ? "Answered. Next:" : status === 409
      ? "This duel had already been answered elsewhere. Next:" : "This duel had expired. Next:";
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
