/** The inputs to classify and evaluate, in order, and what is known about each of them. */

import { fetchBlob, sampleUrl } from "./api.js";

/**
 * @typedef {object} Item
 * @property {string} key      the same input is listed once
 * @property {string} name     file name as given, or the text itself; may be hostile, shown as text only
 * @property {string | null} url      where the picture is, of an image
 * @property {string | null} label   name of the true class, where it is known
 * @property {boolean} known   the label came with the input and is not for the user to choose
 * @property {() => Promise<Blob>} blob   the bytes, of an image
 * @property {object | null} prediction
 * @property {Error | null} error
 */

/** Says "change" when inputs or labels have changed, and "predicted" when predictions have come in. */
class InputList extends EventTarget {
  /** @type {Item[]} */
  items = [];

  constructor(kind, capacity) {
    super();
    Object.assign(this, { kind, capacity });
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  has(key) {
    return this.items.some((item) => item.key === key);
  }

  /** Adds inputs that are not there yet; returns how many exceed the capacity. */
  add(items) {
    const fresh = [...new Map(items.map((item) => [item.key, item])).values()].filter(({ key }) => !this.has(key));
    const room = this.capacity - this.items.length;
    const added = fresh.slice(0, room).map((item) => ({ url: null, label: null, known: false, prediction: null, error: null, ...item }));
    this.items = [...this.items, ...added];
    this.#changed();
    return Math.max(0, fresh.length - room);
  }

  #release(item) {
    if (item.url?.startsWith("blob:")) URL.revokeObjectURL(item.url);
  }

  remove(key) {
    this.items.filter((item) => item.key === key).forEach(this.#release);
    this.items = this.items.filter((item) => item.key !== key);
    this.#changed();
  }

  clear() {
    this.items.forEach(this.#release);
    this.items = [];
    this.#changed();
  }

  /** Forgets every prediction: another model has been chosen. */
  forgetPredictions() {
    for (const item of this.items) Object.assign(item, { prediction: null, error: null });
    this.#changed();
  }

  /** Says that predictions or refusals have come in. */
  predicted() {
    this.dispatchEvent(new Event("predicted"));
  }

  setLabel(item, label) {
    item.label = label;
    this.#changed();
  }
}

/** The inputs of the two workspaces. */
export const imageInputs = new InputList("image", 300);
export const textInputs = new InputList("text", 300);

/** Files of images from the user's disk. */
export const fileItems = (files) => [...files].map((file) => ({
  key: `file:${file.name}:${file.size}:${file.lastModified}`,
  name: file.name || "pasted.png",
  url: URL.createObjectURL(file),
  blob: async () => file,
}));

/** Entries of the sample index. */
export const sampleItems = (samples) => samples.map((sample) => {
  let bytes = null;
  return {
    key: `sample:${sample.file}`,
    name: sample.file.split("/").slice(-2).join("-"),
    url: sampleUrl(sample.file),
    label: sample.label,
    known: true,
    blob: () => (bytes ??= fetchBlob(sampleUrl(sample.file))),
  };
});

/** Texts, with the labels that came with them if any. */
export const textItems = (texts) => texts.map(({ text, label = null }) => ({ key: `text:${text}`, name: text, label, known: label !== null }));

/** Name and bytes of images, ready for an upload. */
export const uploads = (items) => Promise.all(items.map(async (item) => ({ name: item.name, blob: await item.blob() })));
