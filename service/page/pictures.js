/** Pictures of the service: plain addresses without a key, fetched bytes with one; attention and sliders over them. */

import { hasKey } from "./access.js";
import { fetchBlob } from "./api.js";
import { h } from "./dom.js";

const SMALL = 64;

async function fill(image, address) {
  try {
    image.src = URL.createObjectURL(await fetchBlob(address));
    await image.decode().catch(() => {}); // the element's own error event tells the page
    URL.revokeObjectURL(image.src);
  } catch {
    image.dispatchEvent(new Event("error"));
  }
}

/** Pictures that need the key are fetched when they come near the view. */
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    fill(target, target.dataset.address);
  }
}, { rootMargin: "300px" });

/**
 * An `<img>` that is loaded when it comes near the view; small ones keep hard pixels.
 * @param {string} address of this service, or of a blob.
 */
export function picture(address, alt, props = {}) {
  const image = h("img", { alt, loading: "lazy", decoding: "async", ...props });
  image.addEventListener("load", () => image.classList.toggle("pixelated", image.naturalWidth <= SMALL));
  if (hasKey() && !/^(blob|data):/.test(address)) {
    image.dataset.address = address;
    near.observe(image);
  } else image.src = address;
  return image;
}

/** Saves what lies at an address as a file; with a key a plain link would be refused. */
export function downloadLink(address, file, text, props = {}) {
  const link = h("a", { href: address, download: file, ...props }, text);
  link.addEventListener("click", async (event) => {
    if (!hasKey()) return;
    event.preventDefault();
    try {
      const url = URL.createObjectURL(await fetchBlob(address));
      h("a", { href: url, download: file }).click();
      URL.revokeObjectURL(url);
    } catch (error) {
      link.after(h("span", { className: "card-error", role: "alert" }, ` ${error.message}`));
    }
  });
  return link;
}

const LONGEST = 224;
const FAINT = [8, 30, 52]; // the glow goes from a dark blue, almost clear, to a bright amber
const BRIGHT = [255, 176, 40];

function glow(context, width, height) {
  const pixels = context.getImageData(0, 0, width, height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const share = pixels.data[i] / 255;
    for (let channel = 0; channel < 3; channel += 1) pixels.data[i + channel] = FAINT[channel] + share * (BRIGHT[channel] - FAINT[channel]);
    pixels.data[i + 3] = 255 * (0.45 + 0.3 * share);
  }
  context.putImageData(pixels, 0, 0);
}

/**
 * A canvas with the shape of the picture below it, so that both are fitted into their frame alike.
 * @param {{png: string}} explanation grey PNG of the model's input, brightest where it looks.
 * @param {HTMLImageElement} image
 */
export function attentionLayer(explanation, image) {
  const canvas = h("canvas", { className: "attention", role: "img", "aria-label": "the model’s attention: bright where it looks" });
  const map = new Image();
  const draw = async () => {
    const scale = LONGEST / Math.max(image.naturalWidth, image.naturalHeight, 1);
    canvas.width = Math.max(1, Math.round(image.naturalWidth * scale));
    canvas.height = Math.max(1, Math.round(image.naturalHeight * scale));
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(map, 0, 0, canvas.width, canvas.height);
    glow(context, canvas.width, canvas.height);
  };
  map.src = `data:image/png;base64,${explanation.png}`;
  map.decode().then(() => (image.complete && image.naturalWidth ? draw() : image.addEventListener("load", draw, { once: true }))).catch(() => canvas.remove());
  return canvas;
}

/**
 * @param {string} clean address of the picture as it was.
 * @param {string} changed address of the picture as it was made.
 * @param {string} name what is shown, for screen readers.
 * @param {string} made what the picture was made: "adversarial", "corrupted", …
 */
export function slider(clean, changed, name, made) {
  const field = h("input", { type: "range", min: 0, max: 100, step: 5, value: 50, "aria-label": `${name}, from clean to ${made}` });
  const box = h("div", { className: "wipe" },
    picture(clean, `${name}, unchanged`, { width: 224, height: 224 }),
    picture(changed, `${name}, ${made}`, { className: "wipe-above", width: 224, height: 224 }),
    h("span", { className: "wipe-edge", "aria-hidden": "true" }),
    h("span", { className: "wipe-name left", "aria-hidden": "true" }, made),
    h("span", { className: "wipe-name right", "aria-hidden": "true" }, "clean"),
    field);
  const move = () => {
    box.style.setProperty("--edge", `${field.value}%`);
    field.setAttribute("aria-valuetext", `${field.value} % ${made}`);
    box.classList.toggle("at-start", Number(field.value) < 30);
    box.classList.toggle("at-end", Number(field.value) > 70);
  };
  field.addEventListener("input", move);
  move();
  return box;
}
