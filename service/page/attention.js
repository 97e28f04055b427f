/** Where a model looks: its map of attention, laid over a picture as a glow. */

import { classify, fetchBlob } from "./api.js";
import { h } from "./dom.js";

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

/** Maps for pictures of the service, as the served model sees them, in their order. */
export async function explainPictures(addresses, model, signal) {
  const images = await Promise.all(addresses.map(async (address, i) => ({ name: `${i}.png`, blob: await fetchBlob(address, { signal }) })));
  const found = [];
  for (let start = 0; start < images.length; start += classify.limit) {
    found.push(...await classify(images.slice(start, start + classify.limit), model, { explain: true, signal }));
  }
  return found.map(({ explanation }) => explanation);
}
