/** Start of the page: wires the parts and shows the view that the address names. */

import { showError, startAccess } from "./access.js";
import { loadAttacks } from "./attacks.js";
import { openComparison } from "./compare.js";
import { byId } from "./dom.js";
import { openEvaluation } from "./evaluation.js";
import { startForms } from "./evaluation-form.js";
import { openEvaluations } from "./evaluations.js";
import { loadLimits, loadSamples, startImages } from "./images.js";
import { imageInputs, revive, textInputs } from "./inputs.js";
import { keep } from "./kept.js";
import { imageModels, languageModels, maskModels, textModels } from "./models.js";
import { startScore } from "./score.js";
import { startSegmenting } from "./segment.js";
import { startTexts } from "./texts.js";

const TITLES = { images: "Assay", texts: "Texts · Assay", language: "Language · Assay", masks: "Segmentation · Assay", evaluations: "Evaluations · Assay", evaluation: "Evaluation · Assay", compare: "Comparison · Assay" };

let leaving = new AbortController();

/** Draws the steps that both workspaces share: model, predictions and evaluation. */
function addSteps(kind) {
  const steps = byId("steps").content.cloneNode(true);
  for (const attribute of ["id", "aria-labelledby"]) {
    for (const node of steps.querySelectorAll(`[${attribute}]`)) node.setAttribute(attribute, `${kind}-${node.getAttribute(attribute)}`);
  }
  byId(`${kind}s`).append(steps);
  byId(`${kind}-clear`).textContent = `Remove all ${kind}s`;
}

function place() {
  const [, view, id] = location.hash.split("/");
  if (["texts", "language", "masks"].includes(view)) return { view };
  if (view === "compare") return { view, id };
  if (view !== "evaluations") return { view: "images" };
  return id ? { view: "evaluation", id } : { view: "evaluations" };
}

function show(view) {
  for (const section of document.querySelectorAll(".view")) section.hidden = section.id !== view;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const current = link.dataset.view === view || (["evaluation", "compare"].includes(view) && link.dataset.view === "evaluations");
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
  if (view === "evaluations") openEvaluations(leaving.signal);
  if (view === "compare") openComparison(decodeURIComponent(id ?? "").split(","), leaving.signal);
  if (view === "evaluation") openEvaluation(decodeURIComponent(id), leaving.signal);
  return view;
}

/** Reads what is served; what cannot be read is said above the predictions. */
async function load() {
  const [attacks] = await Promise.allSettled([loadAttacks().then(startForms)]);
  const refused = attacks.reason?.status === 401; // each wrong key counts
  const results = refused ? [] : await Promise.allSettled([imageModels.load(byId("image-models")), textModels.load(byId("text-models")), languageModels.load(byId("language-models")), maskModels.load(byId("mask-models")), loadSamples(), loadLimits()]);
  const failed = [attacks, ...results].find(({ status }) => status === "rejected");
  for (const name of ["image-error", "text-error"]) showError(byId(name), failed?.reason ?? null, failed && load);
}

async function start() {
  for (const kind of ["image", "text"]) addSteps(kind);
  startAccess();
  startImages();
  startTexts();
  startScore();
  startSegmenting();
  maskModels.addEventListener("change", () => { byId("masks-link").hidden = maskModels.all.length === 0; });
  window.addEventListener("hashchange", () => {
    const view = route();
    (byId(view).querySelector("h1") ?? byId("main")).focus({ preventScroll: true });
  });
  document.addEventListener("key-changed", async () => {
    await load();
    route();
  });
  show(place().view);
  for (const inputs of [imageInputs, textInputs]) {
    const unkept = () => { byId(`${inputs.kind}-kept`).textContent = "Not kept for a reload: this browser has no room or does not allow it."; };
    keep(inputs, revive, unkept);
  }
  await load();
  route();
}

start();
