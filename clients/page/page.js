"use strict";
// Texts of duels are untrusted: they reach the page as text nodes and as addresses of images only.

const POLL = 3000; // milliseconds until the service is asked again
const SETTLE = 450; // a second press within it was meant for the duel before
const PATIENCE = 40000; // the service itself waits 30 seconds for a locked store
const BARS = 8;
const byId = (id) => document.getElementById(id);
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/* ---- The service ----------------------------------------------------------------------- */

class WrongToken extends Error {}
class Unreachable extends Error {}

/** Take the token out of the address, where it could be copied or photographed by accident. */
function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem("token", found);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

/** Ask the service once; `answer` makes it a POST. */
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

/** Ask until the service replies. */
async function insist(path, answer) {
  for (let gone = false; ; gone = true) {
    try {
      const reply = await ask(path, answer);
      if (gone) say();
      return reply;
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      say(error.message, answer
        ? "Your answer is kept here and sent again every few seconds, until the service has it."
        : "Nothing is lost. This page tries again every few seconds.");
      await sleep(POLL);
    }
  }
}

/* ---- What is said ---------------------------------------------------------------------- */

function announce(text) {
  byId("live").textContent = text;
}

/** Show a notice, or none. */
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

/** Draw theta's largest components: a list with numbers, which bars repeat for the eye. */
function drawLearned(theta, duels) {
  byId("learned").hidden = false;
  const largest = (theta || [])
    .map((value, index) => ({ value, index }))
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    .slice(0, BARS);
  const scale = Math.max(...largest.map(({ value }) => Math.abs(value))) || 1;
  byId("learned-note").textContent = theta
    ? `From ${duels.toLocaleString("en")} answers on all devices. Bars to the right: the more of a feature, the better; to the left: the worse.` +
      (theta.length > BARS ? ` The ${BARS} largest of ${theta.length} are shown.` : "")
    : "Nothing yet: this device was never synchronized. Pairs are chosen for what they teach.";
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

let choose = null; // takes "left", "right" or "tie" while an answer is waited for

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
  // The first arm is the favourite: were it always left, a habit would look like a preference.
  const swapped = Math.random() < 0.5;
  const [left, right] = swapped ? [duel.second, duel.first] : [duel.first, duel.second];
  byId("duel").hidden = false;
  const spoken = [drawCard(byId("left"), left, "A"), drawCard(byId("right"), right, "B")];
  announce([before, ...spoken].join(" ").trim());
  const pair = document.querySelector(".pair");
  pair.classList.remove("arriving");
  void pair.offsetWidth; // begin the animation anew
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
  choose = null; // the next press is not for this duel
  if (done) done(side);
}

for (const side of ["left", "right", "tie"]) byId(side).addEventListener("click", () => take(side));
document.addEventListener("keydown", (event) => {
  if (event.repeat && event.key === "Enter") event.preventDefault(); // a key held down is one press
  const side = { ArrowLeft: "left", ArrowRight: "right", ArrowDown: "tie" }[event.key];
  if (!side || byId("duel").hidden || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (!event.repeat) take(side);
});

/** Return the next duel; wait until there is one. */
async function nextDuel() {
  for (;;) {
    const { status, data } = await insist("/duels/next");
    if (status === 200) {
      say();
      return data;
    }
    byId("duel").hidden = true;
    if (status === 404) say("Nothing to answer now", "This page looks again every few seconds.");
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
      ? "This duel was answered elsewhere before. Next:" : "This duel had expired. Next:";
    drawStatus((await insist("/status")).data);
    scrollTo(0, 0);
  }
}

async function progress() {
  for (;;) {
    try {
      drawStatus((await ask("/status")).data);
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error; // the duels say that it is gone
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
      "Open the address that the service prints when it starts: it ends in #token=… and is for this device alone.");
  }
}

addEventListener("hashchange", () => location.reload()); // an address with a token was opened here
main();
