/** The pictures: clean, perturbation and adversarial side by side, with the answers before and after. */

import { pictureUrl } from "./api.js";
import { servedModels } from "./classify.js";
import { h } from "./dom.js";
import { attackName, chance, pointOf } from "./words.js";

const SHOWN_AT_FIRST = 8;
const SHOWN_MORE = 48;
const OUTCOMES = { fallen: "misled", held: "held", lost: "wrong from the start" };

/** What an index means. The served model's own names, where it is still served: two models need not share their classes. */
export function labelNames(report, model) {
  const names = servedModels().find(({ name }) => name === model)?.labels ?? report.data.labels;
  return (index) => names[index] ?? `class ${index}`;
}

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

/** One picture with what it is and what the model says to it; `tone` is hold, fall or neither. */
export function frame(src, alt, title, answer, tone = "") {
  const image = h("img", { src, alt, loading: "lazy", width: 112, height: 112 });
  image.addEventListener("load", () => image.classList.toggle("pixelated", image.naturalWidth <= 64));
  return h("figure", { className: "frame" }, image,
    h("figcaption", {}, h("span", { className: "frame-title" }, title), h("span", { className: `answer ${tone}`, title: answer }, answer)));
}

function stamps({ attack, outcome: kind }) {
  if (kind !== "fallen") return null;
  const stamp = (holds, text) => h("span", { className: `stamp ${holds ? "" : "not"}` }, `${holds ? "✓" : "✗"} ${text}`);
  return h("span", { className: "stamps" }, stamp(!attack.confirmed, "confirmed as served"), stamp(!attack.confirmed_8bit, "in 8 bit"));
}

function rivals({ sample }, choice) {
  return sample.models.filter(({ name }) => name !== choice.model).map((model) => {
    const attack = model.attacks.find((one) => one.name === choice.attack && pointOf(one) === choice.eps);
    return attack ? h("span", { className: "rival" }, `${model.name}: ${OUTCOMES[outcome(model, attack)]}`) : null;
  });
}

function exhibit(evaluation, trial, choice, nameOf) {
  const { sample, model, attack } = trial;
  const url = (kind) => pictureUrl(evaluation.id, sample.index, kind, choice);
  const before = nameOf(model.clean.index);
  const after = nameOf(attack.adversarial_index);
  const sure = model.clean.probability === null ? "" : ` ${chance(model.clean.probability)}`;
  return h("li", { className: `exhibit ${trial.outcome}` },
    h("div", { className: "frames" },
      frame(url("clean"), `image ${sample.index}, unchanged`, "clean", before + sure, model.clean.correct ? "hold" : "fall"),
      frame(url("perturbation"), `what the attack changed in image ${sample.index}, amplified`, "change, amplified", `within ${choice.eps}`),
      frame(url("adversarial"), `image ${sample.index} after the attack`, "adversarial", after, trial.outcome === "held" ? "hold" : "fall")),
    h("p", { className: "exhibit-line" },
      h("b", {}, `#${sample.index}`),
      sample.label === null ? null : h("span", {}, `label ${nameOf(sample.label)}`),
      h("span", { className: `outcome ${trial.outcome}` }, OUTCOMES[trial.outcome]),
      stamps(trial), rivals(trial, choice)));
}

function select(label, options, value, onChoice) {
  const field = h("select", { onchange: () => onChoice(field.value) }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return h("label", { className: "inline" }, label, field);
}

class Evidence {
  constructor(evaluation, report) {
    Object.assign(this, { evaluation, report, only: null, shown: SHOWN_AT_FIRST });
    this.names = report.samples[0].models.map(({ name }) => name);
    const runs = report.samples[0].models[0].attacks;
    const usual = runs.filter(({ norm }) => norm === runs[0].norm);
    const strongest = usual.sort((a, b) => b.eps_value - a.eps_value || b.name.localeCompare(a.name))[0];
    this.runs = runs;
    this.choice = { model: this.names[0], attack: strongest.name, eps: pointOf(strongest) };
    this.controls = h("div", { className: "row controls" });
    this.grid = h("ul", { className: "exhibits" });
    this.more = h("button", { type: "button", className: "quiet", onclick: () => this.draw({ shown: this.shown + SHOWN_MORE }) });
    this.draw();
  }

  #filters(all) {
    const button = (key, text, number) => h("button", { type: "button", className: "chip-button", "aria-pressed": String(this.only === key), disabled: number === 0, onclick: () => this.draw({ only: key, shown: SHOWN_AT_FIRST }) }, `${text} ${number}`);
    return h("div", { className: "segmented", role: "group", "aria-label": "Which images" },
      button(null, "all", all.length),
      Object.entries(OUTCOMES).map(([key, text]) => button(key, text, all.filter((trial) => trial.outcome === key).length)));
  }

  #selectors() {
    const run = `${this.choice.attack} ${this.choice.eps}`;
    const pick = (text) => {
      const [attack, eps] = text.split(" ");
      this.draw({ choice: { ...this.choice, attack, eps }, shown: SHOWN_AT_FIRST });
    };
    return [
      this.names.length > 1 ? select("model", this.names.map((name) => [name, name]), this.choice.model, (model) => this.draw({ choice: { ...this.choice, model }, shown: SHOWN_AT_FIRST })) : null,
      select("attack", this.runs.map((one) => [`${one.name} ${pointOf(one)}`, `${attackName(one.name)} ${pointOf(one)}`]), run, pick),
    ].filter(Boolean);
  }

  draw(change = {}) {
    Object.assign(this, change);
    const all = trials(this.report, this.choice);
    const some = this.only ? all.filter((trial) => trial.outcome === this.only) : all;
    const focused = [...this.controls.querySelectorAll("button, select")].indexOf(document.activeElement);
    this.controls.replaceChildren(...this.#selectors(), this.#filters(all));
    this.controls.querySelectorAll("button, select")[focused]?.focus();
    const nameOf = labelNames(this.report, this.choice.model);
    const order = { fallen: 0, held: 1, lost: 2 };
    const sorted = [...some].sort((a, b) => order[a.outcome] - order[b.outcome]);
    this.grid.replaceChildren(...sorted.slice(0, this.shown).map((trial) => exhibit(this.evaluation, trial, this.choice, nameOf)));
    this.more.hidden = some.length <= this.shown;
    this.more.textContent = `Show ${Math.min(SHOWN_MORE, some.length - this.shown)} more`;
  }
}

/** The section with the pictures of a finished evaluation; null where no attack made any. */
export function evidence(evaluation, report) {
  if (report.data.kind !== "image" || !report.samples[0].models[0].attacks.length) return null;
  const { controls, grid, more } = new Evidence(evaluation, report);
  return h("section", { "aria-labelledby": "evidence-title" }, h("h2", { id: "evidence-title" }, "Evidence"), controls, grid, more);
}
