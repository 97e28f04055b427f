/** The fields of a trial: presets, attacks and what they may spend; read back as the attacks of a spec. */

import { ATTACKS, BUDGETS, PRESETS } from "./attacks.js";
import { h } from "./dom.js";
import { epsValue } from "./words.js";

function optionField(attack, { key, label, value, min, max }) {
  return h("label", { className: "inline" }, label, h("input", { type: "number", name: `${attack}-${key}`, value, min, max, inputMode: "numeric" }));
}

const onlyField = ({ name, only }) => h("label", { className: "inline" }, "only at", h("input", { type: "text", className: "short", name: `${name}-only`, placeholder: only, autocomplete: "off", spellcheck: false }));

function attackRow(attack) {
  return h("div", { className: "attack" },
    h("label", { className: "check" },
      h("input", { type: "checkbox", name: "attack", value: attack.name }),
      h("span", {}, h("b", {}, attack.title), h("small", {}, attack.what))),
    h("span", { className: "row" }, attack.options.map((option) => optionField(attack.name, option)), attack.only && onlyField(attack)));
}

const chip = (name, value) => h("label", { className: "chip" }, h("input", { type: "checkbox", name, value }), h("span", {}, value));

function budgetField(key) {
  const { title, hint, chips, other } = BUDGETS[key];
  return h("fieldset", { className: "budget", "data-budget": key }, h("legend", {}, title),
    h("p", { className: "hint" }, hint),
    h("div", { className: "row" }, chips.map((value) => chip(key, value)),
      other && h("label", { className: "inline" }, "others", h("input", { type: "text", name: `other-${key}`, placeholder: other, autocomplete: "off", spellcheck: false }))));
}

const presetCard = ({ key, title, what }, i) => h("label", { className: "preset" },
  h("input", { type: "radio", name: "preset", value: key, checked: i === 0 }),
  h("span", { className: "preset-title" }, title),
  h("span", { className: "preset-what" }, what));

const ticked = (form, name) => [...form.querySelectorAll(`[name="${name}"]:checked`)].map((box) => box.value);
const typed = (text) => text.split(/[\s,;]+/).filter(Boolean);

/** The fields for one kind of input, "image" or "text", in a form of their own. */
export class TrialFields {
  constructor(form, kind) {
    Object.assign(this, { form, kind, attacks: ATTACKS[kind] });
    this.budgets = [...new Set(this.attacks.map(({ budget }) => budget))];
    this.presets = h("fieldset", { className: "presets-field" }, h("legend", {}, "How hard shall it be tried?"),
      h("div", { className: "presets" }, PRESETS[kind].map(presetCard)));
    this.details = h("details", { className: "adjust" }, h("summary", {}, "Choose attacks and strength yourself"),
      h("div", { className: "fields" },
        h("fieldset", {}, h("legend", {}, "Attacks"), this.attacks.map(attackRow)),
        this.budgets.map(budgetField)));
  }

  /** Follows a change of any field: a preset fills the others, and changing them leaves the preset. */
  changed(field) {
    if (field.name === "preset") this.apply(field.value);
    else if (this.details.contains(field)) for (const radio of this.form.querySelectorAll("[name=preset]")) radio.checked = false;
    this.#showBudgets();
  }

  /** Fills attacks and budgets from a preset. */
  apply(key) {
    const preset = PRESETS[this.kind].find((one) => one.key === key);
    for (const box of this.form.querySelectorAll("[name=attack]")) box.checked = box.value in preset.attacks;
    for (const field of this.form.querySelectorAll("[name$='-only']")) field.value = "";
    for (const budget of this.budgets) this.#fillBudget(budget, preset[budget] ?? []);
    for (const [attack, options] of Object.entries(preset.attacks)) {
      for (const [name, value] of Object.entries(options)) this.form.elements[`${attack}-${name}`].value = value;
    }
    this.#showBudgets();
  }

  #fillBudget(budget, values) {
    for (const box of this.form.querySelectorAll(`[name="${budget}"]`)) box.checked = values.includes(box.value);
    const other = this.form.elements[`other-${budget}`];
    if (other) other.value = values.filter((value) => !BUDGETS[budget].chips.includes(value)).join(" ");
  }

  /** Only what a chosen attack may spend is asked for. */
  #showBudgets() {
    const chosen = this.chosen().map(({ budget }) => budget);
    for (const field of this.details.querySelectorAll(".budget")) field.hidden = !chosen.includes(field.dataset.budget);
  }

  /** The attacks that are ticked. */
  chosen() {
    const names = ticked(this.form, "attack");
    return this.attacks.filter(({ name }) => names.includes(name));
  }

  /** Whether anything chosen aims at the model, so that a worst case exists. */
  aimed() {
    return this.chosen().some(({ budget }) => !["severities", "sigma"].includes(budget));
  }

  #values({ name, budget, only }) {
    const own = only ? typed(this.form.elements[`${name}-only`].value) : [];
    if (own.length) return own;
    const all = new Set([...ticked(this.form, budget), ...typed(this.form.elements[`other-${budget}`]?.value ?? "")]);
    return [...all].sort((a, b) => epsValue(a) - epsValue(b));
  }

  /** The attacks as a spec names them. */
  read() {
    return this.chosen().map((attack) => {
      const { name, budget, options } = attack;
      const values = this.#values(attack);
      const told = options.map(({ key }) => [key, Number(this.form.elements[`${name}-${key}`].value)]);
      return { name, ...(budget === "eps" ? { norm: "Linf" } : {}), [budget]: BUDGETS[budget].number ? values.map(Number) : values, ...Object.fromEntries(told) };
    });
  }

  /** What is missing, in words; null where nothing is. */
  missing() {
    const chosen = this.chosen();
    if (!chosen.length) return "Choose at least one attack.";
    const empty = chosen.find((attack) => !this.#values(attack).length);
    return empty ? `Choose at least one value for “${BUDGETS[empty.budget].title}”.` : null;
  }
}
