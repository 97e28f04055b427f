/** The choice of a model, and its predictions as bars beside every image. */

import { classify, fetchModels } from "./api.js";
import { byId, h, showError } from "./dom.js";
import { tray } from "./tray.js";
import { chance, count, percent, referenceAmong } from "./words.js";

const SHOWN_AT_FIRST = matchMedia("(max-width: 46rem)").matches ? 6 : 12;

let models = [];
let chosen = null;
let shown = SHOWN_AT_FIRST;
let run = null;

/** The model that predicts, and that a trial tries. */
export const chosenModel = () => chosen;

/** All served models. */
export const servedModels = () => models;

const reference = (model) => referenceAmong(models, model);

function accuracyText({ test_accuracy: test, valid_accuracy: valid }) {
  if (test !== undefined) return `${percent(test, Infinity)} on its test set`;
  return valid === undefined ? "accuracy not stated" : `${percent(valid, Infinity)} on held-out images`;
}

function modelTile(model) {
  const [, channels, height, width] = model.input.shape;
  return h("label", { className: "model" },
    h("input", { type: "radio", name: "model", value: reference(model), checked: model === chosen, onchange: () => choose(model) }),
    h("span", { className: "model-name" }, model.name),
    h("span", { className: "model-figure" }, accuracyText(model.metrics)),
    h("span", { className: "model-detail" },
      `${model.architecture} · version ${model.version} · ${height} × ${width} × ${channels} · ${model.runtime}, ${model.precision} · `,
      h("code", { title: model.digest }, model.digest.slice(0, 8))));
}

function choose(model) {
  chosen = model;
  tray.forgetPredictions();
}

/** What a spec or a form calls this model. */
export const modelReference = reference;

/** A label with its probability as a bar; `tone` colours it. */
export function bar(entry, tone) {
  const fill = h("span", { className: "fill" });
  fill.style.width = `${entry.probability * 100}%`;
  return h("li", { className: `bar ${tone}` },
    h("span", { className: "bar-label" }, entry.label),
    h("span", { className: "bar-value" }, chance(entry.probability)),
    h("span", { className: "track" }, fill));
}

/** The label of an image, where the chosen model knows such a class. */
const truth = ({ label }) => (chosen.labels.includes(label) ? label : null);

function bars(item) {
  if (item.error) return h("p", { className: "card-error" }, item.error.message);
  if (!item.prediction) return h("p", { className: "card-wait" }, "reading …");
  const right = truth(item) === null ? "plain" : item.prediction.label === item.label ? "hold" : "fall";
  return h("ol", { className: "bars" }, item.prediction.top_k.map((entry, rank) => bar(entry, rank ? "rest" : right)));
}

function labelField(item) {
  if (item.known && truth(item) === null) return h("p", { className: "truth" }, `label ${item.label}, which this model does not know`);
  if (item.known) {
    const verdict = item.prediction && (item.prediction.label === item.label ? "✓" : "✗");
    return h("p", { className: "truth" }, `label ${item.label}`,
      verdict && h("span", { className: verdict === "✓" ? "mark hold" : "mark fall", title: verdict === "✓" ? "named correctly" : "named wrongly" }, ` ${verdict}`));
  }
  const options = chosen.labels.map((label) => h("option", { value: label, selected: label === item.label }, label));
  return h("p", { className: "truth" }, h("label", {}, "label ",
    h("select", { className: "truth-select", onchange: (event) => tray.setLabel(item, event.target.value || null) },
      h("option", { value: "" }, "unknown"), options)));
}

function picture(item) {
  const image = h("img", { src: item.url, alt: "", width: 84, height: 84 });
  image.addEventListener("load", () => image.classList.toggle("pixelated", image.naturalWidth <= 64));
  image.addEventListener("error", () => image.replaceWith(h("span", { className: "no-preview" }, "no preview")));
  return image;
}

function card(item) {
  return h("li", { className: "card" },
    h("div", { className: "card-picture" }, picture(item)),
    h("div", { className: "card-text" },
      h("p", { className: "file", title: item.name }, item.name),
      bars(item), labelField(item)),
    h("button", { type: "button", className: "remove", title: "Remove", "aria-label": `Remove ${item.name}`, onclick: () => remove(item) }, "×"));
}

function remove(item) {
  const place = tray.items.indexOf(item);
  tray.remove(item.key);
  (byId("tray").children[Math.min(place, tray.items.length - 1)]?.querySelector(".remove") ?? byId("files")).focus();
}

/** Cards are kept while nothing about them changes: pictures do not flicker and the focus stays. */
const cards = new WeakMap();

function keptCard(item) {
  const state = [item.prediction, item.error, item.label, chosen];
  const kept = cards.get(item);
  if (kept && state.every((value, i) => value === kept.state[i])) return kept.node;
  const node = card(item);
  if (kept?.node.contains(document.activeElement)) queueMicrotask(() => node.querySelector("select, .remove").focus());
  cards.set(item, { state, node });
  return node;
}

function tally() {
  const done = tray.items.filter((item) => item.prediction);
  const labelled = done.filter((item) => truth(item) !== null);
  const right = labelled.filter((item) => item.prediction.label === item.label).length;
  if (!tray.items.length) return "Nothing on the bench yet.";
  if (!labelled.length) return `${count(tray.items.length, "image")}.`;
  return `${count(tray.items.length, "image")}. ${right} of ${labelled.length} with a label named correctly.`;
}

function draw() {
  if (!tray.items.length) shown = SHOWN_AT_FIRST;
  const wanted = chosen ? tray.items.slice(0, shown).map(keptCard) : [];
  const list = byId("tray");
  if (wanted.length !== list.children.length || wanted.some((node, i) => node !== list.children[i])) list.replaceChildren(...wanted);
  byId("tally").textContent = tally();
  byId("clear").hidden = tray.items.length === 0;
  const more = byId("more");
  more.hidden = tray.items.length <= shown;
  more.textContent = `Show all ${tray.items.length}`;
}

/** Sent alone, every image is "File 0": beside its own name that says nothing. */
function withoutPosition(error) {
  const said = error.message.replace(/^File 0: /, "");
  error.message = said[0].toUpperCase() + said.slice(1);
  return error;
}

async function judge(items, signal) {
  try {
    const predictions = await classify(await tray.uploads(items), reference(chosen), signal);
    items.forEach((item, i) => { item.prediction = predictions[i]; });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!error.isRefusal) throw error; // out of reach or overloaded: nothing is wrong with the images
    if (items.length === 1) items[0].error = withoutPosition(error);
    else for (const item of items) await judge([item], signal); // one bad image must not cost the others their answer
  }
}

async function predict() {
  run?.abort();
  const own = run = new AbortController();
  showError(byId("bench-error"), null);
  try {
    for (;;) {
      const next = tray.items.filter((item) => !item.prediction && !item.error).slice(0, classify.limit);
      if (!next.length) return;
      await judge(next, own.signal);
      if (own.signal.aborted) return;
      draw();
      tray.judged();
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    showError(byId("bench-error"), error);
    byId("bench-error").firstChild.append(" ", h("button", { type: "button", onclick: predict }, "Try again"));
  }
}

/** Loads the models and keeps the predictions in step with the tray. */
export async function startPredictions() {
  tray.addEventListener("change", () => {
    draw();
    if (chosen) predict();
  });
  byId("clear").addEventListener("click", () => tray.clear());
  byId("more").addEventListener("click", () => {
    shown = Infinity;
    draw();
  });
  models = await fetchModels();
  chosen = models.find((model) => model.default) ?? models.find((model) => model.name === "fashion-elliptical") ?? models[0] ?? null;
  byId("models").replaceChildren(...models.map(modelTile));
  if (!models.length) byId("models").append(h("p", { className: "notice" }, "No image model is served."));
  tray.forgetPredictions();
}
