/** Two models on the same inputs: who is right where. */

import { h } from "./dom.js";
import { percent } from "./words.js";

function parts({ both, only_first: first, only_second: second, neither }, names) {
  return [
    ["both", "both", both],
    ["only-first", `only ${names.first}`, first],
    ["only-second", `only ${names.second}`, second],
    ["neither", "neither", neither],
  ].filter(([, , number]) => number > 0);
}

function row(title, pair, names) {
  const total = pair.both + pair.only_first + pair.only_second + pair.neither;
  const bars = parts(pair, names).map(([kind, text, number]) => {
    const bar = h("span", { className: `share ${kind}`, title: `${text}: ${number}` });
    bar.style.flexGrow = String(number);
    return bar;
  });
  const said = parts(pair, names).map(([kind, text, number]) => h("li", {}, h("span", { className: `swatch ${kind}`, "aria-hidden": "true" }), `${text} ${number}`));
  const [low, high] = pair.ci.map((value) => `${value > 0 ? "+" : ""}${(value * 100).toFixed(0)}`.replace("-", "−"));
  return h("div", { className: "pair" },
    h("p", { className: "pair-title" }, title, h("span", { className: "range" }, ` ${percent(pair.first, total)} and ${percent(pair.second, total)}; the true difference lies between ${low} and ${high} points`)),
    h("div", { className: "shares", "aria-hidden": "true" }, bars),
    h("ul", { className: "legend" }, said));
}

/** The section that sets two models side by side; null where there is one. */
export function comparisonSection(result, kind, worst) {
  const { comparison } = result;
  if (!comparison) return null;
  const rows = [row("before any attack", comparison.clean, comparison)];
  if (comparison.largest) rows.push(row(`under the worst attack within ${worst}`, comparison.largest, comparison));
  return h("section", { "aria-labelledby": "comparison-title" },
    h("h2", { id: "comparison-title" }, "Side by side"),
    h("p", { className: "hint" }, result.metric === "stability" ? `Which of the two keeps its answer to each ${kind}.` : `Which of the two is right about each ${kind}.`),
    rows);
}
