/** The panel of an evaluation that waits or runs. */

import { removeEvaluation } from "./api.js";
import { announce, h } from "./dom.js";
import { showError } from "./problem.js";
import { count, duration, ordinal } from "./words.js";

const SPOKEN_EVERY_MS = 5000;

function waiting({ queue_position: place }) {
  return place ? `${ordinal(place)} in the queue; it starts as soon as an evaluator is free` : "in the queue; it starts as soon as an evaluator is free";
}

export class ProgressPanel {
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
      h("p", { className: "row" }, this.button, h("span", { className: "hint" }, "You may leave this page: it runs on, and is listed under Evaluations.")));
  }

  /** Shows the state that an evaluation is in. */
  show(evaluation) {
    const { done = 0, total = 0, stage = "", eta_s: eta } = evaluation.progress ?? {};
    const share = total ? done / total : 0;
    const queued = evaluation.status === "queued";
    const left = eta === null || eta === undefined ? "" : ` · about ${duration(eta)} left`;
    const said = queued ? "Waiting" : `${Math.floor(share * 100)} %`;
    this.percent.textContent = said;
    if (queued) this.bar.removeAttribute("value");
    else this.bar.value = share;
    this.stage.textContent = queued ? waiting(evaluation) : `${stage || "starting"}${left}`;
    this.cost.textContent = queued ? `It takes up to ${count(total, "model evaluation")}.` : `${done.toLocaleString("en")} of up to ${count(total, "model evaluation")}; inputs that fall early cost less.`;
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
