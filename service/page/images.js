/** The workspace for images: files, drops, the clipboard, samples; predictions and the model’s attention. */

import { showError } from "./access.js";
import { classify, fetchLimits, fetchSamples, sampleUrl } from "./api.js";
import { acceptFiles, announce, byId, h } from "./dom.js";
import { openFiles } from "./files.js";
import { fileItems, imageInputs, maskInputs, sampleItems, textInputs, uploads } from "./inputs.js";
import { classOf, imageModels } from "./models.js";
import { attentionLayer, picture } from "./pictures.js";
import { count } from "./words.js";
import { addTo, bars, labelField, Workspace } from "./workspace.js";

/** What is shown of each image beside its prediction. */
const wanted = { explain: false, seen: false };

function face(item, model) {
  const { explanation, input } = item.prediction ?? {};
  const image = picture(wanted.seen && input ? `data:image/png;base64,${input}` : item.url, "", { width: 84, height: 84 });
  image.addEventListener("error", () => image.replaceWith(h("span", { className: "no-preview" }, "no preview")));
  return [
    h("div", { className: "card-picture" }, image, wanted.explain && explanation ? attentionLayer(explanation, image) : null),
    h("div", { className: "card-text" },
      h("p", { className: "file", title: item.name }, item.name),
      bars(item, model), labelField(item, model, imageInputs)),
  ];
}

function setWanted(name, on) {
  wanted[name] = on;
  byId(`image-${name}`).setAttribute("aria-pressed", String(on));
  byId(`image-${name}-note`).hidden = !on;
}

/** Not every model has attention to show: the predictions stay, and the button goes back. */
function withoutAttention(error) {
  if (error.code !== "not_explainable") return false;
  setWanted("explain", false);
  showError(byId("image-error"), error);
  return true;
}

let samples = [];

let limits = {};

/** Reads what the service takes: which formats, and how many inputs. */
export async function loadLimits() {
  limits = await fetchLimits();
  for (const inputs of [imageInputs, maskInputs, textInputs]) Object.assign(inputs, { capacity: limits.evaluation_max_samples, mostBytes: limits.max_body_mb * 1_000_000 });
  byId("formats").textContent = `${limits.image_formats.join(", ")}, in any size and color; you can also paste a picture`;
}

const take = (items, notes) => addTo(imageInputs, items, notes);

/** What must be said about labels: names that are no class of the model. */
function foreignLabels() {
  const model = imageModels.chosen;
  const foreign = imageInputs.items.filter(({ label, known }) => model && label !== null && !known && classOf(label, model) === null);
  if (!foreign.length) return null;
  const names = [...new Set(foreign.map(({ label }) => `“${label}”`))];
  return `${names.slice(0, 5).join(", ")}${names.length > 5 ? ", …" : ""}: not a class of ${model.name}, so ${count(foreign.length, "image has", "images have")} no label. Its classes: ${model.labels.slice(0, 20).join(", ")}${model.labels.length > 20 ? ", …" : ""}.`;
}

/** Takes images, folders and zips of them, and csv files of labels. */
async function takeFiles(given) {
  announce("Reading the files");
  try {
    const { images, labels, left } = await openFiles(given, (limits.archive_max_mb ?? Infinity) * 1_000_000);
    const unfit = left ? `${count(left, "file")} left out: not an image by its name.` : null;
    if (!images.length && !labels.size) throw new Error(`No images found. ${unfit ?? ""}`);
    take(fileItems(images), () => {
      const missed = labels.size ? labels.size - imageInputs.setLabels(labels) : 0;
      return [unfit, missed && `${count(missed, "line")} of the labels ${missed === 1 ? "names" : "name"} no image here.`, foreignLabels()];
    });
  } catch (error) {
    showError(byId("images-error"), error);
  }
}

function takeRandom() {
  const fresh = samples.filter((sample) => !imageInputs.has(`sample:${sample.file}`));
  const drawn = fresh.map((sample) => ({ sample, place: Math.random() })).sort((a, b) => a.place - b.place);
  const wanted = Number(byId("random-count").value);
  take(sampleItems(drawn.slice(0, wanted).map(({ sample }) => sample)));
}

function thumbnail(sample) {
  const key = `sample:${sample.file}`;
  const onclick = () => (imageInputs.has(key) ? imageInputs.remove(key) : take(sampleItems([sample])));
  return h("button", { type: "button", className: "thumb", "data-key": key, tabIndex: -1, title: sample.label, onclick }, picture(sampleUrl(sample.file), sample.label, { width: 40, height: 40 }));
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
  acceptFiles(drop, [byId("files"), byId("folder")], takeFiles);
  document.addEventListener("paste", ({ clipboardData }) => {
    if (clipboardData?.files.length && !drop.closest(".view").hidden) takeFiles([...clipboardData.files]);
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
    ask: async (items, model, signal) => classify(await uploads(items), model, { ...wanted, signal }),
    answered: ({ prediction }) => prediction !== null && (!wanted.explain || prediction.explanation !== undefined) && (!wanted.seen || prediction.input !== undefined),
    face,
  });
  workspace.onTrouble = withoutAttention;
  for (const name of Object.keys(wanted)) {
    byId(`image-${name}`).addEventListener("click", () => {
      setWanted(name, !wanted[name]);
      // New objects: the cards are drawn again with or without what is wanted.
      for (const item of imageInputs.items) if (item.prediction) item.prediction = { ...item.prediction };
      workspace.refresh();
    });
    imageInputs.addEventListener("change", () => { byId(`image-${name}`).hidden = imageInputs.items.length === 0; });
  }
}
