"use strict";
// The script of the page consists of basics.js, service.js, learned.js and page.js, in this order.
// Contents of duels are untrusted: they are inserted as text nodes and URLs of images only.

const POLL = 3000; // milliseconds between two requests
const byId = (id) => document.getElementById(id);
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const shortNumber = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 });
/** Return the name of a feature in words, such as "colour: red" for `colour=red`. */
const inWordsOf = (name) => name.replaceAll("_", " ").replace("=", ": ");

/** Return pairs of names and values to show: "colour" and "red" for the indicators of a text column. */
function described(features) {
  return features.filter(({ name, value }) => value !== 0 || !name.includes("=")).map(({ name, value }) => {
    const [column, ...text] = name.split("=");
    return text.length && value === 1 ? [inWordsOf(column), text.join("=")] : [inWordsOf(name), shortNumber(value)];
  });
}
const inLine = (features) => described(features).map((pair) => pair.join(" ")).join(", ");

function inWords(seconds) {
  if (seconds === null) return "never";
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  for (const [unit, length] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    const number = Math.floor(passed / length);
    if (number >= 1) return `${number.toLocaleString("en")} ${unit}${number === 1 ? "" : "s"} ago`;
  }
  return "just now";
}

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
