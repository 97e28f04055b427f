/** Past evaluations: opened again by their address, or deleted. */

import { fetchEvaluation, fetchEvaluations, removeEvaluation } from "./api.js";
import { announce, byId, h, showError } from "./dom.js";
import { attackSummary } from "./evaluation.js";
import { count, inputKind, moment, percent, worstOf } from "./words.js";

let cursor = null;

/** The list holds no results: each finished one is asked for its own, one after the other. */
async function fillOutcomes(evaluations) {
  for (const { id, status, progress } of evaluations) {
    const place = byId(`outcome-${id}`);
    if (status === "running" && progress.total) place.textContent = percent(progress.done / progress.total);
    if (status !== "succeeded") continue;
    const model = (await fetchEvaluation(id)).result.models[0];
    const last = worstOf(model);
    const clean = percent(model.clean.top1, model.samples);
    place.textContent = last ? `${clean} → ${percent(last.top1, model.samples)}` : clean;
    place.title = last ? `correct before any attack, and under the worst one within ${last.eps}` : "correct before any attack";
  }
}

function deleteButton(evaluation, row) {
  const active = ["queued", "running"].includes(evaluation.status);
  const ask = active ? "Cancel" : "Delete";
  const button = h("button", {
    type: "button",
    className: "quiet",
    title: `${ask} evaluation ${evaluation.id}`,
    onblur: () => { button.textContent = ask; },
    onclick: async () => {
      if (button.textContent === ask && !active) {
        button.textContent = "Really delete";
        announce("Press again to delete it for good.");
        return;
      }
      try {
        await removeEvaluation(evaluation.id);
        if (active) await openHistory();
        else row.remove();
        byId("evaluations-title").focus();
      } catch (error) {
        showError(byId("history-error"), error);
      }
    },
  }, ask);
  return button;
}

function row(evaluation) {
  const { id, status, spec, samples } = evaluation;
  const node = h("li", { className: "past" });
  const title = [evaluation.model ?? spec.model ?? "default model", evaluation.compare_with].filter(Boolean).join(" beside ");
  node.append(
    h("a", { className: "past-main", href: `#/evaluations/${encodeURIComponent(id)}` },
      h("span", { className: "past-title" }, title),
      h("span", { className: "past-detail" }, [count(samples, inputKind(spec)), attackSummary(spec), moment(evaluation.created)].join(" · "))),
    h("span", { className: "past-outcome", id: `outcome-${id}` }),
    h("span", { className: `status ${status}` }, status),
    deleteButton(evaluation, node));
  return node;
}

async function load() {
  const answer = await fetchEvaluations(cursor);
  byId("history").append(...answer.evaluations.map(row));
  cursor = answer.next_cursor ?? null;
  byId("older").hidden = cursor === null;
  fillOutcomes(answer.evaluations).catch(() => {}); // one may be deleted meanwhile; the list stands without it
}

/** Shows the list from its newest entry. */
export async function openHistory() {
  cursor = null;
  showError(byId("history-error"), null);
  byId("history").replaceChildren();
  byId("older").onclick = () => load().catch((error) => showError(byId("history-error"), error));
  try {
    await load();
    if (!byId("history").childElementCount) {
      byId("history").append(h("li", { className: "notice" }, "None yet. ", h("a", { href: "#/" }, "Start one on the bench"), "."));
    }
  } catch (error) {
    showError(byId("history-error"), error);
  }
}
