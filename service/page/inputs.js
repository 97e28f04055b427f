/** The inputs to classify and evaluate, in order, and what is known about each of them. */

import { ApiError, fetchBlob, sampleUrl } from "./api.js";

/**
 * @typedef {object} Item
 * @property {string} key      the same input is listed once
 * @property {string} name     file name as given, or the text itself; may be hostile, shown as text only
 * @property {string | null} url      where the picture is, of an image
 * @property {string | null} label   of the true class, where it is known: as given, see `classOf`
 * @property {boolean} known   the label came with the input and is not for the user to choose
 * @property {string} path   of a file in what was dropped
 * @property {Blob} file   the bytes of a file
 * @property {{file: string, label: string}} sample   the entry of a sample
 * @property {object | null} prediction
 * @property {Error | null} error
 */

/** Says "change" when inputs or labels have changed, and "predicted" when predictions have come in. */
class InputList extends EventTarget {
  /** @type {Item[]} */
  items = [];

  constructor(kind) {
    super();
    Object.assign(this, { kind, capacity: Infinity, mostBytes: Infinity, place: 0 });
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
    const room = Math.max(0, this.capacity - this.items.length);
    for (const item of fresh.slice(0, room)) {
      this.place = Math.max(this.place, item.place ?? this.place + 1);
      this.items.push({ url: null, label: null, known: false, prediction: null, error: null, place: this.place, ...item });
    }
    this.#changed();
    return Math.max(0, fresh.length - room);
  }

  #release(item) {
    if (item.url?.startsWith("blob:")) URL.revokeObjectURL(item.url);
  }

  #drop(items) {
    items.forEach(this.#release);
    this.items = this.items.filter((item) => !items.includes(item));
    this.#changed();
  }

  remove(key) {
    this.#drop(this.items.filter((item) => item.key === key));
  }

  clear() {
    this.#drop(this.items);
  }

  /** Those that the service does not take. */
  get refused() {
    return this.items.filter(({ error }) => error?.isRefusal);
  }

  removeRefused() {
    this.#drop(this.refused);
  }

  /** Forgets every prediction: another model has been chosen. */
  forgetPredictions() {
    for (const item of this.items) Object.assign(item, { prediction: null, error: null });
    this.#changed();
  }

  /** Gives inputs a label; null takes it away. */
  setLabel(items, label) {
    for (const item of items) item.label = label;
    this.#changed();
  }

  /** Gives labels by the name of a file, with or without its folders; returns how many found an image. */
  setLabels(labels) {
    const found = new Set();
    for (const item of this.items.filter(({ path }) => path)) {
      const parts = item.path.split("/");
      const name = parts.map((_, i) => parts.slice(i).join("/")).find((one) => labels.has(one));
      if (name === undefined) continue;
      item.label = labels.get(name) || null;
      found.add(name);
    }
    this.#changed();
    return found.size;
  }
}

/** The inputs of the workspaces; of images with masks the first one has the zip of all. */
export const imageInputs = new InputList("image");
export const textInputs = new InputList("text");
export const maskInputs = new InputList("mask");

/** Files of images from the user's disk; the folder of each names its class. */
export const fileItems = (found) => found.map(({ path, file }) => {
  const [name, folder = null] = path.split("/").reverse();
  const key = `file:${path}:${file.size}:${file.lastModified ?? ""}`;
  return { key, name: folder === null ? name : `${folder}/${name}`, label: folder, path, file, url: URL.createObjectURL(file) };
});

/** Entries of the sample index. */
export const sampleItems = (samples) => samples.map((sample) => ({
  key: `sample:${sample.file}`, name: sample.file.split("/").slice(-2).join("-"), url: sampleUrl(sample.file), label: sample.label, known: true, sample,
}));

/** An input as it was kept. */
export const revive = ({ file, ...record }) => {
  if (record.sample) return { ...record, url: sampleUrl(record.sample.file) };
  return file ? { ...record, file, url: URL.createObjectURL(file) } : record;
};

/** Texts, with the labels that came with them if any. */
export const textItems = (texts) => texts.map(({ text, label = null }) => ({ key: `text:${text}`, name: text, label, known: label !== null }));

/** Bytes are read here: a file that has gone since would look like a service that cannot be reached. */
async function bytes({ name, file }) {
  try {
    return new Blob([await file.arrayBuffer()]);
  } catch {
    throw new ApiError(422, { code: "unreadable", message: `“${name}” cannot be read; it may have been moved or changed. Remove it and choose it again.` });
  }
}

/** Name and bytes of images, ready for an upload. */
export const uploads = (items) => Promise.all(items.map(async (item) => ({
  name: item.name,
  blob: item.file ? await bytes(item) : await (item.fetched ??= fetchBlob(item.url)),
})));
