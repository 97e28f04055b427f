/** One evaluation: followed while it runs, shown with its result when it has ended. */

import { showError } from "./access.js";
import { ApiError, continueEvaluation, fetchEvaluation, fetchReport, fetchReportPage, removeEvaluation, reportUrl } from "./api.js";
import { announce, byId, h } from "./dom.js";
import { runAgain } from "./evaluation-form.js";
import { endButton, facts, isActive } from "./evaluations.js";
import { evidence } from "./evidence.js";
import { downloadLink } from "./pictures.js";
import { Requests } from "./requests.js";
import { count, roughly } from "./words.js";

const SPOKEN_EVERY_MS = 5000;
const WAIT_SECONDS = 1;
const RETRY_MS = 2000;

const waiting = ({ queue_position: place }) => `${place ? `number ${place} ` : ""}in the queue; starts when an evaluator is free`;

class ProgressPanel {
  #spoken = 0;

  constructor(id) {
    this.id = id;
    this.percent = h("p", { className: "percent" });
    this.bar = h("progress", { max: 1, "aria-label": "Progress of the evaluation" });
    this.stage = h("p", { className: "stage" });
    this.cost = h("p", { className: "hint" });
    this.error = h("div", { role: "alert" });
    this.button = h("button", { type: "button", onclick: () => this.#cancel() }, "Cancel");
    this.node = h("section", { className: "progress", "aria-label": "Progress" },
      this.percent, h("div", { className: "meter" }, this.bar, h("span", { className: "ruler", "aria-hidden": "true" })),
      this.stage, this.cost, this.error,
      h("p", { className: "row" }, this.button, h("span", { className: "hint" }, "You may leave this page: the evaluation goes on and is listed under Evaluations.")));
  }

  /** Shows the state that an evaluation is in. */
  show(evaluation) {
    const { done = 0, total = 0, stage = "", eta_s: eta } = evaluation.progress ?? {};
    const share = total ? done / total : 0;
    const queued = evaluation.status === "queued";
    const left = eta === null || eta === undefined ? "" : ` · ${roughly(eta)} left`;
    const said = queued ? "Waiting" : `${Math.floor(share * 100)} %`;
    this.percent.textContent = said;
    if (queued) this.bar.removeAttribute("value");
    else this.bar.value = share;
    this.stage.textContent = queued ? waiting(evaluation) : `${stage || "starting"}${left}`;
    this.cost.textContent = queued ? `It takes up to ${count(total, "model evaluation")}.` : `${done.toLocaleString("en")} of up to ${count(total, "model evaluation")}; ${evaluation.spec.stop === "early" ? "it ends once the gate is decided." : "inputs that are misled early cost less."}`;
    if (evaluation.cancel_requested) this.#cancelling();
    document.title = `${said} · Assay`;
    this.#speak(queued ? "The evaluation waits in the queue." : `${Math.floor(share * 100)} percent, ${stage || "starting"}${left}`);
  }

  /** Says that the service is out of reach, or (null) that it is back. */
  trouble(error) {
    showError(this.error, error);
  }

  async #cancel() {
    this.#cancelling();
    try {
      await removeEvaluation(this.id);
    } catch (error) {
      showError(this.error, error);
      this.button.disabled = false;
      this.button.textContent = "Cancel";
    }
  }

  #cancelling() {
    this.button.disabled = true;
    this.button.textContent = "Cancelling …";
  }

  #speak(sentence) {
    if (Date.now() - this.#spoken < SPOKEN_EVERY_MS) return;
    this.#spoken = Date.now();
    announce(sentence);
  }
}

/**
 * Follows an evaluation on the panel to its end and answers its last state.
 * @throws {ApiError} the evaluation is gone; an AbortError when `signal` says that the reader has left.
 */
async function follow(evaluation, panel, signal) {
  let latest = evaluation;
  panel.show(latest);
  while (isActive(latest)) {
    try {
      latest = await fetchEvaluation(latest.id, { wait: WAIT_SECONDS, signal });
      panel.trouble(null);
      panel.show(latest);
    } catch (error) {
      if (!(error instanceof ApiError) || error.isRefusal) throw error;
      panel.trouble(error); // out of reach or overloaded: the job runs on without us
      await new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });
    }
  }
  return latest;
}

const subject = (evaluation) => evaluation.model ?? "the default model";

function heading(evaluation) {
  const rival = evaluation.compare_with;
  return h("header", { className: "lead wide" },
    h("p", { className: "crumb" }, h("a", { href: "#/evaluations" }, "Evaluations"), " / ", h("span", { title: evaluation.id }, evaluation.id.slice(0, 8))),
    h("h1", { tabIndex: -1 }, subject(evaluation), rival ? h("span", { className: "versus" }, " vs. ", h("span", {}, rival)) : null),
    evaluation.spec.name && h("p", { className: "own-name" }, evaluation.spec.name),
    h("p", { className: "facts" }, facts(evaluation, `seed ${evaluation.spec.seed ?? 0}`)),
    evaluation.spec.note && h("p", { className: "own-note" }, evaluation.spec.note),
    h("p", {}, h("button", { type: "button", className: "again", onclick: () => runAgain(evaluation) }, "Run again with …")));
}

function deleteSection(evaluation) {
  const error = h("div", { role: "alert" });
  const after = () => { location.hash = "#/evaluations"; };
  const button = endButton(evaluation, { text: "Delete this evaluation", id: "delete", after, fail: (problem) => showError(error, problem) });
  return h("section", { "aria-label": "Delete" }, button, error);
}

/** What ended early and has kept what it had: how far it came, and the button that continues it. */
function paused({ id, error: reason, progress: { done, total } }, signal) {
  const error = h("div", { role: "alert" });
  const resume = async () => {
    button.disabled = true;
    try {
      await continueEvaluation(id);
      await openEvaluation(id, signal);
    } catch (problem) {
      showError(error, problem);
      button.disabled = false;
    }
  };
  const button = h("button", { type: "button", id: "continue", onclick: resume }, "Continue");
  const far = done ? `after ${done.toLocaleString("en")} of up to ${count(total, "model evaluation")}` : "before it began";
  return h("section", { "aria-label": "Ended early" },
    h("p", { className: "notice" }, `This evaluation ${reason ? "failed" : "was cancelled"} ${far}${reason ? `: ${reason.message}` : ""}. What is finished is kept until you delete it.`),
    h("p", { className: "row take" }, button), error);
}

function ending(evaluation, signal) {
  if (evaluation.continuable) return paused(evaluation, signal);
  const reason = evaluation.error?.message ?? "no reason was recorded";
  return h("p", { className: "notice error" }, `This evaluation failed: ${reason}`);
}

const FORMS = [
  ["report.html", "a page in one file, to keep or to send"],
  ["report.json", "every score of every input, for programs"],
  ["samples.parquet", "the same as a table"],
  ["samples.csv", "the same for a spreadsheet"],
  ["card.md", "the robustness card, in Markdown"],
  ["report.junit.xml", "for a build server"],
];

function requestSection({ spec, priority }) {
  const requests = new Requests();
  requests.show(spec, priority);
  return h("section", { "aria-labelledby": "request-title" }, h("h2", { id: "request-title" }, "Ask for the same again"), requests.blocks);
}

const style = new CSSStyleSheet();
document.adoptedStyleSheets.push(style);

const fileName = ({ id, models: [{ name }] }, form) => `assay-${name.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 60)}-${id.slice(0, 8)}-${form}`;

const reportLink = (evaluation, form, text) => downloadLink(reportUrl(evaluation.id, form), fileName(evaluation, form), text, { "data-form": form });

function downloads(evaluation) {
  return h("section", { "aria-labelledby": "downloads-title" },
    h("h2", { id: "downloads-title" }, "Download"),
    h("ul", { className: "downloads" }, FORMS.map(([form, what]) => h("li", {}, reportLink(evaluation, form, form), h("span", { className: "hint" }, what)))));
}

/**
 * The report in this page, in its own style.
 * @param {HTMLElement | null} exhibits what stands in the place of the report's own samples.
 */
async function reportSections(evaluation, exhibits, signal) {
  const [before, css, after] = (await fetchReportPage(evaluation.id, signal)).split(/<\/?style>/);
  style.replaceSync(css); // a style element would break this page's policy
  const page = new DOMParser().parseFromString(before + after, "text/html");
  const body = h("div", { className: "report" });
  body.append(...[...page.querySelector("main").children].filter(({ tagName }) => tagName === "SECTION" || tagName === "DIV"));
  const own = body.querySelector(":scope > .evidence");
  if (own && exhibits) own.replaceWith(exhibits);
  else if (exhibits) body.querySelector(".panel").after(exhibits);
  body.querySelector(".stamps").after(h("p", { className: "row take" },
    reportLink(evaluation, "report.html", "Download the report"), reportLink(evaluation, "report.json", "report.json")));
  body.append(downloads(evaluation));
  return body;
}

async function showResult(body, evaluation, signal) {
  document.title = `${subject(evaluation)} · Assay`;
  if (evaluation.status !== "succeeded") {
    body.replaceChildren(ending(evaluation, signal), requestSection(evaluation), deleteSection(evaluation));
    announce(body.querySelector(".notice").textContent);
    return;
  }
  const report = await fetchReport(evaluation.id, signal);
  const sections = await reportSections(evaluation, evidence(evaluation, report, signal), signal);
  body.replaceChildren(sections, requestSection(evaluation), deleteSection(evaluation));
  announce(`The evaluation has finished. ${report.summary.headline}`);
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
      body.replaceChildren(panel.node);
      last = await follow(first, panel, signal);
    }
    if (!signal.aborted) await showResult(body, last, signal);
  } catch (error) {
    if (!signal.aborted) view.replaceChildren(...nothing(error));
  }
}
