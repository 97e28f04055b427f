/** A prediction as bars, and the label beside it. */

import { h } from "./dom.js";
import { chance } from "./words.js";

function bar(entry, tone) {
  const fill = h("span", { className: "fill" });
  fill.style.width = `${entry.probability * 100}%`;
  return h("li", { className: `bar ${tone}` },
    h("span", { className: "bar-label", title: entry.label }, entry.label),
    h("span", { className: "bar-value" }, chance(entry.probability)),
    h("span", { className: "track" }, fill));
}

/** The label of an input, where the chosen model knows such a class. */
export const truth = ({ label }, model) => (model.labels.includes(label) ? label : null);

/** What a model makes of an input: bars, the refusal, or that the answer is still awaited. */
export function bars(item, model) {
  if (item.error) return h("p", { className: "card-error" }, item.error.message);
  if (!item.prediction) return h("p", { className: "card-wait" }, "reading …");
  const right = truth(item, model) === null ? "plain" : item.prediction.label === item.label ? "hold" : "fall";
  return h("ol", { className: "bars" }, item.prediction.top_k.map((entry, rank) => bar(entry, rank ? "rest" : right)));
}

/** The label of an input: as it came, or for the user to choose. */
export function labelField(item, model, tray) {
  if (item.known && truth(item, model) === null) return h("p", { className: "truth" }, `label ${item.label}, which this model does not know`);
  if (item.known) {
    const right = item.prediction && item.prediction.label === item.label;
    return h("p", { className: "truth" }, `label ${item.label}`,
      item.prediction && h("span", { className: right ? "mark hold" : "mark fall", title: right ? "named correctly" : "named wrongly" }, right ? " ✓" : " ✗"));
  }
  const options = model.labels.map((label) => h("option", { value: label, selected: label === item.label }, label));
  return h("p", { className: "truth" }, h("label", {}, "label ",
    h("select", { className: "truth-select", onchange: (event) => tray.setLabel(item, event.target.value || null) },
      h("option", { value: "" }, "unknown"), options)));
}
