/** The choice of a model among those served for one task. */

import { fetchModels, IMAGES, LANGUAGE, MASKS, TEXTS } from "./api.js";
import { h } from "./dom.js";
import { percent } from "./words.js";

const TITLES = { [IMAGES]: "image model", [TEXTS]: "text model", [LANGUAGE]: "language model", [MASKS]: "segmenter" };

function accuracyText({ test_accuracy: test, valid_accuracy: valid, test_mean_iou: iou, test_perplexity: perplexity }) {
  if (perplexity !== undefined) return `perplexity ${perplexity.toFixed(2)} on its test set`;
  if (iou !== undefined) return `mIoU ${percent(iou, Infinity)} on its test set`;
  if (test !== undefined) return `${percent(test, Infinity)} on its test set`;
  return valid === undefined ? "accuracy not stated" : `${percent(valid, Infinity)} on held-out inputs`;
}

function inputText({ input, preprocessing, task }) {
  if (task === TEXTS || task === LANGUAGE) return preprocessing.max_len ? `up to ${preprocessing.max_len} tokens` : "texts";
  const [, channels, height, width] = input.shape;
  return `${height} × ${width} × ${channels}`;
}

export const isRemote = (model) => model?.kind === "remote";

/** What kind a model is, and what attacks see of it. */
function kindText({ kind, architecture, version, runtime, precision, gradients, access }) {
  const kinds = { imported: "imported", remote: "remote endpoint" };
  const seen = gradients ? "gradients" : access.includes("scores") ? "scores, no gradients" : "the class alone";
  return [kinds[kind] ?? architecture, version && `version ${version}`, kind !== "remote" && `${runtime}, ${precision}`, seen].filter(Boolean).join(" · ");
}

/** Says "change" when another model is chosen, or when the models were read again. */
class Models extends EventTarget {
  constructor(task) {
    super();
    Object.assign(this, { task, all: [], chosen: null });
  }

  /** What a request calls a model: its version only where several are served. */
  reference(model) {
    return this.all.filter(({ name }) => name === model.name).length > 1 ? `${model.name}:${model.version}` : model.name;
  }

  /** The served model of this name and version, if it is still the one with that digest. */
  find(digest) {
    return this.all.find((model) => model.digest === digest) ?? null;
  }

  /** What a second model may be compared as: it must share the labels of the chosen one. */
  rivals() {
    const same = ({ labels }) => labels.length === this.chosen.labels.length && labels.every((label, i) => label === this.chosen.labels[i]);
    if (!this.chosen || isRemote(this.chosen)) return [];
    return this.all.filter((model) => model !== this.chosen && !isRemote(model) && same(model)).map((model) => this.reference(model));
  }

  /** Chooses a served model, as its tile does. */
  choose(model) {
    [...document.getElementsByName(this.task)].find(({ value }) => value === this.reference(model)).click();
  }

  #choose(model) {
    this.chosen = model;
    this.dispatchEvent(new Event("change"));
  }

  #tile(model) {
    return h("label", { className: "model" },
      h("input", { type: "radio", name: this.task, value: this.reference(model), checked: model === this.chosen, onchange: () => this.#choose(model) }),
      h("span", { className: "model-name" }, model.name),
      h("span", { className: "model-figure" }, isRemote(model) ? "evaluated only" : accuracyText(model.metrics)),
      h("span", { className: "model-detail" },
        `${kindText(model)} · ${inputText(model)} · `,
        h("code", { title: model.digest }, model.digest.slice(0, 8))));
  }

  /** Reads the served models and draws a tile for each into `place`. */
  async load(place) {
    const before = this.chosen && this.reference(this.chosen);
    try {
      this.all = await fetchModels(this.task);
    } catch (error) {
      place.replaceChildren(h("p", { className: "hint" }, "The served models could not be read."));
      throw error;
    }
    const kept = this.all.find((model) => this.reference(model) === before);
    const chosen = kept ?? this.all.find((model) => model.default) ?? this.all[0] ?? null;
    this.chosen = chosen;
    const none = h("p", { className: "notice" }, `No ${TITLES[this.task]} is served.`);
    place.replaceChildren(...(this.all.length ? this.all.map((model) => this.#tile(model)) : [none]));
    this.#choose(chosen);
  }
}

const normal = (name) => name.trim().toLowerCase().replace(/[\s/]+/g, "-");
const classes = new WeakMap();

/** The class that a label names, as the service reads it: by name (case, blanks and "/" do not count) or index; null where the model has none. */
export function classOf(label, model) {
  if (label === null || !model) return null;
  if (!classes.has(model)) classes.set(model, new Map(model.labels.map((name) => [normal(name), name]).reverse()));
  return classes.get(model).get(normal(label)) ?? (/^\d{1,9}$/.test(label) ? model.labels[Number(label)] ?? null : null);
}

/** Those that name the class of an image or a text, and those that name the classes of pixels. */
export const imageModels = new Models(IMAGES);
export const textModels = new Models(TEXTS);
export const maskModels = new Models(MASKS);

/** Those that say how likely a text is. */
export const languageModels = new Models(LANGUAGE);
