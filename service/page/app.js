/** Start of the page: wires the parts and shows the view that the address names. */

import { startPredictions } from "./classify.js";
import { byId, showError } from "./dom.js";
import { startTrialForm } from "./evaluate.js";
import { openEvaluation } from "./evaluation.js";
import { openHistory } from "./history.js";
import { startSources } from "./sources.js";
import { startTexts } from "./texts.js";

const TITLES = { bench: "Assay", texts: "Texts · Assay", evaluations: "Evaluations · Assay", evaluation: "Evaluation · Assay" };

let leaving = new AbortController();

function place() {
  const [, view, id] = location.hash.split("/");
  if (view === "texts") return { view };
  if (view !== "evaluations") return { view: "bench" };
  return id ? { view: "evaluation", id } : { view: "evaluations" };
}

function show(view) {
  for (const section of document.querySelectorAll(".view")) section.hidden = section.id !== view;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const current = link.dataset.view === view || (view === "evaluation" && link.dataset.view === "evaluations");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = TITLES[view];
  window.scrollTo(0, 0);
}

function route() {
  leaving.abort();
  leaving = new AbortController();
  const { view, id } = place();
  show(view);
  if (view === "evaluations") openHistory();
  if (view === "evaluation") openEvaluation(id, leaving.signal);
  return view;
}

async function start() {
  window.addEventListener("hashchange", () => {
    const view = route();
    (byId(view).querySelector("h1") ?? byId("main")).focus({ preventScroll: true });
  });
  show(place().view);
  const results = await Promise.allSettled([startPredictions(), startSources(), startTexts()]);
  const failed = results.find(({ status }) => status === "rejected");
  if (failed) showError(byId("bench-error"), failed.reason);
  startTrialForm();
  route();
}

start();
