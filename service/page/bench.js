/** A bench: the inputs in a tray, each with what the chosen model makes of it. */

import { truth } from "./bars.js";
import { byId, h } from "./dom.js";
import { showError } from "./problem.js";
import { count } from "./words.js";

/** Sent alone, every input is number 0: beside its own card that says nothing. */
function withoutPosition(error) {
  const said = error.message.replace(/^(File|Text) 0:? /, "");
  error.message = said[0].toUpperCase() + said.slice(1);
  return error;
}

/**
 * @typedef {object} Parts
 * @property {object} tray
 * @property {object} models
 * @property {string} prefix   of the ids in the page: PREFIX-tray, -tally, -clear, -more, -error
 * @property {number} atOnce   inputs in one request
 * @property {number} shownFirst   cards before "Show all"
 * @property {(items: object[], model: string, signal: AbortSignal) => Promise<object[]>} ask
 * @property {(item: object) => boolean} answered   whether all that is wanted of an input is there
 * @property {(item: object, model: object) => HTMLElement[]} face   what a card shows
 */

export class Bench {
  #run = null;
  /** Cards are kept while nothing about them changes: pictures do not flicker and the focus stays. */
  #cards = new WeakMap();

  /** @param {Parts} parts */
  constructor(parts) {
    Object.assign(this, parts);
    this.shown = this.shownFirst;
    this.tray.addEventListener("change", () => this.refresh());
    this.models.addEventListener("change", () => this.tray.forgetPredictions());
    this.#part("clear").addEventListener("click", () => {
      this.tray.clear();
      byId("main").focus({ preventScroll: true });
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
    if (this.models.chosen) this.predict();
  }

  #remove(item) {
    const place = this.tray.items.indexOf(item);
    this.tray.remove(item.key);
    const next = this.#part("tray").children[Math.min(place, this.tray.items.length - 1)];
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
    const { items, kind } = this.tray;
    const labelled = items.filter((item) => item.prediction && truth(item, this.models.chosen) !== null);
    const right = labelled.filter((item) => item.prediction.label === item.label).length;
    if (!items.length) return "Nothing on the bench yet.";
    if (!labelled.length) return `${count(items.length, kind)}.`;
    return `${count(items.length, kind)}. ${right} of ${labelled.length} with a label named correctly.`;
  }

  draw() {
    const { items } = this.tray;
    if (!items.length) this.shown = this.shownFirst;
    const wanted = this.models.chosen ? items.slice(0, this.shown).map((item) => this.#card(item)) : [];
    const list = this.#part("tray");
    if (wanted.length !== list.children.length || wanted.some((node, i) => node !== list.children[i])) list.replaceChildren(...wanted);
    this.#part("tally").textContent = this.#tally();
    this.#part("clear").hidden = items.length === 0;
    this.#part("more").hidden = items.length <= this.shown;
    this.#part("more").textContent = `Show all ${items.length}`;
  }

  async #judge(items, signal) {
    try {
      const predictions = await this.ask(items, this.models.reference(this.models.chosen), signal);
      items.forEach((item, i) => { item.prediction = predictions[i]; });
    } catch (error) {
      if (!error.isRefusal || error.code === "not_explainable") throw error; // nothing is wrong with the inputs
      if (items.length === 1) items[0].error = withoutPosition(error);
      else for (const item of items) await this.#judge([item], signal); // one bad input must not cost the others their answer
    }
  }

  /** Asks for every answer that is missing; a newer call replaces an older one. */
  async predict() {
    this.#run?.abort();
    const { signal } = this.#run = new AbortController();
    showError(this.#part("error"), null);
    try {
      for (;;) {
        const next = this.tray.items.filter((item) => !item.error && !this.answered(item)).slice(0, this.atOnce);
        if (!next.length) return;
        await this.#judge(next, signal);
        if (signal.aborted) return;
        this.draw();
        this.tray.judged();
      }
    } catch (error) {
      if (signal.aborted) return;
      if (this.onTrouble?.(error)) return;
      showError(this.#part("error"), error, () => this.predict());
    }
  }
}
