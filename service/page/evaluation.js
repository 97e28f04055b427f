/** One evaluation: followed while it runs, shown with its result when it has ended. */

import { fetchEvaluation, fetchReport, removeEvaluation } from "./api.js";
import { announce, byId, h } from "./dom.js";
import { follow, isActive } from "./events.js";
import { imageEvidence } from "./image-evidence.js";
import { showError } from "./problem.js";
import { ProgressPanel } from "./progress.js";
import { resultSections } from "./result.js";
import { textEvidence } from "./text-evidence.js";
import { attackSummary, count, inputKind, moment } from "./words.js";

const subject = (evaluation) => evaluation.model ?? "the default model";

function facts({ samples, spec, created, priority, owner }) {
  return [
    count(samples, inputKind(spec)),
    attackSummary(spec),
    `seed ${spec.seed ?? 0}`,
    priority && priority !== "normal" && `${priority} priority`,
    owner && `by ${owner}`,
    moment(created),
  ].filter(Boolean).join(" · ");
}

function heading(evaluation) {
  const rival = evaluation.compare_with;
  return h("header", { className: "lead wide" },
    h("p", { className: "crumb" }, h("a", { href: "#/evaluations" }, "Evaluations"), " / ", h("span", { title: evaluation.id }, evaluation.id.slice(0, 8))),
    h("h1", { tabIndex: -1 }, subject(evaluation), rival ? h("span", { className: "versus" }, " beside ", h("span", {}, rival)) : null),
    h("p", { className: "facts" }, facts(evaluation)));
}

/** Deletes after a second press, and goes back to the list. */
function deleteSection(id) {
  const error = h("div", { role: "alert" });
  const button = h("button", {
    type: "button",
    className: "quiet",
    id: "delete",
    onblur: () => { button.textContent = "Delete this evaluation"; },
    onclick: async () => {
      if (button.textContent !== "Really delete") {
        button.textContent = "Really delete";
        announce("Press again to delete it for good.");
        return;
      }
      try {
        await removeEvaluation(id);
        location.hash = "#/evaluations";
      } catch (problem) {
        showError(error, problem);
      }
    },
  }, "Delete this evaluation");
  return h("section", { "aria-label": "Delete" }, button, error);
}

function ending(evaluation) {
  if (evaluation.status === "cancelled") return h("p", { className: "notice" }, "This evaluation was cancelled. Nothing was kept of it.");
  const reason = evaluation.error?.message ?? "no reason was recorded";
  return h("p", { className: "notice error" }, `This evaluation failed: ${reason}`);
}

async function showResult(body, evaluation, signal) {
  document.title = `${subject(evaluation)} · Assay`;
  if (evaluation.status !== "succeeded") {
    body.replaceChildren(ending(evaluation), deleteSection(evaluation.id));
    announce(body.firstElementChild.textContent);
    return;
  }
  const report = await fetchReport(evaluation.id, signal);
  const evidence = report.data.kind === "text" ? textEvidence : imageEvidence;
  body.replaceChildren(...resultSections(evaluation, report, evidence(evaluation, report, signal)), deleteSection(evaluation.id));
  announce(`The evaluation has finished. ${body.querySelector(".verdict").textContent}`);
}

function nothing(error) {
  const place = h("div", { role: "alert" });
  showError(place, error);
  return [h("header", { className: "lead" }, h("p", { className: "crumb" }, h("a", { href: "#/evaluations" }, "Evaluations")), h("h1", { tabIndex: -1 }, "Nothing to show")), place];
}

/** Shows the evaluation `id` until `signal` says that the reader has left. */
export async function openEvaluation(id, signal) {
  const view = byId("evaluation");
  view.replaceChildren(h("p", { className: "hint" }, "reading …"));
  try {
    const first = await fetchEvaluation(id, { signal });
    const body = h("div", { className: "outcome-body" });
    view.replaceChildren(heading(first), body);
    view.querySelector("h1").focus({ preventScroll: true });
    let last = first;
    if (isActive(first)) {
      const panel = new ProgressPanel(id);
      panel.show(first);
      body.replaceChildren(panel.node);
      last = await follow(first, { signal, show: (evaluation) => panel.show(evaluation), trouble: (error) => panel.trouble(error) });
    }
    if (!signal.aborted) await showResult(body, last, signal);
  } catch (error) {
    if (!signal.aborted) view.replaceChildren(...nothing(error));
  }
}
