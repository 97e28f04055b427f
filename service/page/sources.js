/** Where images come from: files, drops, the clipboard, and the samples that ship with the service. */

import { fetchSamples, sampleUrl } from "./api.js";
import { announce, byId, h } from "./dom.js";
import { picture } from "./pictures.js";
import { showError } from "./problem.js";
import { fileItems, imageTray as tray, sampleItems } from "./tray.js";

let samples = [];

function take(add) {
  const left = add();
  showError(byId("images-error"), left ? new Error(`The bench holds ${tray.capacity} images; ${left} found no room.`) : null);
}

function listenForFiles() {
  const input = byId("files");
  const drop = byId("drop");
  const isFileDrag = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  input.addEventListener("change", () => {
    take(() => tray.add(fileItems(input.files)));
    input.value = "";
  });
  document.addEventListener("dragover", (event) => {
    if (!isFileDrag(event)) return;
    event.preventDefault();
    drop.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    drop.classList.remove("over");
    if (!isFileDrag(event)) return;
    event.preventDefault(); // a file that misses must not replace the page
    if (drop.closest(".view").hidden) return;
    take(() => tray.add(fileItems(event.dataTransfer.files)));
  });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData?.files.length && !drop.closest(".view").hidden) take(() => tray.add(fileItems(event.clipboardData.files)));
  });
}

function shuffled(list) {
  const copy = [...list];
  for (let i = copy.length - 1; i > 0; i -= 1) {
    const j = Math.floor(Math.random() * (i + 1));
    [copy[i], copy[j]] = [copy[j], copy[i]];
  }
  return copy;
}

function takeRandom() {
  const fresh = samples.filter((sample) => !tray.has(`sample:${sample.file}`));
  const count = Number(byId("random-count").value);
  take(() => tray.add(sampleItems(shuffled(fresh).slice(0, count))));
}

function thumbnail(sample) {
  const key = `sample:${sample.file}`;
  return h("button", {
    type: "button",
    className: "thumb",
    "data-key": key,
    tabIndex: -1,
    title: sample.label,
    onclick: () => (tray.has(key) ? tray.remove(key) : take(() => tray.add(sampleItems([sample])))),
  }, picture(sampleUrl(sample.file), sample.label, { width: 40, height: 40 }));
}

/** Arrow keys move inside the gallery, which is one stop of the tab key. */
function moveInside(gallery, event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "row", ArrowUp: "row" }[event.key];
  const thumbs = [...gallery.querySelectorAll(".thumb")];
  const here = thumbs.indexOf(document.activeElement);
  if (!step || here < 0) return;
  event.preventDefault();
  let next = here + (step === "row" ? 0 : step);
  if (step === "row") {
    const rows = [...gallery.querySelectorAll(".thumbs")];
    const row = rows.indexOf(document.activeElement.parentElement) + (event.key === "ArrowDown" ? 1 : -1);
    if (rows[row]) next = thumbs.indexOf(rows[row].firstElementChild);
  }
  const target = thumbs[Math.max(0, Math.min(thumbs.length - 1, next))];
  document.activeElement.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

function showGallery() {
  const gallery = byId("gallery");
  const labels = [...new Set(samples.map((sample) => sample.label))];
  gallery.replaceChildren(...labels.map((label) => {
    const own = samples.filter((sample) => sample.label === label);
    return h("div", { className: "shelf" },
      h("button", { type: "button", className: "shelf-name", title: `Take all ${own.length}`, onclick: () => take(() => tray.add(sampleItems(own))) }, label),
      h("div", { className: "thumbs" }, own.map(thumbnail)));
  }));
  gallery.querySelector(".thumb").tabIndex = 0;
  markTaken();
}

function markTaken() {
  for (const thumb of byId("gallery").querySelectorAll(".thumb")) {
    thumb.setAttribute("aria-pressed", String(tray.has(thumb.dataset.key)));
  }
}

function toggleGallery() {
  const gallery = byId("gallery");
  if (!gallery.childElementCount) showGallery();
  gallery.hidden = !gallery.hidden;
  byId("browse").setAttribute("aria-expanded", String(!gallery.hidden));
  announce(gallery.hidden ? "Samples closed" : `${samples.length} samples shown`);
}

/** Reads the index of samples. */
export async function loadSamples() {
  samples = await fetchSamples();
  byId("gallery").replaceChildren();
  byId("gallery").hidden = true;
  byId("browse").setAttribute("aria-expanded", "false");
  byId("sample-tools").hidden = samples.length === 0;
}

/** Wires files, drops, paste and samples to the tray. */
export function startSources() {
  listenForFiles();
  byId("random").addEventListener("click", takeRandom);
  byId("browse").addEventListener("click", toggleGallery);
  byId("gallery").addEventListener("keydown", (event) => moveInside(byId("gallery"), event));
  tray.addEventListener("change", markTaken);
}
