/** The form that starts an evaluation of the selected inputs. */

import { showError } from "./access.js";
import { fetchCost, submitEvaluation } from "./api.js";
import { AttackFields, inputKind } from "./attacks.js";
import { byId, h } from "./dom.js";
import { imageInputs, maskInputs, textInputs, uploads } from "./inputs.js";
import { rememberStart, startedWith } from "./kept.js";
import { classOf, imageModels, maskModels, textModels } from "./models.js";
import { Requests } from "./requests.js";
import { count, moment, roughly } from "./words.js";

const COST_AFTER_MS = 300;

/** `crypto.randomUUID` exists in secure contexts only, and a service on the local network has none. */
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

const FIELDS = { name: "called", note: "note", gate: "gate", stop: "stop", seed: "seed", compare_with: "compare", top_k: "ranks" };

/** What a gate may be about: how it is called, and the role of what must be run for it. */
const GATES = { robust_accuracy: ["accuracy under the worst attack", "attack"], proved_accuracy: ["proved accuracy", "proof"], clean_accuracy: ["clean accuracy", null] };
const PIXEL_GATES = { robust_pixel_accuracy: ["pixel accuracy under attack", "attack"], clean_pixel_accuracy: ["clean pixel accuracy", null] };
const choices = (pairs) => pairs.map(([value, text]) => h("option", { value }, text));

/** A field with its explanation below it. */
function explained(kind, text, field, hint) {
  const id = `${kind}-${field.name}-hint`;
  field.setAttribute("aria-describedby", id);
  return h("div", { className: "row circumstance" }, h("label", { className: "inline" }, text, field, field.name === "gate" && "%"), h("small", { id }, hint));
}

/** What is wrong with what is typed, in words; null where nothing is. */
function fieldFault({ validity, pattern, title, min, max, step }) {
  if (validity.valid) return null;
  if (pattern) return title;
  const range = max && max < 1_000_000 ? `from ${min} to ${max}` : `from ${min} on`;
  return `Enter a ${step ? "number" : "whole number"} ${range}.`;
}

class EvaluationForm {
  #asking = null;
  #timer = 0;
  /** Whether the service has refused what stands in the form. */
  #refused = false;

  constructor(form, inputs, models) {
    Object.assign(this, { form, inputs, models, ofPixels: inputs.kind === "mask" });
    this.gates = this.ofPixels ? PIXEL_GATES : GATES;
    this.fields = new AttackFields(form, inputs.kind);
    this.again = h("p", { className: "notice again", tabIndex: -1, hidden: true });
    this.requests = new Requests();
    this.copies = h("details", { className: "adjust" }, h("summary", {}, "Copy as spec, curl or Python"), this.requests.blocks);
    this.plan = h("p", { className: "plan" });
    this.cost = h("p", { className: "cost", role: "status" });
    this.error = h("div", { className: "form-error", role: "alert" });
    this.button = h("button", { type: "submit", className: "primary start" }, "Start evaluation");
    form.replaceChildren(
      this.again,
      h("div", { className: "fields" }, this.fields.presets, this.fields.details, this.#circumstances(), this.copies),
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
    this.fields.offer(models.chosen);
    this.update();
  }

  #circumstances() {
    const priority = ["low", "normal", "high"].map((value) => h("option", { value, selected: value === "normal" }, value));
    const of = (...parts) => explained(this.inputs.kind, ...parts);
    return h("div", { className: "circumstances" },
      of("name", h("input", { type: "text", name: "called", maxLength: 100, autocomplete: "off" }), "What the list of evaluations calls it."),
      of("note", h("textarea", { name: "note", rows: 1, maxLength: 2000 }), "What you want to remember of it."),
      of("compare with", h("select", { name: "compare" }), "Runs the same attacks on a second model and tells whether the difference is more than chance."),
      of("gate on", h("select", { name: "metric" }, choices(Object.entries(this.gates).map(([key, [text]]) => [key, text]))), "The accuracy that is asked for, at the largest budget."),
      of("gate: at least", h("input", { type: "number", name: "gate", min: 0, max: 100, step: "any", placeholder: "–", inputMode: "decimal" }), "Passes if the lower end of its 95 % interval is at least this. Empty: no gate."),
      of("stop", h("select", { name: "stop" }, choices([["end", "after all inputs"], ["early", "once the gate is decided"]])), "Early, inputs come in random order, and the result shows how many were used and a confidence sequence in the place of the interval."),
      !this.ofPixels && of("ranks (top-k)", h("input", { type: "text", className: "short", name: "ranks", value: "1", pattern: "[1-9]\\d{0,8}([ ,]+[1-9]\\d{0,8})*", title: "Enter whole numbers from 1 on, such as 1 5.", autocomplete: "off" }), "Right at k: the label is among the k likeliest. Above 1, every attack runs to its end."),
      of("seed", h("input", { type: "number", name: "seed", value: 0, min: 0, required: true, inputMode: "numeric" }), "Where random choices start: the same seed gives the same result again."),
      of("priority", h("select", { name: "priority" }, priority), "Which evaluation waits for which. High needs an administrator’s key."));
  }

  #fillRivals() {
    const field = this.form.elements.compare;
    const before = field.value;
    const rivals = this.models.rivals();
    field.replaceChildren(h("option", { value: "" }, "no other model"), ...rivals.map((name) => h("option", { value: name }, name)));
    if (rivals.includes(before)) field.value = before;
    this.fields.offer(this.models.chosen);
    this.update();
  }

  #spec() {
    const { called, note, compare, metric, gate, stop, seed, ranks } = this.form.elements;
    const topK = (ranks?.value ?? "1").split(/[ ,]+/).filter(Boolean).map(Number);
    return {
      model: this.models.reference(this.models.chosen),
      seed: Number(seed.value),
      attacks: this.fields.read(),
      ...(topK.length && topK.join() !== "1" && { top_k: topK }),
      ...(called.value.trim() && { name: called.value.trim() }),
      ...(note.value.trim() && { note: note.value.trim() }),
      ...(compare.value ? { compare_with: compare.value } : {}),
      ...(gate.value ? { gate: `${metric.value} >= ${Number(gate.value) / 100}` } : {}),
      ...(stop.value === "early" ? { stop: "early" } : {}),
    };
  }

  /** Label names in the order of the inputs, null for one without a label that this model knows. */
  #labels() {
    return this.inputs.items.map(({ label }) => classOf(label, this.models.chosen));
  }

  #missing() {
    const { items, kind, refused, mostBytes } = this.inputs;
    const bytes = items.reduce((sum, { file }) => sum + (file?.size ?? 0), 0);
    if (!this.models.chosen) return "No model is served.";
    if (!items.length) return this.ofPixels ? "Choose a zip of images and masks first." : `Select some ${kind}s first.`;
    if (refused.length) return `Remove the ${kind}s that the service refused.`;
    if (bytes > mostBytes) return `Remove some ${kind}s: they have ${Math.ceil(bytes / 1_000_000)} MB, and an evaluation takes ${mostBytes / 1_000_000} MB.`;
    return this.fields.missing();
  }

  /** What breaks a rule, as far as the page knows: [{field, message}]. */
  #faults() {
    const used = [...this.form.querySelectorAll(".circumstance input:enabled, .attack:has([name=attack]:checked) input")];
    const own = used.map((field) => ({ field, message: fieldFault(field) })).filter(({ message }) => message);
    return [...this.fields.faults(), ...own, ...this.#unfit()];
  }

  /** What does not go together: a gate without what it is about, an early stop without a gate or with two models. */
  #unfit() {
    const { metric, gate, stop, compare } = this.form.elements;
    const [title, role] = this.gates[metric.value];
    return [
      gate.value && role && !this.fields.runs(role) && { field: metric, message: `Choose ${role === "proof" ? "a proof" : "an attack"} first: without one no ${title} is measured.` },
      stop.value === "early" && !gate.value && { field: stop, message: "Enter a gate first: without one there is nothing to decide." },
      stop.value === "early" && compare.value && { field: stop, message: "A gate is about one model: compare with no other, or stop after all inputs." },
    ].filter(Boolean);
  }

  /** Says at each field, once, what is wrong with it. */
  #mark(faults) {
    for (const note of this.form.querySelectorAll(".fault")) note.remove();
    for (const field of this.form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    for (const { field, message } of faults) {
      if (field.hasAttribute("aria-invalid")) continue;
      const id = `${this.inputs.kind}-${field.name}-fault`;
      field.setAttribute("aria-invalid", "true");
      field.setAttribute("aria-describedby", `${this.inputs.kind}-${field.name}-hint ${id}`);
      field.closest(".row, .attack").append(h("small", { className: "fault", id, role: "alert" }, message));
      if (this.fields.details.contains(field)) this.fields.details.open = true;
    }
  }

  /** Says what the service refuses: at its field, or below the button where it has none. */
  #refuse(error) {
    const details = error.isRefusal && Array.isArray(error.details) ? error.details : [];
    const found = details.map(({ field, message }) => ({ field: this.fields.at(field) ?? this.form.elements[FIELDS[String(field).split(".")[0]]], message: `${message[0].toUpperCase()}${message.slice(1)}${message.endsWith("?") ? "" : "."}` }));
    const placed = found.filter(({ field }) => field);
    this.#refused = Boolean(error.isRefusal);
    this.#mark(placed);
    showError(this.error, found.length && placed.length === found.length ? null : error);
    this.#ready();
  }

  #ready() {
    const lack = this.#missing();
    const faulty = !lack && (this.#refused || this.#faults().length > 0);
    this.button.disabled = Boolean(lack) || faulty;
    this.plan.textContent = lack ?? (faulty ? "Correct what is marked first." : this.#planText());
    if (this.inputs.refused.length) this.plan.append(" ", h("button", { type: "button", onclick: () => this.inputs.removeRefused() }, `Remove ${this.inputs.refused.length}`));
    return !lack;
  }

  #planText() {
    const { items, kind } = this.inputs;
    const unknown = this.#labels().filter((label) => label === null).length;
    const models = this.form.elements.compare.value ? "2 models" : "1 model";
    const early = this.form.elements.stop.value === "early" ? " Stops once the gate is decided." : "";
    const start = `${count(items.length, kind)}, ${models}.${early}`;
    if (this.ofPixels) return `${start} Pixel accuracy and mean IoU are measured.`;
    if (!unknown) return `${start} All labels are known: accuracy is measured.`;
    const who = unknown === items.length ? "No label is known" : `${count(unknown, `${kind} has`, `${kind}s have`)} no label`;
    return `${start} ${who}: stability is measured, whether the model keeps its own prediction.`;
  }

  /** Brings plan and cost up to date with the fields, the inputs and the model. */
  update() {
    byId(`${this.inputs.kind}-evaluation-note`).textContent = this.fields.notes();
    clearTimeout(this.#timer);
    this.#asking?.abort();
    const whole = this.models.chosen && !this.fields.missing() && !this.#faults().length;
    this.copies.hidden = !whole;
    if (whole) this.requests.show(this.#spec(), this.form.elements.priority.value);
    if (this.#ready()) this.#timer = setTimeout(() => this.#check(), COST_AFTER_MS);
    else this.cost.textContent = "";
  }

  /** Once typing has paused: marks what is wrong, or else asks the service. */
  #check() {
    const faults = this.#faults();
    if (!faults.length) return this.#showCost();
    this.#mark(faults);
    this.cost.textContent = "";
    return showError(this.error, null);
  }

  async #showCost() {
    const { signal } = this.#asking = new AbortController();
    this.cost.textContent = "estimating the cost …";
    try {
      const { model_evaluations: evaluations, seconds, queries, amount } = await fetchCost(this.#spec(), this.inputs.items.length, signal);
      const time = seconds === null ? "The time is estimated once it runs" : `It runs for ${roughly(seconds)}`;
      const asked = queries === null ? "" : ` Up to ${count(queries, "input")} sent to the endpoint${amount === null ? "" : `, for ${amount.toLocaleString("en")}`}.`;
      this.cost.replaceChildren(h("b", {}, `Up to ${count(evaluations, "model evaluation")}`), `${asked} ${time}.`);
      showError(this.error, null);
      this.#mark([]);
      this.#refused = false;
      this.#ready();
    } catch (error) {
      if (signal.aborted) return;
      this.cost.textContent = "";
      this.#refuse(error);
    }
  }

  async #inputs() {
    const { items, kind } = this.inputs;
    if (this.ofPixels) return { archive: items.find(({ file }) => file).file };
    return kind === "text" ? { texts: items.map(({ name }) => name) } : { images: await uploads(items) };
  }

  /** Chooses the models of an evaluation as far as they are served; tells which are not. */
  #fillModels(asked) {
    const [own, rival] = asked.map(({ name, digest }) => this.models.find(digest) ?? this.models.all.find((model) => model.name === name));
    if (own) this.models.choose(own);
    this.form.elements.compare.value = rival ? this.models.reference(rival) : "";
    const changed = asked.filter(({ digest }) => !this.models.find(digest)).map(({ name }) => name);
    return changed.length ? `${changed.join(" and ")}: not served any more as it was.` : "";
  }

  /** Fills the form with what an evaluation was asked, and says what has no place in it. */
  fill({ id, spec, priority, samples, models, created }) {
    const served = this.#fillModels(models);
    const left = this.fields.take(spec.attacks);
    const [usual] = Object.keys(this.gates);
    const [, metric = usual, share] = /^\s*(\w+)\s*>=\s*(\S+)\s*$/.exec(spec.gate ?? "") ?? [];
    if (spec.gate && !share) left.push(`gate ${spec.gate}`);
    if (spec.class_map) left.push("class_map");
    const values = { called: spec.name ?? "", note: spec.note ?? "", seed: spec.seed ?? 0, ranks: (spec.top_k ?? [1]).join(" "), metric, gate: share ? Number((share * 100).toFixed(9)) : "", stop: spec.stop ?? "end", priority };
    if (this.ofPixels) delete values.ranks;
    for (const [name, value] of Object.entries(values)) this.form.elements[name].value = value;
    const { items, kind } = this.inputs;
    const own = `Its ${count(samples, kind)}`;
    const others = items.length ? `${own}, or their labels, are not what is selected here now: ${count(items.length, kind)} would be evaluated.` : `${own} are not on this page: select ${kind}s first.`;
    this.again.replaceChildren([`Filled from the evaluation of ${moment(created)}. Change what you like, then start.`,
      startedWith(id, items) ? `${own} are still selected, with the same labels.` : others, served,
      left.length ? `Not in this form: ${left.join(", ")}.` : ""].filter(Boolean).join(" "));
    this.again.hidden = false;
    this.update();
  }

  async start() {
    if (this.button.disabled) return;
    this.button.disabled = true;
    this.button.textContent = "Sending …";
    showError(this.error, null);
    try {
      const labels = this.#labels();
      const terms = { labels: labels.includes(null) ? null : labels, priority: this.form.elements.priority.value, key: newKey() };
      const answer = await submitEvaluation(this.#spec(), await this.#inputs(), terms);
      rememberStart(answer.id, this.inputs.items);
      this.again.hidden = true;
      location.hash = `#/evaluations/${encodeURIComponent(answer.id)}`;
      this.#ready();
    } catch (error) {
      this.#refuse(error);
    }
    this.button.textContent = "Start evaluation";
  }
}

const forms = new Map();

/** Opens the form of an evaluation's kind, filled with what that was asked. */
export function runAgain(evaluation) {
  const ofPixels = maskModels.all.some(({ name }) => name === evaluation.models[0].name);
  const kind = ofPixels ? "mask" : inputKind(evaluation.spec);
  const form = forms.get(kind);
  form?.fill(evaluation);
  window.addEventListener("hashchange", () => {
    form?.again.scrollIntoView();
    form?.again.focus({ preventScroll: true });
  }, { once: true });
  location.hash = { image: "#/", text: "#/texts", mask: "#/masks" }[kind];
}

/** Builds the forms below images, texts and masks, once the attacks are known. */
export function startForms() {
  if (forms.size) return;
  forms.set("image", new EvaluationForm(byId("image-evaluation"), imageInputs, imageModels));
  forms.set("mask", new EvaluationForm(byId("mask-evaluation"), maskInputs, maskModels));
  forms.set("text", new EvaluationForm(byId("text-evaluation"), textInputs, textModels));
}
