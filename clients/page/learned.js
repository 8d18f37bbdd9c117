// What was learned: favourites, and weights of features.

const BARS = 8;
const ROUNDING = 1e-9; // weights below this share of the largest are 0

/** Return what the estimate is computed from, and when this person's answers count. */
function sourceOf({ answered, duels, received }, { own, weights }) {
  if (!own && !duels) return "Waiting for the first round. What is learned from the answers of all devices appears here after it.";
  if (!weights.some(Boolean)) {
    return answered || !own ? "No preference is visible in the answers so far." : "Nothing has been learned yet. What you prefer appears here after your first answers.";
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
  const scale = weights.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const largest = weights
    .map((value, index) => ({ value, name: names ? names[index] : `Feature ${index + 1}` }))
    .filter(({ value }) => Math.abs(value) > ROUNDING * scale)
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    .slice(0, BARS);
  byId("weights").hidden = !largest.length;
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
