/** The selected inputs, each with the prediction of the chosen model. */

import { showError } from "./access.js";
import { AT_ONCE, BYTES_AT_ONCE } from "./api.js";
import { byId, h } from "./dom.js";
import { classOf, isRemote } from "./models.js";
import { chance, count } from "./words.js";

function bar(entry, tone) {
  const fill = h("span", { className: "fill" });
  fill.style.width = `${entry.probability * 100}%`;
  return h("li", { className: `bar ${tone}` },
    h("span", { className: "bar-label", title: entry.label }, entry.label),
    h("span", { className: "bar-value" }, chance(entry.probability)),
    h("span", { className: "track" }, fill));
}

/** What a model makes of an input: bars, the refusal, or that the answer is still awaited. */
export function bars(item, model) {
  if (item.error) return h("p", { className: "card-error" }, item.error.message);
  if (!item.prediction) return h("p", { className: "card-wait" }, isRemote(model) ? "not asked: evaluations only" : "computing …");
  const label = classOf(item.label, model);
  const right = label === null ? "plain" : item.prediction.label === label ? "hold" : "fall";
  return h("ol", { className: "bars" }, item.prediction.top_k.map((entry, rank) => bar(entry, rank ? "rest" : right)));
}

/** The label of an input: as it came, or for the user to choose. */
export function labelField(item, model, inputs) {
  const label = classOf(item.label, model);
  if (item.known && label === null) return h("p", { className: "truth" }, `label ${item.label}, which this model does not know`);
  if (item.known) {
    const right = item.prediction && item.prediction.label === label;
    return h("p", { className: "truth" }, `label ${item.label}`,
      item.prediction && h("span", { className: right ? "mark hold" : "mark fall", title: right ? "classified correctly" : "misclassified" }, right ? " ✓" : " ✗"));
  }
  return h("p", { className: "truth" }, h("label", {}, "label ",
    h("select", { className: "truth-select", onchange: (event) => inputs.setLabel([item], event.target.value || null) },
      h("option", { value: "" }, item.label && label === null ? `${item.label}: no such class` : "unknown"), labelOptions(model, label))));
}

const labelOptions = (model, chosen = null) => model.labels.map((label) => h("option", { value: label, selected: label === chosen }, label));

/** Adds inputs to a list, and says in the page how many found no place, and what else is to be said. */
export function addTo(inputs, items, notes = () => []) {
  const left = inputs.add(items);
  const said = [left && `${count(left, inputs.kind)} not added: an evaluation takes at most ${inputs.capacity.toLocaleString("en")}.`, ...notes()].filter(Boolean);
  showError(byId(`${inputs.kind}s-error`), said.length ? new Error(said.join(" ")) : null);
}

/** As many inputs as one request may well hold. */
function batch(items) {
  let bytes = 0;
  const large = items.slice(0, AT_ONCE).findIndex(({ file }, i) => { bytes += file?.size ?? 0; return i && bytes > BYTES_AT_ONCE; });
  return items.slice(0, large < 0 ? AT_ONCE : large);
}

/** Sent alone, every input is number 0: beside its own card that says nothing. */
function withoutPosition(error) {
  const said = error.message.replace(/^(File|Text) 0:? /, "");
  error.message = said[0].toUpperCase() + said.slice(1);
  return error;
}

/**
 * @typedef {object} Parts
 * @property {object} inputs
 * @property {object} models
 * @property {string} prefix   of the ids in the page: PREFIX-list, -tally, -clear, -refused, -more, -error, …
 * @property {number} shownFirst   cards before "Show all"
 * @property {(items: object[], model: string, signal: AbortSignal) => Promise<object[]>} ask
 * @property {(item: object) => boolean} answered   whether all that is wanted of an input is there
 * @property {(item: object, model: object) => HTMLElement[]} face   what a card shows
 */

export class Workspace {
  #run = null;
  /** Cards are kept while nothing about them changes: pictures do not flicker and the focus stays. */
  #cards = new WeakMap();

  /** @param {Parts} parts */
  constructor(parts) {
    Object.assign(this, parts);
    this.shown = this.shownFirst;
    this.inputs.addEventListener("change", () => this.refresh());
    this.models.addEventListener("change", () => {
      this.#part("label-all").elements.label.replaceChildren(...labelOptions(this.models.chosen ?? { labels: [] }));
      this.inputs.forgetPredictions();
    });
    for (const [name, remove] of [["clear", () => this.inputs.clear()], ["refused", () => this.inputs.removeRefused()]]) {
      this.#part(name).addEventListener("click", () => {
        remove();
        byId("main").focus({ preventScroll: true });
      });
    }
    this.#part("label-all").addEventListener("submit", (event) => {
      event.preventDefault();
      this.inputs.setLabel(this.inputs.items.filter(({ known }) => !known), event.target.elements.label.value);
    });
    this.#part("more").addEventListener("click", () => {
      this.shown = Infinity;
      this.draw();
    });
  }

  #part(name) {
    return byId(`${this.prefix}-${name}`);
  }

  /** Draws the cards and asks for what is still missing on them. */
  refresh() {
    this.draw();
    if (this.models.chosen && !isRemote(this.models.chosen)) this.predict();
  }

  #remove(item) {
    const { children } = this.#part("list");
    const place = [...children].indexOf(this.#cards.get(item).node);
    this.inputs.remove(item.key);
    const next = children[Math.min(place, children.length - 1)];
    (next?.querySelector(".remove") ?? byId("main")).focus();
  }

  #card(item) {
    const state = [item.prediction, item.error, item.label, this.models.chosen];
    const kept = this.#cards.get(item);
    if (kept && state.every((value, i) => value === kept.state[i])) return kept.node;
    const node = h("li", { className: "card" }, this.face(item, this.models.chosen),
      h("button", { type: "button", className: "remove", title: "Remove", "aria-label": `Remove ${item.name.slice(0, 80)}`, onclick: () => this.#remove(item) }, "×"));
    if (kept?.node.contains(document.activeElement)) queueMicrotask(() => node.querySelector("select, .remove").focus());
    this.#cards.set(item, { state, node });
    return node;
  }

  #tally() {
    const { items, kind } = this.inputs;
    const labelled = items.filter((item) => item.prediction && classOf(item.label, this.models.chosen) !== null);
    const right = labelled.filter((item) => item.prediction.label === classOf(item.label, this.models.chosen)).length;
    if (!items.length) return `No ${kind}s selected.`;
    if (!labelled.length) return `${count(items.length, kind)}.`;
    return `${count(items.length, kind)}. ${right} of ${labelled.length} with a label classified correctly.`;
  }

  draw() {
    const { items, refused } = this.inputs;
    if (!items.length) this.shown = this.shownFirst;
    const seen = items.filter((item, i) => i < this.shown || item.error);
    const wanted = this.models.chosen ? seen.map((item) => this.#card(item)) : [];
    const list = this.#part("list");
    if (wanted.length !== list.children.length || wanted.some((node, i) => node !== list.children[i])) list.replaceChildren(...wanted);
    this.#part("tally").textContent = this.#tally();
    for (const name of ["clear", "kept"]) this.#part(name).hidden = items.length === 0;
    this.#part("refused").hidden = refused.length === 0;
    this.#part("refused").textContent = `Remove ${refused.length} refused`;
    this.#part("label-all").hidden = items.every(({ known }) => known);
    this.#part("more").hidden = items.length <= seen.length;
    this.#part("more").textContent = `Show all ${items.length}`;
  }

  async #classify(items, signal) {
    try {
      const predictions = await this.ask(items, this.models.reference(this.models.chosen), signal);
      items.forEach((item, i) => { item.prediction = predictions[i]; });
    } catch (error) {
      if (!error.isRefusal || error.code === "not_explainable") throw error; // nothing is wrong with the inputs
      if (items.length === 1) items[0].error = withoutPosition(error);
      else for (const item of items) await this.#classify([item], signal); // one bad input must not cost the others their answer
    }
  }

  /** Asks for every answer that is missing; a newer call replaces an older one. */
  async predict() {
    this.#run?.abort();
    const { signal } = this.#run = new AbortController();
    showError(this.#part("error"), null);
    try {
      for (;;) {
        const next = batch(this.inputs.items.filter((item) => !item.error && !this.answered(item)));
        if (!next.length) return;
        await this.#classify(next, signal);
        if (signal.aborted) return;
        this.draw();
        this.inputs.dispatchEvent(new Event("predicted"));
      }
    } catch (error) {
      if (signal.aborted) return;
      if (this.onTrouble?.(error)) return;
      showError(this.#part("error"), error, () => this.predict());
    }
  }
}
