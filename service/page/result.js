/** A finished evaluation: the verdict in words, the figures, the curves, the doubts. */

import { pictureUrl, reportUrl } from "./api.js";
import { gauge } from "./chart.js";
import { comparisonSection } from "./comparison.js";
import { attackCurves, certificateCurves, minimalCurves } from "./curves.js";
import { h } from "./dom.js";
import { confirmation, headline, leftAtWorst, precisionNote, rivalry, smallestFall, worstOf } from "./findings.js";
import { frame, labelNames } from "./frames.js";
import { downloadLink } from "./pictures.js";
import { attackTable, corruptionTable } from "./tables.js";
import { interval, percent } from "./words.js";

const TONES = ["first", "second"];
const FORMS = [
  ["report.html", "a page in one file, to keep or to send"],
  ["report.json", "every judgement of every input, for programs"],
  ["samples.parquet", "the same as a table"],
  ["card.md", "the robustness card, in Markdown"],
  ["report.junit.xml", "for a build server"],
];

function gateLine(gate) {
  if (!gate) return null;
  return h("p", { className: `gate ${gate.passed ? "hold" : "fall"}` }, `Gate ${gate.text}: ${gate.passed ? "held" : "failed"} (${gate.reason}).`);
}

/** The picture beside the verdict: how little it took. */
function keyExhibit(evaluation, report) {
  const fall = report.data.kind === "image" ? smallestFall(report.samples, 0) : null;
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

const reportLink = ({ id }, form, text) => downloadLink(reportUrl(id, form), `assay-${id.slice(0, 8)}-${form}`, text, { "data-form": form });

function verdict(evaluation, report) {
  const { result } = evaluation;
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
      h("p", { className: "row take" }, reportLink(evaluation, "report.html", "Download the report"), reportLink(evaluation, "report.json", "report.json"))),
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
  const proven = model.certificates[0]?.curve[0];
  const rows = [
    ["clean", "before any attack", model.clean],
    worst && ["robust", `worst attack within ${worst.eps}`, worst],
    worst && ["confirmed", "judged as served", level("confirmed")],
    worst && report.data.kind === "image" && ["in 8 bit", "written as PNG first", level("confirmed_8bit")],
    error !== null && ["corrupted", "mean over corruptions", { top1: 1 - error, ci: null }],
    proven && ["smoothed", `the vote is right, sigma ${model.certificates[0].sigma}`, { top1: proven.share, ci: proven.ci }],
  ].filter(Boolean);
  return h("section", { className: "readings", "aria-label": model.name },
    h("p", { className: `readings-name key ${TONES[index]}` }, model.name),
    h("dl", {}, rows.map(([name, note, share]) => reading(name, note, share, model.samples, TONES[index]))));
}

function doubts({ warnings, reliable, models }) {
  if (!warnings.length && reliable) return null;
  const sentence = ({ model, message }) => (models.length > 1 ? `${model}: ${message}` : message);
  return h("section", { className: reliable ? "doubts mild" : "doubts", "aria-labelledby": "doubts-title" },
    h("h2", { id: "doubts-title" }, reliable ? "Worth knowing" : "Do not rely on these figures"),
    h("ul", {}, warnings.map((warning) => h("li", {}, sentence(warning)))));
}

const quantityOf = (result, { data }) => (result.metric === "stability" ? "Share of answers kept" : `Share of ${data.kind}s named correctly`);

function curves(result, report) {
  const quantity = quantityOf(result, report);
  const drawn = [...attackCurves(result.models, quantity), ...minimalCurves(result.models, quantity), ...certificateCurves(result.models)];
  return drawn.length ? h("section", { "aria-labelledby": "curves-title" }, h("h2", { id: "curves-title" }, "What holds, and how far"), h("div", { className: "curves" }, drawn)) : null;
}

function figures(result, { notes, data }) {
  const shape = { stability: result.metric === "stability", k: Math.max(...result.top_k), kind: data.kind };
  const tables = (make) => h("div", { className: "tables" }, result.models.map((model, i) => make(model, TONES[i], shape)).filter(Boolean));
  return h("section", { "aria-labelledby": "figures-title" },
    h("h2", { id: "figures-title" }, "Figures"),
    tables(attackTable), tables(corruptionTable),
    h("p", { className: "hint" },
      "Attacks are found on a differentiable twin of the model. Confirmed: what is left when each success is judged again on the model as served. ",
      data.kind === "image" ? "In 8 bit: when the picture is first written as a PNG. " : "", "Ranges are 95 % Wilson intervals."),
    h("ul", { className: "notes hint" }, notes.map((note) => h("li", {}, note))));
}

function downloads(evaluation) {
  return h("section", { "aria-labelledby": "downloads-title" },
    h("h2", { id: "downloads-title" }, "Take it along"),
    h("ul", { className: "downloads" }, FORMS.map(([form, what]) => h("li", {}, reportLink(evaluation, form, form), h("span", { className: "hint" }, what)))));
}

/** The sections of a finished evaluation, `evidence` (its samples, or null) among them. */
export function resultSections(evaluation, report, evidence) {
  const { result } = evaluation;
  const panel = h("div", { className: "panel" }, result.models.map((model, i) => readings(model, i, report)));
  return [
    verdict(evaluation, report), doubts(result), panel, curves(result, report),
    comparisonSection(result, report.data.kind, worstOf(result.models[0])?.eps), evidence, figures(result, report), downloads(evaluation),
  ].filter(Boolean);
}
