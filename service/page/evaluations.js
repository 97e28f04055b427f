/** Past evaluations: filtered by state, opened again by their address, cancelled or deleted. */

import { showError } from "./access.js";
import { fetchEvaluation, fetchEvaluations, removeEvaluation } from "./api.js";
import { attackSummary, inputKind } from "./attacks.js";
import { announce, byId, choiceButton, h } from "./dom.js";
import { count, moment, percent } from "./words.js";

const STATES = ["queued", "running", "succeeded", "failed", "cancelled"];
const REFRESH_MS = 3000;

let status = null;
let search = "";
let cursor = null;
let leaving = null;
let rounds = null;

/** Whether an evaluation may still change. */
export const isActive = ({ status: state }) => state === "queued" || state === "running";

/** What was evaluated, by whom and when, in one line. */
export const facts = ({ samples, spec, created, priority, owner }, ...more) => [
  count(samples, inputKind(spec)), attackSummary(spec), spec.stop === "early" && "stops once its gate is decided", ...more,
  priority && priority !== "normal" && `${priority} priority`, owner && `by ${owner}`, moment(created),
].filter(Boolean).join(" · ");

/**
 * A button that cancels an evaluation, or deletes a finished one after a second press.
 * @param {{text: string, after: () => any, fail: (error: Error) => void}} options
 */
export function endButton(evaluation, { text, title = "", after, fail, ...props }) {
  const button = h("button", { type: "button", className: "quiet", title: title && `${text} ${title}`, ...props,
    onblur: () => { button.textContent = text; },
    onclick: async () => {
      if (button.textContent === text && !isActive(evaluation)) {
        button.textContent = "Really delete";
        announce("Press again to delete it for good.");
        return;
      }
      try {
        await removeEvaluation(evaluation.id);
        await after();
      } catch (error) {
        fail(error);
      }
    },
  }, text);
  return button;
}

/** Each model's figures in the order of the title, and in words what the gate and the sanity checks say. */
function outcomes({ models, gate, reliable }) {
  return [
    models.map(({ name, outcome }) => h("span", { title: name }, outcome)),
    gate && h("span", { className: gate.passed ? "good" : "bad", title: gate.finding }, `gate ${gate.passed ? "held" : "failed"}`),
    !reliable && h("span", { className: "bad", title: "a sanity check found a sign of a false figure" }, "unreliable"),
  ];
}

/** The evaluations that are ticked to be compared. */
const picked = new Set();

function pick(id, chosen) {
  if (chosen) picked.add(id);
  else picked.delete(id);
  const link = byId("compare-link");
  link.hidden = picked.size < 2;
  link.textContent = `Compare ${picked.size} evaluations`;
  link.href = `#/compare/${[...picked].join(",")}`;
}

function standing({ status: state, progress, queue_position: place }) {
  if (state === "running" && progress.total) return percent(progress.done / progress.total);
  return state === "queued" && place ? `number ${place}` : "";
}

function removeButton(evaluation) {
  const after = async () => {
    await openEvaluations(leaving);
    byId("evaluations-title").focus();
  };
  const fail = (error) => showError(byId("history-error"), error);
  return endButton(evaluation, { text: isActive(evaluation) ? "Cancel" : "Delete", title: `evaluation ${evaluation.id}`, after, fail });
}

function row(evaluation) {
  const { id, status: state } = evaluation;
  const { name, note } = evaluation.spec;
  const models = [evaluation.model ?? "default model", evaluation.compare_with].filter(Boolean).join(" vs. ");
  return h("li", { className: "past", "data-id": id },
    h("input", { type: "checkbox", className: "pick", value: id, "aria-label": `Compare ${name ?? models}, ${moment(evaluation.created)}`, disabled: state !== "succeeded", checked: picked.has(id), onchange: ({ target }) => pick(id, target.checked) }),
    h("a", { className: "past-main", href: `#/evaluations/${encodeURIComponent(id)}`, title: note },
      h("span", { className: "past-title" }, name ?? models),
      name && h("span", { className: "past-detail" }, models),
      h("span", { className: "past-detail" }, facts(evaluation))),
    h("span", { className: "past-outcome" }, evaluation.outcome ? outcomes(evaluation.outcome) : standing(evaluation)),
    h("span", { className: `status ${state}` }, state),
    removeButton(evaluation));
}

function filters() {
  const again = async () => {
    await openEvaluations(leaving);
    announce(`${byId("history").querySelectorAll(".past").length} evaluations shown`);
  };
  const button = (state) => choiceButton(state ?? "all", status === state, async () => {
    status = state;
    await again();
    byId("history-filters").querySelector("[aria-pressed=true]").focus();
  });
  byId("history-filters").replaceChildren(...[null, ...STATES].map(button));
  byId("history-search").onchange = ({ target }) => {
    search = target.value.trim();
    return again();
  };
}

async function load(signal) {
  const answer = await fetchEvaluations({ cursor, status, search, signal });
  if (cursor === null) byId("history").replaceChildren();
  byId("history").append(...answer.evaluations.map(row));
  cursor = answer.next_cursor ?? null;
  byId("older").hidden = cursor === null;
}

/** Brings the rows of what still runs up to date, until the reader leaves. */
async function refresh(signal) {
  const rows = [...byId("history").querySelectorAll(".past:has(.status:is(.queued, .running))")];
  for (const node of rows) {
    if (node.contains(document.activeElement)) continue; // a row in use is not replaced under the hand
    node.replaceWith(row(await fetchEvaluation(node.dataset.id, { signal })));
  }
}

function keepFresh(signal) {
  const timer = setInterval(() => refresh(signal).catch(() => {}), REFRESH_MS); // the next round may find the service again
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
}

function none() {
  if (search) return h("li", { className: "notice" }, `No evaluation has “${search}” in name, note, model or attacks.`);
  if (status) return h("li", { className: "notice" }, `No evaluation is ${status}.`);
  return h("li", { className: "notice" }, "No evaluations yet. ", h("a", { href: "#/" }, "Start one"), ".");
}

/** Shows the list from its newest entry, until `signal` says that the reader has left. */
export async function openEvaluations(signal) {
  leaving = signal;
  cursor = null;
  rounds?.abort();
  rounds = new AbortController();
  const own = AbortSignal.any([signal, rounds.signal]);
  const fail = (error) => { if (!own.aborted) showError(byId("history-error"), error); };
  showError(byId("history-error"), null);
  filters();
  byId("history").replaceChildren(h("li", { className: "hint" }, "reading …"));
  byId("older").onclick = () => load(own).catch(fail);
  try {
    await load(own);
    if (!byId("history").childElementCount) byId("history").append(none());
    keepFresh(own);
  } catch (error) {
    fail(error);
  }
}
