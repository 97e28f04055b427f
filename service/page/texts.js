/** The view of texts: a field to type in, and what the chosen model makes of it. */

import { classifyText, fetchModels } from "./api.js";
import { bar } from "./classify.js";
import { byId, h, showError } from "./dom.js";
import { referenceAmong } from "./words.js";

let models = [];
let run = null;

const chosen = () => byId("text-model").value;

function show(prediction) {
  byId("text-answer").replaceChildren(h("ol", { className: "bars" },
    prediction.top_k.map((entry, rank) => bar(entry, rank ? "rest" : "plain"))));
}

async function ask(event) {
  event.preventDefault();
  run?.abort();
  const own = run = new AbortController();
  showError(byId("text-error"), null);
  byId("text-answer").replaceChildren();
  try {
    show(await classifyText(byId("text").value, chosen(), own.signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    error.message = error.message.replace(/^Text 0 /, "The text ");
    showError(byId("text-error"), error);
  }
}

/** Loads the models of texts; without one, nothing leads to this view. */
export async function startTexts() {
  models = await fetchModels("text-classification");
  byId("texts-link").hidden = models.length === 0;
  byId("text-model").replaceChildren(...models.map((model) => {
    const name = referenceAmong(models, model);
    return h("option", { value: name, selected: model.default }, name);
  }));
  byId("text-form").addEventListener("submit", ask);
  byId("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("text-form").requestSubmit();
  });
}
