/** The workspace for texts: typed, pasted, from files, or examples. */

import { showError } from "./access.js";
import { classifyTexts } from "./api.js";
import { acceptFiles, byId, h } from "./dom.js";
import { textInputs, textItems } from "./inputs.js";
import { textModels } from "./models.js";
import { addTo, bars, labelField, Workspace } from "./workspace.js";

const EXAMPLES = [
  { label: "pos", text: "A wonderful film. The two leads are moving, the music is beautiful, and I left the cinema with a smile." },
  { label: "neg", text: "What a waste of an evening. The plot is dull, the acting is terrible, and nothing in it is worth remembering." },
  { label: "pos", text: "It starts slowly, but give it time: the last half hour is brilliant, funny and sad at once." },
  { label: "neg", text: "I wanted to like it. The idea is good, but the dialogue is awful and the ending makes no sense at all." },
  { label: "pos", text: "Simply the best performance of her career, in a story that is told with great care and warmth." },
  { label: "neg", text: "Badly written, poorly lit and far too long. Even the jokes are boring." },
  { label: "pos", text: "One of those rare films that I could watch again tomorrow. Great fun from the first scene to the last." },
  { label: "neg", text: "The worst sequel in years: no tension, no heart, and a lead who looks as bored as I was." },
];

const SHOWN_FIRST = 12;
const LONGEST_FILE = 1_000_000;

/** The answer with what could not be read; of a text without a known word that alone. */
function answer(item, model) {
  const { words, warnings = [] } = item.prediction ?? {};
  const blind = words !== undefined && words.unknown === words.read;
  return h("div", {}, blind ? null : bars(item, model),
    warnings.map((warning, i) => h("p", { className: blind && i === 0 ? "card-error" : "truth" }, warning)));
}

function face(item, model) {
  return [
    h("div", { className: "card-text" },
      h("p", { className: "passage", tabIndex: item.name.length > 200 ? 0 : null }, item.name),
      answer(item, model), labelField(item, model, textInputs)),
  ];
}

const take = (texts) => addTo(textInputs, textItems(texts));

function addTyped(event) {
  event.preventDefault();
  const field = byId("text");
  const whole = field.value;
  const texts = byId("by-line").checked ? whole.split("\n") : [whole];
  const some = texts.map((text) => text.trim()).filter(Boolean);
  if (!some.length) {
    showError(byId("texts-error"), new Error("Type a text first; it must not be blank."));
    return;
  }
  take(some.map((text) => ({ text })));
  field.value = "";
  field.focus();
}

async function addFiles(files) {
  const fitting = files.filter(({ size }) => size > 0 && size <= LONGEST_FILE);
  const texts = await Promise.all(fitting.map((file) => file.text()));
  take(texts.map((text) => ({ text: text.trim() })).filter(({ text }) => text));
  if (fitting.length < files.length) showError(byId("texts-error"), new Error("Folders, and files that are empty or larger than 1 MB, were left out."));
}

/** Wires the workspace for texts; examples are offered to a model that knows their labels. */
export function startTexts() {
  new Workspace({
    inputs: textInputs,
    models: textModels,
    prefix: "text",
    shownFirst: SHOWN_FIRST,
    ask: (items, model, signal) => classifyTexts(items.map(({ name }) => name), model, signal),
    answered: ({ prediction }) => prediction !== null,
    face,
  });
  acceptFiles(byId("text-drop"), [byId("text-files")], addFiles);
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
