/** The samples of a finished evaluation, one attack at a time: chosen by model, attack and outcome. */

import { h } from "./dom.js";
import { attackName, chance, count, pointOf, spokenPoint } from "./words.js";

const SHOWN_AT_FIRST = 8;
const SHOWN_MORE = 24;
const OUTCOMES = { fallen: "misled", held: "held", lost: "wrong from the start" };
const ORDER = { fallen: 0, held: 1, lost: 2 };

function outcome(model, attack) {
  if (!model.clean.correct) return "lost";
  return attack.robust ? "held" : "fallen";
}

/** Every sample as it fared under one attack on one model. */
function trials(report, choice) {
  return report.samples.flatMap((sample) => {
    const model = sample.models.find(({ name }) => name === choice.model);
    const attack = model?.attacks.find((one) => one.name === choice.attack && pointOf(one) === choice.eps);
    return attack ? [{ sample, model, attack, outcome: outcome(model, attack) }] : [];
  });
}

function stamps({ attack, outcome: kind }) {
  if (kind !== "fallen") return null;
  const stamp = (holds, text) => h("span", { className: `stamp ${holds ? "" : "not"}` }, `${holds ? "✓" : "✗"} ${text}`);
  return h("span", { className: "stamps" }, stamp(!attack.confirmed, "confirmed as served"),
    attack.confirmed_8bit === null ? null : stamp(!attack.confirmed_8bit, "in 8 bit"));
}

function rivals({ sample }, choice) {
  return sample.models.filter(({ name }) => name !== choice.model).map((model) => {
    const attack = model.attacks.find((one) => one.name === choice.attack && pointOf(one) === choice.eps);
    return attack ? h("span", { className: "rival" }, `${model.name}: ${OUTCOMES[outcome(model, attack)]}`) : null;
  });
}

/** The answers before and after. */
export function answersLine({ model, attack, outcome: kind }, nameOf) {
  const sure = model.clean.probability === null ? "" : ` ${chance(model.clean.probability)}`;
  return h("p", { className: "answers" },
    h("span", { className: `answer ${model.clean.correct ? "hold" : "fall"}` }, nameOf(model.clean.index) + sure), " → ",
    h("span", { className: `answer ${kind === "held" ? "hold" : "fall"}` }, nameOf(attack.adversarial_index)));
}

/** What stands below every sample: its number, its label, and what became of it. */
export function exhibitLine(trial, choice, nameOf) {
  const { sample } = trial;
  return h("p", { className: "exhibit-line" },
    h("b", { title: sample.name }, `#${sample.index}`),
    sample.label === null ? null : h("span", {}, `label ${nameOf(sample.label)}`),
    h("span", { className: `outcome ${trial.outcome}` }, OUTCOMES[trial.outcome]),
    stamps(trial), rivals(trial, choice));
}

function select(label, options, value, onChoice) {
  const field = h("select", { onchange: () => onChoice(field.value) }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return h("label", { className: "inline" }, label, field);
}

/** Draws controls and samples; a subclass says how one sample looks, by `exhibit(trial)`. */
export class Evidence {
  constructor(evaluation, report, signal) {
    Object.assign(this, { evaluation, report, signal, only: null, shown: SHOWN_AT_FIRST });
    this.names = report.samples[0].models.map(({ name }) => name);
    this.runs = report.samples[0].models[0].attacks;
    const usual = this.runs.filter(({ norm }) => norm === this.runs[0].norm);
    const [strongest] = usual.sort((a, b) => b.eps_value - a.eps_value || b.name.localeCompare(a.name));
    this.choice = { model: this.names[0], attack: strongest.name, eps: pointOf(strongest) };
    this.controls = h("div", { className: "row controls" });
    this.grid = h("ul", { className: "exhibits" });
    this.more = h("button", { type: "button", className: "quiet", onclick: () => this.draw({ shown: this.shown + SHOWN_MORE }) });
  }

  #filters(all) {
    const button = (key, text, number) => h("button", { type: "button", className: "chip-button", "aria-pressed": String(this.only === key), disabled: number === 0, onclick: () => this.draw({ only: key, shown: SHOWN_AT_FIRST }) }, `${text} ${number}`);
    return h("div", { className: "segmented", role: "group", "aria-label": "Which samples" },
      button(null, "all", all.length),
      Object.entries(OUTCOMES).map(([key, text]) => button(key, text, all.filter((trial) => trial.outcome === key).length)));
  }

  #selectors() {
    const run = `${this.choice.attack} ${this.choice.eps}`;
    const pick = (text) => {
      const [attack, eps] = text.split(" ");
      this.draw({ choice: { ...this.choice, attack, eps }, shown: SHOWN_AT_FIRST });
    };
    const models = select("model", this.names.map((name) => [name, name]), this.choice.model, (model) => this.draw({ choice: { ...this.choice, model }, shown: SHOWN_AT_FIRST }));
    const attacks = select("attack", this.runs.map((one) => [`${one.name} ${pointOf(one)}`, `${attackName(one.name)} ${spokenPoint(one)}`]), run, pick);
    return this.names.length > 1 ? [models, attacks] : [attacks];
  }

  /** Further controls; none unless a subclass has some. */
  extras() {
    return [];
  }

  draw(change = {}) {
    Object.assign(this, change);
    const all = trials(this.report, this.choice);
    const some = this.only ? all.filter((trial) => trial.outcome === this.only) : all;
    const fields = () => [...this.controls.querySelectorAll("button, select")];
    const focused = fields().indexOf(document.activeElement);
    this.controls.replaceChildren(...this.#selectors(), this.#filters(all), ...this.extras());
    fields()[focused]?.focus();
    const sorted = [...some].sort((a, b) => ORDER[a.outcome] - ORDER[b.outcome]);
    this.grid.replaceChildren(...sorted.slice(0, this.shown).map((trial) => this.exhibit(trial)));
    this.more.hidden = some.length <= this.shown;
    this.more.textContent = `Show ${Math.min(SHOWN_MORE, some.length - this.shown)} more of ${count(some.length, "sample")}`;
  }

  /** The section with the samples. */
  section(title, hint) {
    this.draw();
    return h("section", { "aria-labelledby": "evidence-title" }, h("h2", { id: "evidence-title" }, title), h("p", { className: "hint controls-hint" }, hint), this.controls, this.grid, this.more);
  }
}

/** Whether any attack left samples to show. */
export const hasEvidence = (report) => report.samples[0].models[0].attacks.length > 0;
