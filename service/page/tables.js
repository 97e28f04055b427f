/** The figures of a result as tables: one row an attack, or one row a corruption. */

import { gauge } from "./chart.js";
import { h } from "./dom.js";
import { attackName, figure, interval, percent, spokenPoint } from "./words.js";

function cell(name, value, samples, tone, withGauge = false) {
  const { top1, ci } = figure(value);
  if (top1 === null) return h("td", { "data-name": name }, "–");
  return h("td", { "data-name": name },
    h("span", { className: "measure" },
      h("span", { className: "number" }, percent(top1, samples)),
      ci && withGauge ? h("span", { className: "range" }, interval(ci, samples)) : null,
      withGauge ? gauge({ top1, ci }, tone) : null));
}

const rankCell = (value, rank, k, samples) => rank && cell(rank, value.top_k[k], samples);

function attackRows(model, { tone, rank, k, eightBit }) {
  const rows = [...model.attacks].sort((a, b) => a.name.localeCompare(b.name) || a.eps_value - b.eps_value);
  return rows.map((attack) => h("tr", {},
    h("th", { scope: "row" }, attackName(attack.name), h("span", { className: "eps" }, spokenPoint(attack))),
    cell("robust", attack.robust, model.samples, tone, true),
    rankCell(attack.robust, rank, k, model.samples),
    cell("confirmed", attack.confirmed, model.samples, tone),
    eightBit && cell("in 8 bit", attack.confirmed_8bit, model.samples, tone)));
}

const caption = (model, tone) => h("caption", {}, h("span", { className: `key ${tone}` }, model.name),
  h("span", { className: "caption-detail" }, `${model.runtime}, ${model.precision} · `, h("code", { title: model.digest }, model.digest.slice(0, 12))));

/** Every attack on one model; null where there was none with a budget. */
export function attackTable(model, tone, { stability, k, kind }) {
  if (!model.attacks.length) return null;
  const rank = k > 1 ? `top ${k}` : null;
  const eightBit = kind === "image";
  const heads = ["attack", stability ? "keeps its answer" : "still correct", rank, "confirmed", eightBit && "in 8 bit"].filter(Boolean);
  return h("table", { className: "figures" }, caption(model, tone),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {},
      h("tr", { className: "clean" }, h("th", { scope: "row" }, "clean"), cell(heads[1], model.clean, model.samples, tone, true), rankCell(model.clean, rank, k, model.samples), h("td"), eightBit && h("td")),
      attackRows(model, { tone, rank, k, eightBit })));
}

function severityCell(found, tone, samples) {
  if (!found) return h("td", {}, "–");
  const level = h("span", { className: `level ${tone}` });
  level.style.width = `${found.accuracy.top1 * 100}%`;
  return h("td", { title: interval(found.accuracy.ci, samples) }, h("span", { className: "number" }, percent(found.accuracy.top1, samples)), h("span", { className: "track" }, level));
}

/** Accuracy under each common corruption at each severity; null where none was tried. */
export function corruptionTable(model, tone) {
  const { corruptions } = model;
  if (!corruptions.length) return null;
  const severities = [...new Set(corruptions.map(({ severity }) => severity))].sort();
  const names = [...new Set(corruptions.map(({ name }) => name))];
  const at = (name, severity) => corruptions.find((one) => one.name === name && one.severity === severity);
  return h("table", { className: "figures corruptions" }, caption(model, tone),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "severity"), severities.map((severity) => h("th", { scope: "col" }, String(severity))))),
    h("tbody", {}, names.map((name) => h("tr", {}, h("th", { scope: "row" }, name.replaceAll("_", " ")),
      severities.map((severity) => severityCell(at(name, severity), tone, model.samples))))));
}
