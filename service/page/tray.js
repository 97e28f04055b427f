/** The images on the bench, in order, and what is known about each of them. */

import { fetchBlob, sampleUrl } from "./api.js";

const CAPACITY = 300;

/**
 * @typedef {object} Item
 * @property {string} key      the same image is on the bench once
 * @property {string} name     file name as given; may be hostile, shown as text only
 * @property {string} url      picture for <img>
 * @property {string | null} label   name of the true class, where it is known
 * @property {boolean} known   the label came with the image and is not for the user to choose
 * @property {() => Promise<Blob>} blob
 * @property {object | null} prediction
 * @property {Error | null} error
 */

class Tray extends EventTarget {
  /** @type {Item[]} */
  items = [];

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  #add(items) {
    const present = new Set(this.items.map((item) => item.key));
    const fresh = items.filter((item) => !present.has(item.key));
    const room = CAPACITY - this.items.length;
    this.items = [...this.items, ...fresh.slice(0, room)];
    this.#changed();
    return Math.max(0, fresh.length - room);
  }

  has(key) {
    return this.items.some((item) => item.key === key);
  }

  /** Adds files from the user's disk; answers how many found no room. */
  addFiles(files) {
    return this.#add([...files].map((file) => ({
      key: `file:${file.name}:${file.size}:${file.lastModified}`,
      name: file.name || "pasted.png",
      url: URL.createObjectURL(file),
      label: null,
      known: false,
      blob: async () => file,
      prediction: null,
      error: null,
    })));
  }

  /** Adds entries of the sample index; answers how many found no room. */
  addSamples(samples) {
    return this.#add(samples.map((sample) => {
      let bytes = null;
      return {
        key: `sample:${sample.file}`,
        name: sample.file.split("/").slice(-2).join("-"),
        url: sampleUrl(sample.file),
        label: sample.label,
        known: true,
        blob: () => (bytes ??= fetchBlob(sampleUrl(sample.file))),
        prediction: null,
        error: null,
      };
    }));
  }

  remove(key) {
    for (const item of this.items) {
      if (item.key === key && item.url.startsWith("blob:")) URL.revokeObjectURL(item.url);
    }
    this.items = this.items.filter((item) => item.key !== key);
    this.#changed();
  }

  clear() {
    for (const item of [...this.items]) if (item.url.startsWith("blob:")) URL.revokeObjectURL(item.url);
    this.items = [];
    this.#changed();
  }

  /** Forgets every prediction: another model has been chosen. */
  forgetPredictions() {
    for (const item of this.items) Object.assign(item, { prediction: null, error: null });
    this.#changed();
  }

  /** Says that predictions or refusals have come in. */
  judged() {
    this.dispatchEvent(new Event("judged"));
  }

  setLabel(item, label) {
    item.label = label;
    this.#changed();
  }

  /** Name and bytes of the items, ready for an upload. */
  async uploads(items = this.items) {
    return Promise.all(items.map(async (item) => ({ name: item.name, blob: await item.blob() })));
  }
}

/** The one bench of this page. */
export const tray = new Tray();
tray.capacity = CAPACITY;
