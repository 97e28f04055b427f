/** Finished evaluations side by side: every figure of every model, for the same attacks and budgets. */

import { showError } from "./access.js";
import { fetchEvaluation, fetchReport } from "./api.js";
import { byId, h } from "./dom.js";
import { count, moment, percent } from "./words.js";

const MOST = 12;

/** The figures of a model by what they are of, in the order of its report. */
function figures({ clean, attacks, worst, corrupted, certificates, brackets }) {
  const described = Object.fromEntries(attacks.map(({ budget, description }) => [budget, description]));
  return new Map([
    ["no attack", clean],
    ...attacks.map(({ title, description, robust }) => [`${title} ${description}`, robust]),
    ...Object.entries(worst).map(([budget, figure]) => [`worst attack ${described[budget]}`, figure]),
    ...(corrupted ? [["common corruptions, mean", corrupted]] : []),
    ...brackets.map(({ title, description, proved_accuracy: proved }) => [`proved, ${title} ${description}`, proved]),
    ...certificates.map(({ sigma, curve: [{ share, ci }] }) => [`provable, sigma ${sigma}`, { top1: share, ci }]),
  ]);
}

function cell(figure, samples) {
  if (!figure) return h("td", { className: "range" }, "–");
  const [low, high] = figure.ci.map((end) => percent(end, samples));
  return h("td", {}, h("b", {}, percent(figure.top1, samples)), h("small", {}, `${low.slice(0, -2)}–${high}`));
}

function matrix(columns) {
  const rows = [...new Set(columns.flatMap(({ found }) => [...found.keys()]))];
  const head = columns.map(({ id, model, spec, seed, created }) => h("th", { scope: "col" },
    h("a", { href: `#/evaluations/${id}` }, model.name), h("small", {}, `${spec.name ?? moment(created)}, seed ${seed}`)));
  return h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "table" },
    h("table", { className: "figures" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "attack"), head)),
      h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row), columns.map(({ found, model }) => cell(found.get(row), model.samples)))))));
}

/** What keeps the columns from being compared, and what marks some of them. */
function cautions(all, columns) {
  const differ = (pick) => new Set(all.map(pick)).size > 1;
  const unsound = columns.filter(({ warned }) => warned).map(({ model }) => model.name);
  return [
    differ(({ report }) => report.data.digest) && "These evaluations are not of the same inputs and labels: their figures cannot be compared one by one.",
    differ(({ report }) => report.summary.metric) && "Some figures are accuracy, others stability.",
    differ(({ report }) => report.seed) && "The seeds differ, so random draws do.",
    unsound.length && `Unreliable, see the warnings in its report: ${[...new Set(unsound)].join(", ")}.`,
  ].filter(Boolean);
}

async function read(id, signal) {
  const [evaluation, report] = await Promise.all([fetchEvaluation(id, { signal }), fetchReport(id, signal)]);
  return { ...evaluation, report };
}

/** One column for each model of each evaluation. */
const columnsOf = ({ id, spec, created, report: { seed, summary } }) => summary.models.map((model) => ({
  id, spec, seed, created, model, found: figures(model), warned: summary.warnings.some((warning) => warning.model === model.name),
}));

/** Compares finished evaluations until `signal` says that the reader has left. */
export async function openComparison(ids, signal) {
  const view = byId("compare");
  const error = h("div", { role: "alert" });
  const title = h("header", { className: "lead wide" },
    h("p", { className: "crumb" }, h("a", { href: "#/evaluations" }, "Evaluations")), h("h1", { tabIndex: -1 }, "Comparison"));
  view.replaceChildren(title, h("p", { className: "hint" }, "reading …"));
  try {
    const all = await Promise.all(ids.slice(0, MOST).map((id) => read(id, signal)));
    const columns = all.flatMap(columnsOf);
    const [{ report: { summary, data } }] = all;
    const notes = cautions(all, columns).map((text) => h("p", { className: "notice error" }, text));
    view.replaceChildren(title, ...notes,
      h("p", { className: "hint" }, `${summary.metric} on ${count(data.samples, data.kind)}, 95 % intervals below`), matrix(columns));
  } catch (problem) {
    if (signal.aborted) return;
    view.replaceChildren(title, error);
    showError(error, problem);
  }
}
