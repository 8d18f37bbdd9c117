// What was learned: favourites, and weights of features.

const BARS = 8;
const ROUNDING = 1e-9; // weights below this share of the largest are 0
const DEVIATIONS = 1.96; // on each side of a 95% interval

/** Return what the estimate is computed from, and when this person's answers count. */
function sourceOf({ answered, duels, received }, { own, weights }) {
  if (!own && !duels) return "Waiting for the first round. What is learned from the answers of all devices appears here after it.";
  if (!weights.some(Boolean)) {
    return answered || !own ? "No preference is visible in the answers so far." : "Nothing has been learned yet. What you prefer appears here after your first answers.";
  }
  if (!own) return `Based on ${plural(duels, "answer")} from all devices, as of the last round. Your new answers count from the next round on.`;
  if (!answered) return "Based on what other devices have learned. Each of your answers counts immediately.";
  const others = received === null ? "" : " and on what other devices have learned";
  return `Based on your ${plural(answered, "answer")}${others}. Each answer counts immediately.`;
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
    const [share, low, high] = [arm.preferred, arm.low, arm.high].map((value) => Math.round(100 * value));
    row.append(shown, ...inBoth(`${share}% (${low}–${high}%)`, `, preferred in ${share}%, 95% interval from ${low}% to ${high}%`));
    return row;
  }));
}

/** Return a number with its uncertainty as it is displayed, and as screen readers say it. */
function inBoth(displayed, said) {
  const shown = element("span", "value", displayed);
  shown.ariaHidden = "true";
  return [shown, element("span", "unseen", said)];
}

/** Return the decimals that give the largest margin two digits, and the smallest one. */
function decimalsOf(margins) {
  return Math.max(1 - Math.floor(Math.log10(Math.max(...margins))), -Math.floor(Math.log10(Math.min(...margins))));
}

/** Return a value, its margin and its interval as texts. */
function withMargin(value, margin, decimals) {
  const text = (number) => (decimals > 6 ? number.toExponential(1) : number.toFixed(Math.max(0, decimals))).replaceAll("-", "−");
  const signed = (number) => (number < 0 ? "" : "+") + text(number);
  const interval = `, 95% interval from ${signed(value - margin)} to ${signed(value + margin)}`;
  return inBoth(`${signed(value)} ± ${text(margin)}`, signed(value) + interval);
}

/** Draw the largest components of theta, times the scales of features, with their 95% intervals. */
function drawWeights({ weights: perUnit, deviations, names, scales, directions }) {
  const weights = perUnit.map((weight, index) => weight * scales[index]);
  const most = weights.reduce((found, value) => Math.max(found, Math.abs(value)), 0);
  const largest = weights
    .map((value, index) => ({ value, margin: DEVIATIONS * deviations[index] * scales[index], name: names ? inWordsOf(names[index]) : `Feature ${index + 1}` }))
    .filter(({ value }) => Math.abs(value) > ROUNDING * most)
    .sort((a, b) => Math.abs(b.value) - Math.abs(a.value))
    .slice(0, BARS);
  const scale = Math.max(...largest.map(({ value, margin }) => Math.abs(value) + margin));
  const decimals = decimalsOf(largest.map(({ margin }) => margin));
  byId("weights").hidden = !largest.length;
  byId("weights-note").textContent =
    "The effect of a typical difference. To the right: more of the feature is preferred. To the left: less of it is preferred. Lines and ±: 95% intervals." +
    (weights.length > BARS ? ` The largest ${BARS} of ${weights.length} weights are shown.` : "") +
    (directions.length ? ` People differ most in ${listed(Object.keys(directions[0].weights).slice(0, 3).map(inWordsOf))}.` : "");
  byId("bars").replaceChildren(...largest.map(({ value, margin, name }) => {
    const row = element("li", "");
    const track = element("span", "track");
    const draw = (className, from, to) => {
      const part = element("span", className);
      part.style.left = `${50 + (from / scale) * 50}%`;
      part.style.width = `${((to - from) / scale) * 50}%`;
      track.append(part);
    };
    draw(value < 0 ? "bar less" : "bar", Math.min(0, value), Math.max(0, value));
    draw("interval", value - margin, value + margin);
    row.append(element("span", "name", name), track, ...withMargin(value, margin, decimals));
    return row;
  }));
}

const SUMMARY = 50; // answers from which on there is a summary
const SHORT = 60; // longest name of an option in it

const nameOf = ({ text, key }) => {
  const name = text || key || "a picture";
  return name.length > SHORT ? `${name.slice(0, SHORT)}…` : name;
};
const listed = (names) => new Intl.ListFormat("en").format(names);
const percent = (share) => Math.round(100 * share);

/** Return what was learned, how certain it is, and how well it predicts, as sentences. */
function findings({ own, weights, deviations, names }, favourites, { predicted, right, expected }) {
  const found = [];
  if (favourites.length) {
    const [{ preferred, low, high }, ...others] = favourites;
    const best = `${own ? "Your favourite" : "The favourite of all devices"}: ${nameOf(favourites[0])}. ` +
      `The estimated chance that it is preferred to an average option is ${percent(preferred)}% (95% interval: ${percent(low)} to ${percent(high)}%).`;
    found.push(others.length ? `${best} Next: ${listed(others.slice(0, 2).map(nameOf))}.` : best);
  }
  if (names) {
    const clear = (sign) => names.filter((_, index) => sign * weights[index] > DEVIATIONS * deviations[index]);
    const parts = [["more ", clear(1)], ["less ", clear(-1)]].filter(([, some]) => some.length).map(([how, some]) => how + listed(some.slice(0, 5).map(inWordsOf)));
    found.push(parts.length ? `Clearly preferred: ${parts.join("; ")}.` : "No feature is clearly preferred yet.");
  }
  if (predicted) {
    found.push(`${right} of the last ${plural(predicted, "prediction")} were right, and about ${Math.round(expected)} were expected. Pairs are chosen for what their answers teach, and some are hard to predict.`);
  }
  return found;
}

function drawSummary({ answered }, weights, favourites, predictions) {
  const sentences = predictions.answers < SUMMARY ? [] : findings(weights, favourites, predictions);
  byId("summary").hidden = !sentences.length;
  byId("summary-title").textContent = `Thank you for ${plural(answered, "answer")}`;
  byId("findings").replaceChildren(...sentences.map((sentence) => {
    const row = element("li", "", sentence);
    row.dir = "auto";
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
  let weights, favourites, predictions;
  try {
    [weights, favourites, predictions] = await Promise.all([ask("/weights"), ask("/favourites"), ask("/predictions")]);
  } catch (error) {
    if (error instanceof Unreachable || error instanceof WrongToken) return; // the next status draws it
    throw error;
  }
  if (number !== drawings) return; // a later one was faster
  learnedFrom = state;
  byId("learned").hidden = false;
  byId("learned-note").textContent = sourceOf(status, weights.data);
  drawFavourites(favourites.data, weights.data.own);
  drawWeights(weights.data);
  drawSummary(status, weights.data, favourites.data, predictions.data);
}
