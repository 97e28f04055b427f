/** The workspace for images: files, drops, the clipboard, samples; predictions and the model’s attention. */

import { showError } from "./access.js";
import { classify, fetchSamples, sampleUrl } from "./api.js";
import { acceptFiles, announce, byId, h } from "./dom.js";
import { fileItems, imageInputs, sampleItems, uploads } from "./inputs.js";
import { imageModels } from "./models.js";
import { attentionLayer, picture } from "./pictures.js";
import { addTo, bars, labelField, Workspace } from "./workspace.js";

let explain = false;

function face(item, model) {
  const image = picture(item.url, "", { width: 84, height: 84 });
  image.addEventListener("error", () => image.replaceWith(h("span", { className: "no-preview" }, "no preview")));
  const { explanation } = item.prediction ?? {};
  return [
    h("div", { className: "card-picture" }, image, explain && explanation ? attentionLayer(explanation, image) : null),
    h("div", { className: "card-text" },
      h("p", { className: "file", title: item.name }, item.name),
      bars(item, model), labelField(item, model, imageInputs)),
  ];
}

function setExplain(wanted) {
  explain = wanted;
  byId("image-explain").setAttribute("aria-pressed", String(wanted));
  byId("image-explain-note").hidden = !wanted;
}

/** Not every model has attention to show: the predictions stay, and the button goes back. */
function withoutAttention(error) {
  if (error.code !== "not_explainable") return false;
  setExplain(false);
  showError(byId("image-error"), error);
  return true;
}

let samples = [];

const take = (items) => addTo(imageInputs, items);

function takeRandom() {
  const fresh = samples.filter((sample) => !imageInputs.has(`sample:${sample.file}`));
  const drawn = fresh.map((sample) => ({ sample, place: Math.random() })).sort((a, b) => a.place - b.place);
  const wanted = Number(byId("random-count").value);
  take(sampleItems(drawn.slice(0, wanted).map(({ sample }) => sample)));
}

function thumbnail(sample) {
  const key = `sample:${sample.file}`;
  return h("button", {
    type: "button",
    className: "thumb",
    "data-key": key,
    tabIndex: -1,
    title: sample.label,
    onclick: () => (imageInputs.has(key) ? imageInputs.remove(key) : take(sampleItems([sample]))),
  }, picture(sampleUrl(sample.file), sample.label, { width: 40, height: 40 }));
}

/** Arrow keys move inside the gallery, which is one stop of the tab key. */
function moveInside(gallery, event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "row", ArrowUp: "row" }[event.key];
  const thumbs = [...gallery.querySelectorAll(".thumb")];
  const here = thumbs.indexOf(document.activeElement);
  if (!step || here < 0) return;
  event.preventDefault();
  let next = here + (step === "row" ? 0 : step);
  if (step === "row") {
    const rows = [...gallery.querySelectorAll(".thumbs")];
    const row = rows.indexOf(document.activeElement.parentElement) + (event.key === "ArrowDown" ? 1 : -1);
    if (rows[row]) next = thumbs.indexOf(rows[row].firstElementChild);
  }
  const target = thumbs[Math.max(0, Math.min(thumbs.length - 1, next))];
  document.activeElement.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

function showGallery() {
  const gallery = byId("gallery");
  const labels = [...new Set(samples.map((sample) => sample.label))];
  gallery.replaceChildren(...labels.map((label) => {
    const own = samples.filter((sample) => sample.label === label);
    return h("div", { className: "sample-class" },
      h("button", { type: "button", className: "class-name", title: `Take all ${own.length}`, onclick: () => take(sampleItems(own)) }, label),
      h("div", { className: "thumbs" }, own.map(thumbnail)));
  }));
  gallery.querySelector(".thumb").tabIndex = 0;
  markTaken();
}

function markTaken() {
  for (const thumb of byId("gallery").querySelectorAll(".thumb")) {
    thumb.setAttribute("aria-pressed", String(imageInputs.has(thumb.dataset.key)));
  }
}

function toggleGallery() {
  const gallery = byId("gallery");
  if (!gallery.childElementCount) showGallery();
  gallery.hidden = !gallery.hidden;
  byId("browse").setAttribute("aria-expanded", String(!gallery.hidden));
  announce(gallery.hidden ? "Samples closed" : `${samples.length} samples shown`);
}

/** Reads the index of samples. */
export async function loadSamples() {
  samples = await fetchSamples();
  byId("gallery").replaceChildren();
  byId("gallery").hidden = true;
  byId("browse").setAttribute("aria-expanded", "false");
  byId("sample-tools").hidden = samples.length === 0;
}

/** Wires the workspace for images. */
export function startImages() {
  const drop = byId("drop");
  acceptFiles(drop, byId("files"), (files) => take(fileItems(files)));
  document.addEventListener("paste", ({ clipboardData }) => {
    if (clipboardData?.files.length && !drop.closest(".view").hidden) take(fileItems(clipboardData.files));
  });
  byId("random").addEventListener("click", takeRandom);
  byId("browse").addEventListener("click", toggleGallery);
  byId("gallery").addEventListener("keydown", (event) => moveInside(byId("gallery"), event));
  imageInputs.addEventListener("change", markTaken);
  const workspace = new Workspace({
    inputs: imageInputs,
    models: imageModels,
    prefix: "image",
    shownFirst: matchMedia("(max-width: 46rem)").matches ? 6 : 12,
    ask: async (items, model, signal) => classify(await uploads(items), model, { explain, signal }),
    answered: ({ prediction }) => prediction !== null && (!explain || prediction.explanation !== undefined),
    face,
  });
  workspace.onTrouble = withoutAttention;
  byId("image-explain").addEventListener("click", () => {
    setExplain(!explain);
    // New objects: the cards are drawn again with or without the glow.
    for (const item of imageInputs.items) if (item.prediction) item.prediction = { ...item.prediction };
    workspace.refresh();
  });
  imageInputs.addEventListener("change", () => { byId("image-explain").hidden = imageInputs.items.length === 0; });
}
