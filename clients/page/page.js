// Duels and their answers, and the progress of rounds.

const SETTLE = 450; // milliseconds in which a press still belongs to the previous duel
const LONGEST = 10000; // milliseconds to wait for a picture

/* ---- Progress ------------------------------------------------------------------------------ */

/** Return in words which answers wait for a round, and how many different pairs are missing. */
function inRounds({ answered, counted, sent, needed, minimum, pairs, received }) {
  const waiting = answered - sent;
  if (pairs !== undefined && pairs < minimum) return `Nothing is sent: an upload needs answers about ${minimum} different pairs, and these options have only ${pairs}.`;
  const parts = [];
  if (sent > counted) parts.push(`${plural(sent - counted, "answer")} in an upload that the server has not confirmed.`);
  if (needed) {
    const lacking = plural(needed, waiting ? "more different pair" : "different pair");
    parts.push(waiting ? `${plural(waiting, "answer")} for the next round, which needs ${lacking}.` : `${sent > counted ? "The upload after this one" : "The next round"} needs answers about ${lacking}.`);
  } else if (waiting && (needed === 0 || received !== null)) {
    parts.push(`${plural(waiting, "answer")} for the next round.`);
  } else if (answered && received !== null && !parts.length) {
    parts.push("All answers are counted.");
  }
  return parts.join(" ");
}

const OPEN_SUMS = byId("privacy").textContent;

/** Return in words what the reports have cost, and whether the limit has ended them. */
function spentOf({ epsilon, delta, max_epsilon, days, refused }) {
  const period = days ? `of the last ${plural(days, "day")}` : "so far";
  const end = refused ? " The last exchange would have exceeded this limit, so this device did not take part. It still learns from your answers." : "";
  return `For all reports ${period}, epsilon is ${epsilon.toFixed(2)}, and your limit is ${max_epsilon} (delta ${delta}). This includes answers that you delete later.${end}`;
}

/** Return in words what the server can learn. */
function privacyOf({ secure, privacy, minimum, received, sent }) {
  if (!secure) {
    const none = received === null && !sent ? " Nothing has been sent so far." : "";
    return (minimum ? OPEN_SUMS.replace("over them", `over answers about at least ${plural(minimum, "different pair")}`) : OPEN_SUMS) + none;
  }
  return "Your answers stay on this device. Its reports are encrypted, and the server obtains only sums of them with noise, " +
    "with the help of a second party, the helper. What the server learns from your reports is differentially private, " +
    "whatever it asks and however many devices cooperate with it, as long as the helper follows the protocol and keeps its keys secret. " +
    `The same holds for the helper, as long as the server does. ${spentOf(privacy)} ` +
    "The server also learns which devices took part, and when.";
}

function drawStatus(status) {
  const { answered, counted, sent, needed, minimum, received, duels, undoable } = status;
  byId("progress").hidden = false;
  byId("answered").textContent = answered.toLocaleString("en");
  byId("counted").textContent = counted.toLocaleString("en");
  document.querySelectorAll(".shared").forEach((each) => { each.hidden = received === null; });
  byId("synchronized").textContent = inWords(duels ? received : null);
  byId("waiting").textContent = inRounds(status);
  byId("privacy").textContent = privacyOf(status);
  byId("upload").hidden = !needed || status.pairs < minimum;
  byId("upload").max = minimum || 1;
  byId("upload").value = (minimum || 1) - (needed || 0);
  if (last && !undoable && last.number <= sent) remark("Your last answer was uploaded. It can no longer be undone.");
  last = undoable && { id: undoable, number: answered };
  byId("undo").disabled = !last;
  drawLearned(status);
}

/* ---- The duel -------------------------------------------------------------------------- */

let choose = null; // called with the name of a button while the page waits for one
let early = ""; // the remark about a press at any other time
let hint = ""; // the remark about the last press if it was ignored
let last = null; // id of the duel that was answered last, and number of its answer, if it can be undone
let latest = null; // the duel that this page has answered last
let acts = 0; // number of answers, skips and undos that this page has sent
let spoken = ""; // what screen readers say about the duel that is shown
const sides = new Map(); // whether the arms of a duel are swapped: the same when it is shown again

/** Show a remark about the last press until the next one. */
function remark(text) {
  byId("note").textContent = text;
}

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
  features.replaceChildren(...described(arm.features || []).map(([name, value]) => {
    const row = element("span", "feature");
    row.append(element("span", "", name), " ", element("span", "", value));
    return row;
  }));
  const words = (text || image.alt).slice(0, 200);
  return `${name}: ${arm.features ? `${words}, ${inLine(arm.features)}` : words}.`;
}

/** Return the two arms from left to right. */
function placed(duel) {
  // The first arm is the favourite: if it were always left, a habit would look like a preference.
  const id = duel.id.replace(/~+$/, ""); // "~" is added when it is undone
  if (!sides.has(id)) sides.set(id, Math.random() < 0.5);
  duel.swapped = sides.get(id);
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
  spoken = [drawCard(byId("left"), left, "A"), drawCard(byId("right"), right, "B")].join(" ");
  announce([note, hint, note && "Next:", spoken].filter(Boolean).join(" "));
  const pair = document.querySelector(".pair");
  pair.classList.remove("arriving");
  void pair.offsetWidth; // restarts the animation
  pair.classList.add("arriving");
}

/** Wait until the person can have seen both arms; a picture that does not load is replaced by words. */
async function seen() {
  early = "A press was ignored: the pair had only just appeared.";
  await Promise.all([...document.querySelectorAll(".choice img:not([hidden])")].map(async (image) => {
    const loaded = new Promise((done) => ["load", "error"].forEach((event) => image.addEventListener(event, done)));
    if (!image.complete) await Promise.race([loaded, sleep(LONGEST)]);
    if (image.complete) return;
    image.removeAttribute("src");
    image.onerror();
  }));
  await sleep(SETTLE);
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
  if (!done && early) {
    hint = early;
    remark(hint);
    announce(`${hint} ${spoken}`.trim());
  }
  if (!done || byId(name).disabled || !byId(name).offsetParent) return; // not while it is hidden
  choose = null; // the next press belongs to the next duel
  early = "A press was ignored: your last answer was still being saved.";
  hint = spoken = "";
  byId(name).classList.add("chosen");
  done(name);
}

const KEYS = { ArrowLeft: "left", ArrowRight: "right", ArrowDown: "tie", ArrowUp: "skip", Backspace: "undo" };
for (const name of Object.values(KEYS)) byId(name).addEventListener("click", () => take(name));
document.addEventListener("keydown", (event) => {
  if (event.repeat && event.key === "Enter") event.preventDefault(); // a key that is held down is one press
  const name = KEYS[event.key];
  if (!name || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  if (name !== "undo" && byId("duel").hidden && !byId("notice").hidden) return;
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
  early = "A press was ignored: the next pair was not shown yet.";
  const { status, data } = await insist("/duels/next");
  if (status === 200) return data;
  byId("duel").hidden = true;
  if (status === 404) say("Nothing to answer now", "This page checks again every few seconds.");
  else say("There is no duel to show", data.detail);
  return null;
}

const pathOf = (duel) => `/duels/${encodeURIComponent(duel.id)}`;

/** Send an answer; return the remark about it. */
async function answer(duel, side) {
  const preferred = side === "tie" ? "tie" : (side === "left") === !duel.swapped ? "first" : "second";
  const { status } = await insist(`${pathOf(duel)}/answer`, "POST", { preferred });
  if (status === 200) {
    latest = duel;
    return "Answered.";
  }
  return status === 409 ? "This duel had already been answered elsewhere." : "This duel had expired.";
}

async function skip(duel) {
  await insist(pathOf(duel), "DELETE"); // if it is no longer open, there is nothing to skip
  return "Skipped.";
}

/** Undo the last answer; return the duel to show, the same one if possible, and the remark. */
async function undo() {
  const { status, data } = await insist(`${pathOf(last)}/answer`, "DELETE");
  let duel = await nextDuel();
  if (status !== 200) return [duel, "Your last answer can no longer be undone."];
  // If the service was started again, only this page may know the pair.
  if (duel?.id !== data.id && data.id === `${latest?.id}~`) duel = { ...latest, id: data.id };
  const again = duel?.id === data.id ? "" : " Its pair is no longer known, and is not shown again.";
  return [duel, `Your last answer was undone.${again}`];
}

async function duels() {
  let duel = null;
  let note = "";
  for (;;) {
    duel ??= await nextDuel();
    let name;
    if (duel) {
      drawDuel(duel, note);
      await seen();
      name = await pressed();
    } else {
      name = await pressed(POLL);
      if (!name) continue;
    }
    if (name === "undo") {
      [duel, note] = await undo();
    } else {
      note = name === "skip" ? await skip(duel) : await answer(duel, name);
      duel = null;
    }
    remark(hint || (note === "Answered." ? "" : note));
    byId("undo").classList.remove("chosen");
    acts += 1;
    drawStatus((await insist("/status")).data);
    scrollTo(0, 0);
  }
}

async function progress() {
  for (;;) {
    try {
      const before = acts;
      const { data } = await ask("/status");
      if (acts === before) drawStatus(data); // ignore a status from before the last press
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
      "Open the address that the service prints when it starts. It ends in #token=… and is valid only on this device.");
  }
}

addEventListener("hashchange", () => location.reload()); // an address with a token was opened in this tab
main();
