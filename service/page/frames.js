/** One picture with what it is and what the model says to it. */

import { h } from "./dom.js";
import { imageModels, textModels } from "./models.js";
import { picture } from "./pictures.js";

/** What an index means. The served model's own names, where it is still served: two models need not share their classes. */
export function labelNames(report, model) {
  const served = [...imageModels.all, ...textModels.all].find(({ name }) => name === model);
  const names = served?.labels ?? report.data.labels;
  return (index) => names[index] ?? `class ${index}`;
}

/** A picture of the service with its caption; `tone` is hold, fall or neither. */
export function frame(address, alt, title, answer, tone = "") {
  return h("figure", { className: "frame" }, picture(address, alt, { width: 112, height: 112 }),
    h("figcaption", {}, h("span", { className: "frame-title" }, title), h("span", { className: `answer ${tone}`, title: answer }, answer)));
}
