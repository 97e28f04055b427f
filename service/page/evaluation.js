/** One evaluation: followed while it runs, shown with its result when it has ended. */

import { ApiError, fetchEvaluation, fetchReport, removeEvaluation } from "./api.js";
import { announce, byId, h, showError } from "./dom.js";
import { costs } from "./evaluate.js";
import { evidence } from "./evidence.js";
import { resultSections } from "./result.js";
import { attackName, count, duration, inputKind, moment, pointOf } from "./words.js";

const WAIT_SECONDS = 1;
const SPOKEN_EVERY_MS = 5000;
const RETRY_MS = 2000;

const isActive = ({ status }) => status === "queued" || status === "running";

const pause = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    reject(new DOMException("left the view", "AbortError"));
  }, { once: true });
});

/** "PGD, FGSM at eps 2/255, 8/255" */
export function attackSummary(spec) {
  const names = [...new Set(spec.attacks.map((attack) => attackName(attack.name)))].join(", ");
  const radii = [...new Set(spec.attacks.flatMap(({ norm, eps }) => (eps ?? []).map((one) => pointOf({ norm, eps: one }))))].join(", ");
  return radii ? `${names} at eps ${radii}` : names;
}

const subject = (evaluation) => evaluation.model ?? evaluation.spec.model ?? "the default model";

function heading(evaluation) {
  const rival = evaluation.compare_with;
  return h("header", { className: "lead wide" },
    h("p", { className: "crumb" }, h("a", { href: "#/evaluations" }, "Evaluations"), " / ", h("span", { title: evaluation.id }, evaluation.id.slice(0, 8))),
    h("h1", { tabIndex: -1 }, subject(evaluation), rival ? h("span", { className: "versus" }, " beside ", h("span", {}, rival)) : null),
    h("p", { className: "facts" },
      [count(evaluation.samples, inputKind(evaluation.spec)), attackSummary(evaluation.spec), `seed ${evaluation.spec.seed ?? 0}`, moment(evaluation.created)].filter(Boolean).join(" · ")));
}

class ProgressPanel {
  #spoken = 0;

  constructor(id, onCancel) {
    this.percent = h("p", { className: "percent" });
    this.bar = h("progress", { max: 1, "aria-label": "Progress of the evaluation" });
    this.stage = h("p", { className: "stage" });
    this.cost = h("p", { className: "hint" });
    this.error = h("div", { role: "alert" });
    this.cancel = h("button", { type: "button", onclick: () => onCancel(this) }, "Cancel");
    this.node = h("section", { className: "progress", "aria-label": "Progress" },
      this.percent, h("div", { className: "meter" }, this.bar, h("span", { className: "ruler", "aria-hidden": "true" })), this.stage, this.cost, this.error, this.cancel);
    const cost = costs.get(id);
    this.cost.textContent = cost ? `Estimated cost: ${count(cost.model_evaluations, "model evaluation")}${cost.seconds ? `, about ${duration(cost.seconds)}` : ""}.` : "";
  }

  show(evaluation) {
    const { done = 0, total = 0, stage = "", eta_s: eta } = evaluation.progress ?? {};
    const share = total ? done / total : 0;
    const queued = evaluation.status === "queued";
    this.percent.textContent = queued ? "waiting" : `${Math.floor(share * 100)} %`;
    if (queued) this.bar.removeAttribute("value");
    else this.bar.value = share;
    const left = eta === null || eta === undefined ? "" : ` · about ${duration(eta)} left`;
    if (evaluation.cancel_requested) this.#cancelling();
    this.stage.textContent = queued ? "in the queue, it starts as soon as the evaluator is free" : `${stage} · ${done.toLocaleString("en")} of ${total.toLocaleString("en")}${left}`;
    document.title = queued ? "Waiting · Assay" : `${Math.floor(share * 100)} % · Assay`;
    this.#speak(queued ? "The evaluation waits in the queue." : `${Math.floor(share * 100)} percent, ${stage}${left}`);
  }

  #cancelling() {
    this.cancel.disabled = true;
    this.cancel.textContent = "Cancelling …";
  }

  #speak(sentence) {
    if (Date.now() - this.#spoken < SPOKEN_EVERY_MS) return;
    this.#spoken = Date.now();
    announce(sentence);
  }
}

function cancelled(id) {
  return async (panel) => {
    panel.cancel.disabled = true;
    panel.cancel.textContent = "Cancelling …";
    try {
      await removeEvaluation(id);
    } catch (error) {
      showError(panel.error, error);
      panel.cancel.disabled = false;
      panel.cancel.textContent = "Cancel";
    }
  };
}

async function follow(body, evaluation, signal) {
  const panel = new ProgressPanel(evaluation.id, cancelled(evaluation.id));
  body.replaceChildren(panel.node);
  let latest = evaluation;
  while (isActive(latest)) {
    panel.show(latest);
    try {
      latest = await fetchEvaluation(latest.id, { wait: WAIT_SECONDS, signal });
      showError(panel.error, null);
    } catch (error) {
      if (!(error instanceof ApiError) || error.isRefusal) throw error;
      showError(panel.error, error); // out of reach or overloaded: the job runs on without us
      await pause(RETRY_MS, signal);
    }
  }
  return latest;
}

function ending(evaluation) {
  if (evaluation.status === "cancelled") return h("p", { className: "notice" }, "This evaluation was cancelled. Nothing was kept of it.");
  const reason = evaluation.error?.message ?? evaluation.error ?? "no reason was recorded";
  return h("p", { className: "notice error" }, `This evaluation failed: ${reason}`);
}

async function showResult(body, evaluation) {
  document.title = `${subject(evaluation)} · Assay`;
  if (evaluation.status !== "succeeded") {
    body.replaceChildren(ending(evaluation));
    announce(body.textContent);
    return;
  }
  const report = await fetchReport(evaluation.id);
  body.replaceChildren(...[...resultSections(evaluation, report), evidence(evaluation, report)].filter(Boolean));
  announce(`The evaluation has finished. ${body.querySelector(".verdict").textContent}`);
}

function nothing(error) {
  return [
    h("header", { className: "lead" }, h("p", { className: "crumb" }, h("a", { href: "#/evaluations" }, "Evaluations")), h("h1", { tabIndex: -1 }, "Nothing to show")),
    h("p", { className: "notice error", role: "alert" }, error.message),
  ];
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
    const last = isActive(first) ? await follow(body, first, signal) : first;
    if (!signal.aborted) await showResult(body, last);
  } catch (error) {
    if (error.name !== "AbortError") view.replaceChildren(...nothing(error));
  }
}
