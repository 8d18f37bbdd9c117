"use strict";
// In the head, before the first paint. `data-choice` is the user's, `data-theme` is what is shown.
const theme = {
  key: "fldb-report-theme",
  dark: matchMedia("(prefers-color-scheme: dark)"),
  apply(choice) {
    const { dataset, classList } = document.documentElement;
    dataset.choice = ["light", "dark"].includes(choice) ? choice : "system";
    const isDark = dataset.choice === "system" ? this.dark.matches : dataset.choice === "dark";
    dataset.theme = isDark ? "dark" : "light";
    classList.toggle("dark", isDark); // DataTables' own
  },
  choose(choice) {
    this.apply(choice);
    try { localStorage.setItem(this.key, choice); } catch { /* storage is off: not remembered */ }
  },
  restore() {
    try { this.apply(localStorage.getItem(this.key)); } catch { this.apply("system"); }
  },
};
theme.restore();
