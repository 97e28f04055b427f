/** A finished evaluation: the verdict in words, the figures, the curve, the doubts. */

import { pageUrl, pictureUrl, reportUrl } from "./api.js";
import { gauge, robustnessCurve } from "./charts.js";
import { h } from "./dom.js";
import { frame, labelNames } from "./evidence.js";
import { attackName, confirmation, figure, headline, interval, leftAtWorst, percent, precisionNote, rivalry, smallestFall, spokenPoint, worstOf } from "./words.js";

const TONES = ["first", "second"];

function gateLine(gate) {
  if (!gate) return null;
  return h("p", { className: `gate ${gate.passed ? "hold" : "fall"}` }, `Gate ${gate.text}: ${gate.passed ? "held" : "failed"} (${gate.reason}).`);
}

/** The picture beside the verdict: how little it took. */
function keyExhibit(evaluation, report) {
  const fall = smallestFall(report.samples, 0);
  if (!fall) return null;
  const { sample, attack } = fall;
  const model = sample.models[0];
  const nameOf = labelNames(report, model.name);
  const url = (kind) => pictureUrl(evaluation.id, sample.index, kind, { attack: attack.name, eps: attack.eps, model: model.name });
  return h("div", { className: "key-exhibit" },
    h("div", { className: "frames" },
      frame(url("clean"), `image ${sample.index}, unchanged`, "clean", nameOf(model.clean.index), "hold"),
      frame(url("perturbation"), `what the attack changed in image ${sample.index}, amplified`, "change, amplified", `within ${attack.eps}`),
      frame(url("adversarial"), `image ${sample.index} after the attack`, "adversarial", nameOf(attack.adversarial_index), "fall")),
    h("p", { className: "hint" }, `The smallest eps that misled it: no pixel of image #${sample.index} moved by more than ${attack.eps}.`));
}

function verdict(evaluation, report) {
  const result = evaluation.result;
  const [first, second] = result.models;
  const { kind } = report.data;
  const lines = [
    result.metric === "stability" ? "No labels were given: the model’s own answers stand in. This says how hard it is to change its mind, not whether it was right." : null,
    second ? rivalry(first, second, result.comparison) : null,
    confirmation(report.samples, 0, kind),
    precisionNote(first, kind),
  ].filter(Boolean);
  return h("section", { className: "verdict-section", "aria-label": "Verdict" },
    h("div", {},
      h("p", { className: "verdict" }, headline(first, result.metric, kind)),
      lines.map((line) => h("p", { className: "finding" }, line)),
      gateLine(result.gate),
      h("p", { className: "finding" }, h("a", { id: "whole-report", href: pageUrl(evaluation.id), target: "_blank", rel: "noopener" }, "Open the whole report"), ", a page in one file to keep or to send.")),
    keyExhibit(evaluation, report));
}

function reading(name, note, share, samples, tone) {
  return h("div", { className: "reading" },
    h("dt", {}, name, h("small", {}, note)),
    h("dd", {}, h("span", { className: "reading-number" }, percent(share.top1, samples)), gauge(share, tone),
      h("span", { className: "range" }, share.ci ? interval(share.ci, samples) : "")));
}

/** One model's readings: before the attacks, after them, twice judged again, and under corruptions. */
function readings(model, index, report) {
  const worst = worstOf(model);
  const level = (name) => ({ top1: leftAtWorst(report.samples, index, name), ci: null });
  const error = model.mean_corruption_error;
  const rows = [
    ["clean", "before any attack", model.clean],
    worst && ["robust", `worst attack within ${worst.eps}`, worst],
    worst && ["confirmed", "judged as served", level("confirmed")],
    worst && report.data.kind === "image" && ["in 8 bit", "written as PNG first", level("confirmed_8bit")],
    error !== null && ["corrupted", "mean over corruptions", { top1: 1 - error, ci: null }],
  ].filter(Boolean);
  return h("section", { className: "readings", "aria-label": model.name },
    h("p", { className: `readings-name key ${TONES[index]}` }, model.name),
    h("dl", {}, rows.map(([name, note, share]) => reading(name, note, share, model.samples, TONES[index]))));
}

function doubts({ warnings, reliable, models }) {
  if (!warnings.length && reliable) return null;
  const sentence = ({ model, message }) => (models.length > 1 ? `${model}: ${message}` : message);
  return h("section", { className: "doubts", "aria-labelledby": "doubts-title" },
    h("h2", { id: "doubts-title" }, reliable ? "Worth knowing" : "Do not rely on these figures"),
    h("ul", {}, warnings.map((warning) => h("li", {}, sentence(warning)))));
}

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

function attackRows(model, tone, rank, k) {
  const rows = [...model.attacks].sort((a, b) => a.name.localeCompare(b.name) || a.eps_value - b.eps_value);
  return rows.map((attack) => h("tr", {},
    h("th", { scope: "row" }, attackName(attack.name), h("span", { className: "eps" }, spokenPoint(attack))),
    cell("robust", attack.robust, model.samples, tone, true),
    rankCell(attack.robust, rank, k, model.samples),
    cell("confirmed", attack.confirmed, model.samples, tone),
    cell("in 8 bit", attack.confirmed_8bit, model.samples, tone)));
}

function table(model, tone, stability, k) {
  const rank = k > 1 ? `top ${k}` : null;
  const heads = ["attack", stability ? "keeps its answer" : "still correct", rank, "confirmed", "in 8 bit"].filter((head) => head !== null);
  return h("table", { className: "figures" },
    h("caption", {}, h("span", { className: `key ${tone}` }, model.name),
      h("span", { className: "caption-detail" }, `${model.runtime}, ${model.precision} · `, h("code", { title: model.digest }, model.digest.slice(0, 12)))),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {},
      h("tr", { className: "clean" }, h("th", { scope: "row" }, "clean"), cell(heads[1], model.clean, model.samples, tone, true), rankCell(model.clean, rank, k, model.samples), h("td"), h("td")),
      attackRows(model, tone, rank, k)));
}

function figures(evaluation, result, { notes, data }) {
  const stability = result.metric === "stability";
  return h("section", { "aria-labelledby": "figures-title" },
    h("h2", { id: "figures-title" }, "Figures"),
    robustnessCurve(result.models, stability ? "Share of answers kept" : `Share of ${data.kind}s named correctly`),
    h("div", { className: "tables" }, result.models.map((model, i) => table(model, TONES[i], stability, Math.max(...result.top_k)))),
    h("p", { className: "hint" },
      "Attacks are found on a differentiable twin of the model. Confirmed: what is left when each success is judged again on the model as served. ",
      "In 8 bit: when the picture is first written as a PNG. Ranges are 95 % Wilson intervals. ",
      h("a", { href: reportUrl(evaluation.id), download: `assay-${evaluation.id}.json` }, "Download report.json"),
      ", which holds every judgement of every image."),
    h("ul", { className: "notes hint" }, notes.map((note) => h("li", {}, note))));
}

/** The sections of a finished evaluation, without the pictures. */
export function resultSections(evaluation, report) {
  const result = evaluation.result;
  const panel = h("div", { className: "panel" }, result.models.map((model, i) => readings(model, i, report)));
  return [verdict(evaluation, report), panel, doubts(result), figures(evaluation, result, report)].filter(Boolean);
}
