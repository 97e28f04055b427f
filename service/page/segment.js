/** The workspace of segmenters: the classes of an image’s pixels, and the zip of images and masks that an evaluation takes. */

import { showError } from "./access.js";
import { segment } from "./api.js";
import { acceptFiles, announce, byId, h } from "./dom.js";
import { pairsIn } from "./files.js";
import { maskInputs } from "./inputs.js";
import { maskModels } from "./models.js";
import { picture } from "./pictures.js";
import { count, percent } from "./words.js";

const SIDE = 320;

let image = null;
let asking = null;

const opacity = () => byId("opacity");

/** What the model was given, with the map of classes over it. */
function overlay({ png, input, width, height }) {
  const map = picture(`data:image/png;base64,${png}`, "the class of each pixel", { className: "class-map", width: SIDE, height: SIDE });
  map.style.opacity = opacity().value / 100;
  return h("figure", { className: "segmented-image" },
    h("div", { className: "stacked" }, picture(`data:image/png;base64,${input}`, image.name, { width: SIDE, height: SIDE }), map),
    h("figcaption", { className: "hint" }, `${image.name} · ${width} × ${height} pixels, as the model is given it`));
}

/** The classes that occur, the largest first. */
function legend(classes) {
  const found = classes.filter(({ share }) => share > 0).sort((a, b) => b.share - a.share);
  return h("ol", { className: "legend-list", "aria-label": "Share of each class" }, found.map(({ label, color, share }) => {
    const swatch = h("span", { className: "swatch", "aria-hidden": "true" });
    swatch.style.background = color;
    return h("li", {}, swatch, h("span", { className: "bar-label", title: label }, label), h("span", { className: "bar-value" }, percent(share, 1000)));
  }));
}

/** Asks for the classes of the image’s pixels; a newer call replaces an older one. */
async function ask() {
  asking?.abort();
  const { signal } = asking = new AbortController();
  const place = byId("segmented");
  showError(byId("mask-error"), null);
  byId("opacity-field").hidden = true;
  place.replaceChildren();
  if (!image || !maskModels.chosen) return;
  place.replaceChildren(h("p", { className: "card-wait" }, "computing …"));
  try {
    const found = await segment(image, maskModels.reference(maskModels.chosen), signal);
    place.replaceChildren(overlay(found), legend(found.legend));
    byId("opacity-field").hidden = false;
    announce(`${image.name}: ${count(found.legend.filter(({ share }) => share > 0).length, "class", "classes")} found.`);
  } catch (error) {
    if (signal.aborted) return;
    place.replaceChildren();
    showError(byId("mask-error"), error, error.isRefusal ? null : ask);
  }
}

/** Takes a zip of images and masks for an evaluation, or an image to segment. */
async function take(given) {
  const [file] = given.filter(({ isFile = true }) => isFile !== false);
  if (!file || file.isDirectory) return;
  if (!/\.zip$/i.test(file.name)) {
    image = file;
    ask();
    return;
  }
  try {
    const names = await pairsIn(file);
    maskInputs.clear();
    maskInputs.add(names.map((name, i) => ({ key: `${file.name}:${file.size}:${name}`, name, path: name, ...(i === 0 && { file }) })));
    byId("pairs").textContent = `${file.name}: ${count(names.length, "image")} with masks.`;
    showError(byId("pairs-error"), null);
  } catch (error) {
    showError(byId("pairs-error"), error);
  }
}

/** Wires the workspace of segmenters. */
export function startSegmenting() {
  acceptFiles(byId("mask-drop"), [byId("mask-file"), byId("mask-archive")], take);
  maskModels.addEventListener("change", ask);
  opacity().addEventListener("input", () => {
    const map = document.querySelector(".class-map");
    if (map) map.style.opacity = opacity().value / 100;
    opacity().setAttribute("aria-valuetext", `${opacity().value} %`);
  });
}
