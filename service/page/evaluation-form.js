/** The form that starts an evaluation of the selected inputs. */

import { showError } from "./access.js";
import { fetchCost, submitEvaluation } from "./api.js";
import { AttackFields } from "./attacks.js";
import { byId, h } from "./dom.js";
import { imageInputs, textInputs, uploads } from "./inputs.js";
import { imageModels, textModels } from "./models.js";
import { count, duration } from "./words.js";

const COST_AFTER_MS = 300;

/** `crypto.randomUUID` exists in secure contexts only, and a service on the local network has none. */
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const inline = (text, field) => h("label", { className: "inline" }, text, field);

class EvaluationForm {
  #asking = null;
  #timer = 0;

  constructor(form, inputs, models) {
    Object.assign(this, { form, inputs, models });
    this.fields = new AttackFields(form, inputs.kind);
    this.plan = h("p", { className: "plan" });
    this.cost = h("p", { className: "cost", role: "status" });
    this.error = h("div", { className: "form-error", role: "alert" });
    this.button = h("button", { type: "submit", className: "primary start" }, "Start evaluation");
    form.replaceChildren(
      h("div", { className: "fields" }, this.fields.presets, this.fields.details, this.#circumstances()),
      h("div", { className: "launch" }, this.plan, this.button, this.cost, this.error));
    form.addEventListener("input", ({ target }) => {
      this.fields.changed(target);
      this.update();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    inputs.addEventListener("predicted", () => this.update());
    inputs.addEventListener("change", () => this.update());
    models.addEventListener("change", () => this.#fillRivals());
    this.fields.apply();
    this.update();
  }

  #circumstances() {
    const priority = ["low", "normal", "high"].map((value) => h("option", { value, selected: value === "normal" }, value));
    return h("div", { className: "row circumstances" },
      inline("compare with", h("select", { name: "compare" })),
      inline("gate: at least", h("span", {}, h("input", { type: "number", name: "gate", min: 0, max: 100, step: 1, placeholder: "–", inputMode: "numeric", title: "Passes where the lower bound of the robust accuracy is at least this" }), " %")),
      inline("seed", h("input", { type: "number", name: "seed", value: 0, min: 0, inputMode: "numeric" })),
      inline("priority", h("select", { name: "priority", title: "High needs a key of an administrator" }, priority)));
  }

  #fillRivals() {
    const field = this.form.elements.compare;
    const before = field.value;
    const rivals = this.models.rivals();
    field.replaceChildren(h("option", { value: "" }, "no other model"), ...rivals.map((name) => h("option", { value: name }, name)));
    if (rivals.includes(before)) field.value = before;
    this.update();
  }

  #spec() {
    const { compare, gate, seed } = this.form.elements;
    return {
      model: this.models.reference(this.models.chosen),
      seed: Number(seed.value),
      attacks: this.fields.read(),
      ...(compare.value ? { compare_with: compare.value } : {}),
      ...(gate.value && !gate.disabled ? { gate: `robust_accuracy >= ${Number(gate.value) / 100}` } : {}),
    };
  }

  /** Label names in the order of the inputs, or null where any input has no label this model knows. */
  #labels() {
    const names = this.inputs.items.map((item) => item.label);
    return names.every((name) => this.models.chosen.labels.includes(name)) ? names : null;
  }

  #missing() {
    const { items, kind } = this.inputs;
    if (!this.models.chosen) return "No model is served.";
    if (!items.length) return `Select some ${kind}s first.`;
    if (items.some((item) => item.error?.isRefusal)) return `Remove the ${kind}s that the service refused.`;
    return this.fields.missing();
  }

  #planText() {
    const { items, kind } = this.inputs;
    const unknown = items.filter((item) => !this.models.chosen.labels.includes(item.label)).length;
    const models = this.form.elements.compare.value ? "2 models" : "1 model";
    const start = `${count(items.length, kind)}, ${models}.`;
    if (!unknown) return `${start} All labels are known: accuracy is measured.`;
    const who = unknown === items.length ? "No label is known" : `${count(unknown, `${kind} has`, `${kind}s have`)} no label`;
    return `${start} ${who}: stability is measured, whether the model keeps its own prediction.`;
  }

  /** Brings plan and cost up to date with the fields, the inputs and the model. */
  update() {
    const lack = this.#missing();
    this.button.disabled = lack !== null;
    byId(`${this.inputs.kind}-evaluation-note`).textContent = this.fields.notes();
    this.form.elements.gate.disabled = !this.fields.attacking();
    this.plan.textContent = lack ?? this.#planText();
    clearTimeout(this.#timer);
    this.#asking?.abort();
    if (lack) this.cost.textContent = "";
    else this.#timer = setTimeout(() => this.#showCost(), COST_AFTER_MS);
  }

  async #showCost() {
    const { signal } = this.#asking = new AbortController();
    this.cost.textContent = "estimating the cost …";
    try {
      const { model_evaluations: evaluations, seconds } = await fetchCost(this.#spec(), this.inputs.items.length, signal);
      const time = seconds === null ? "The time is estimated once it runs" : `About ${duration(seconds)} once it runs`;
      this.cost.replaceChildren(h("b", {}, `Up to ${count(evaluations, "model evaluation")}`), ` ${time}.`);
      showError(this.error, null);
    } catch (error) {
      if (signal.aborted) return;
      this.cost.textContent = "";
      showError(this.error, error);
    }
  }

  async #inputs() {
    const { items, kind } = this.inputs;
    return kind === "text" ? { texts: items.map(({ name }) => name) } : { images: await uploads(items) };
  }

  async start() {
    if (this.#missing()) return;
    this.button.disabled = true;
    this.button.textContent = "Sending …";
    showError(this.error, null);
    try {
      const terms = { labels: this.#labels(), priority: this.form.elements.priority.value, key: newKey() };
      const answer = await submitEvaluation(this.#spec(), await this.#inputs(), terms);
      location.hash = `#/evaluations/${encodeURIComponent(answer.id)}`;
    } catch (error) {
      showError(this.error, error);
    }
    this.button.textContent = "Start evaluation";
    this.button.disabled = this.#missing() !== null;
  }
}

let started = false;

/** Builds the forms below images and texts, once the attacks are known. */
export function startForms() {
  if (started) return;
  started = true;
  new EvaluationForm(byId("image-evaluation"), imageInputs, imageModels);
  new EvaluationForm(byId("text-evaluation"), textInputs, textModels);
}
