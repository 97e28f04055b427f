/** The bench of texts: typed, pasted, from files, or examples; each with bars beside it. */

import { classifyTexts } from "./api.js";
import { bars, labelField } from "./bars.js";
import { Bench } from "./bench.js";
import { announce, byId, h } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { textModels } from "./models.js";
import { showError } from "./problem.js";
import { textItems, textTray } from "./tray.js";

const SHOWN_FIRST = 12;
const LONGEST_FILE = 1_000_000;

function face(item, model) {
  return [
    h("div", { className: "card-text" },
      h("p", { className: "passage", tabIndex: item.name.length > 200 ? 0 : null }, item.name),
      bars(item, model), labelField(item, model, textTray)),
  ];
}

function take(texts) {
  const left = textTray.add(textItems(texts));
  showError(byId("texts-error"), left ? new Error(`The bench holds ${textTray.capacity} texts; ${left} found no room.`) : null);
  announce(`${textTray.items.length} texts on the bench`);
}

function addTyped(event) {
  event.preventDefault();
  const field = byId("text");
  const whole = field.value;
  const texts = byId("by-line").checked ? whole.split("\n") : [whole];
  const some = texts.map((text) => text.trim()).filter(Boolean);
  if (!some.length) {
    showError(byId("texts-error"), new Error("Type a text first: blanks say nothing to a model."));
    return;
  }
  take(some.map((text) => ({ text })));
  field.value = "";
  field.focus();
}

async function addFiles(files) {
  const fitting = [...files].filter(({ size }) => size > 0 && size <= LONGEST_FILE);
  const texts = await Promise.all(fitting.map((file) => file.text()));
  take(texts.map((text) => ({ text: text.trim() })).filter(({ text }) => text));
  if (fitting.length < files.length) showError(byId("texts-error"), new Error("Files that are empty or larger than 1 MB were left out."));
}

function listenForFiles() {
  const drop = byId("text-drop");
  byId("text-files").addEventListener("change", (event) => {
    addFiles(event.target.files);
    event.target.value = "";
  });
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    drop.classList.remove("over");
    if (!event.dataTransfer?.files.length) return; // a dragged passage goes into the field as usual
    event.preventDefault();
    event.stopPropagation();
    addFiles(event.dataTransfer.files);
  });
}

/** Wires the bench of texts; examples are offered to a model that knows their labels. */
export function startTextBench() {
  new Bench({
    tray: textTray,
    models: textModels,
    prefix: "text",
    atOnce: classifyTexts.limit,
    shownFirst: SHOWN_FIRST,
    ask: (items, model, signal) => classifyTexts(items.map(({ name }) => name), model, { signal }),
    answered: ({ prediction }) => prediction !== null,
    face,
  });
  listenForFiles();
  byId("text-form").addEventListener("submit", addTyped);
  byId("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("text-form").requestSubmit();
  });
  byId("examples").addEventListener("click", () => take(EXAMPLES));
  textModels.addEventListener("change", () => {
    byId("texts-link").hidden = textModels.all.length === 0;
    byId("examples").hidden = !EXAMPLES.every(({ label }) => textModels.chosen?.labels.includes(label));
  });
}
