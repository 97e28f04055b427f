/** The form that starts an evaluation of the images on the bench. */

import { submitEvaluation } from "./api.js";
import { chosenModel, modelReference, servedModels } from "./classify.js";
import { byId, h, showError } from "./dom.js";
import { tray } from "./tray.js";
import { count, epsValue } from "./words.js";

const ATTACKS = [
  { name: "fgsm", title: "FGSM", what: "one step along the gradient’s sign", options: [] },
  { name: "pgd", title: "PGD", what: "many small steps, each pulled back within eps", options: [{ key: "steps", label: "steps", value: 20, min: 1, max: 1000 }] },
  { name: "square", title: "Square", what: "repaints squares and only asks for answers, without gradients", options: [{ key: "queries", label: "queries", value: 500, min: 1, max: 20000 }] },
  { name: "autoattack", title: "AutoAttack", what: "four strong attacks in sequence; takes long where the model holds", options: [] },
];
const RADII = ["1/255", "2/255", "4/255", "8/255", "16/255", "32/255"];
const PRESETS = [
  { title: "Quick look", attacks: { fgsm: {}, pgd: { steps: 15 } }, eps: ["2/255", "8/255"] },
  { title: "Full curve", attacks: { fgsm: {}, pgd: { steps: 20 } }, eps: ["1/255", "2/255", "4/255", "8/255", "16/255"] },
];

/** What each evaluation was said to cost when it was accepted, by id. */
export const costs = new Map();

function attackRow(attack) {
  const options = attack.options.map(({ key, label, value, min, max }) =>
    h("label", { className: "inline" }, label, h("input", { type: "number", name: `${attack.name}-${key}`, value, min, max, inputMode: "numeric" })));
  return h("div", { className: "attack" },
    h("label", { className: "check" },
      h("input", { type: "checkbox", name: "attack", value: attack.name }),
      h("span", {}, h("b", {}, attack.title), h("small", {}, attack.what))),
    options);
}

const radiusChip = (eps) => h("label", { className: "chip" }, h("input", { type: "checkbox", name: "eps", value: eps }), h("span", {}, eps));

function preset(form, { title, attacks, eps }) {
  return h("button", { type: "button", className: "quiet", onclick: () => applyPreset(form, attacks, eps) }, title);
}

function applyPreset(form, attacks, eps) {
  for (const box of form.querySelectorAll("[name=attack]")) box.checked = box.value in attacks;
  for (const box of form.querySelectorAll("[name=eps]")) box.checked = eps.includes(box.value);
  form.elements["other-eps"].value = "";
  for (const [attack, options] of Object.entries(attacks)) {
    for (const [key, value] of Object.entries(options)) form.elements[`${attack}-${key}`].value = value;
  }
  update(form);
}

function build(form) {
  form.replaceChildren(
    h("div", { className: "fields" },
      h("div", { className: "row presets", role: "group", "aria-label": "Presets" }, h("span", { className: "inline" }, "start from"), PRESETS.map((each) => preset(form, each))),
      h("fieldset", {}, h("legend", {}, "Attacks"), ATTACKS.map(attackRow)),
      h("fieldset", {}, h("legend", {}, "Strength (eps)"),
        h("p", { className: "hint" }, "How far each pixel may move. 1/255 is one step of an 8-bit picture."),
        h("div", { className: "row" }, RADII.map(radiusChip),
          h("label", { className: "inline" }, "others", h("input", { type: "text", name: "other-eps", placeholder: "e.g. 0.1, 12/255", autocomplete: "off", spellcheck: false })))),
      h("div", { className: "row" },
        h("label", { className: "inline" }, "compare with", h("select", { name: "compare" })),
        h("label", { className: "inline" }, "seed", h("input", { type: "number", name: "seed", value: 0, min: 0, inputMode: "numeric" })))),
    h("div", { className: "launch" },
      h("p", { className: "plan", id: "plan" }),
      h("div", { id: "trial-error", role: "alert" }),
      h("button", { type: "submit", className: "primary", id: "start" }, "Start evaluation")));
}

function fillRivals(form) {
  const field = form.elements.compare;
  const before = field.value;
  const rivals = servedModels().filter((model) => model !== chosenModel()).map(modelReference);
  field.replaceChildren(h("option", { value: "" }, "no other model"), ...rivals.map((name) => h("option", { value: name }, name)));
  if (rivals.includes(before)) field.value = before;
}

const ticked = (form, name) => [...form.querySelectorAll(`[name=${name}]:checked`)].map((box) => box.value);

function radii(form) {
  const others = form.elements["other-eps"].value.split(/[\s,;]+/).filter(Boolean);
  return [...new Set([...ticked(form, "eps"), ...others])].sort((a, b) => epsValue(a) - epsValue(b));
}

function readSpec(form) {
  const eps = radii(form);
  const attacks = ticked(form, "attack").map((name) => {
    const options = ATTACKS.find((attack) => attack.name === name).options.map(({ key }) => [key, Number(form.elements[`${name}-${key}`].value)]);
    return { name, norm: "Linf", eps, ...Object.fromEntries(options) };
  });
  const spec = { model: modelReference(chosenModel()), seed: Number(form.elements.seed.value), attacks };
  return form.elements.compare.value ? { ...spec, compare_with: form.elements.compare.value } : spec;
}

/** Label names in the order of the tray, or null where any image has no label this model knows. */
function labels() {
  const names = tray.items.map((item) => item.label);
  return names.every((name) => chosenModel().labels.includes(name)) ? names : null;
}

function missing(form) {
  if (!chosenModel()) return "There is no model to try.";
  if (!tray.items.length) return "Put some images on the bench first.";
  if (tray.items.some((item) => item.error?.isRefusal)) return "Remove the images that the service refused.";
  if (!ticked(form, "attack").length) return "Choose at least one attack.";
  if (!radii(form).length) return "Choose at least one strength.";
  return null;
}

function kindOfTrial() {
  const unknown = tray.items.filter((item) => !chosenModel().labels.includes(item.label)).length;
  if (!unknown) return "All labels are known: it measures accuracy.";
  const who = unknown === tray.items.length ? "No label is known" : `${count(unknown, "image has", "images have")} no label`;
  return `${who}: it measures stability, whether the model keeps its own answer.`;
}

function update(form) {
  const lack = missing(form);
  byId("start").disabled = lack !== null;
  const rounds = ticked(form, "attack").length * radii(form).length;
  const rival = form.elements.compare.value;
  byId("plan").textContent = lack ?? `${count(tray.items.length, "image")}, ${count(rounds, "attack run")} on ${rival ? "each of 2 models" : "1 model"}. ${kindOfTrial()}`;
}

async function start(form) {
  if (missing(form)) return;
  const button = byId("start");
  button.disabled = true;
  button.textContent = "Sending …";
  showError(byId("trial-error"), null);
  try {
    const answer = await submitEvaluation(readSpec(form), await tray.uploads(), labels(), newKey());
    costs.set(answer.id, answer.cost);
    location.hash = `#/evaluations/${encodeURIComponent(answer.id)}`;
  } catch (error) {
    showError(byId("trial-error"), error);
  } finally {
    button.textContent = "Start evaluation";
    update(form);
  }
}

/** `crypto.randomUUID` exists in secure contexts only, and a service on the local network has none. */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Builds the form and keeps its plan in step with tray and model. */
export function startTrialForm() {
  const form = byId("trial");
  build(form);
  fillRivals(form);
  applyPreset(form, PRESETS[0].attacks, PRESETS[0].eps);
  form.addEventListener("input", () => update(form));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    start(form);
  });
  tray.addEventListener("judged", () => update(form));
  tray.addEventListener("change", () => {
    fillRivals(form);
    update(form);
  });
}
