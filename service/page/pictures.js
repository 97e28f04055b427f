/** Pictures of the service: plain addresses without a key, fetched bytes with one. */

import { hasKey } from "./access.js";
import { h } from "./dom.js";
import { blob } from "./http.js";

const SMALL = 64;

async function fill(image, address) {
  try {
    image.src = URL.createObjectURL(await blob(address));
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
  if (hasKey() && !address.startsWith("blob:")) {
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
      const url = URL.createObjectURL(await blob(address));
      h("a", { href: url, download: file }).click();
      URL.revokeObjectURL(url);
    } catch (error) {
      link.after(h("span", { className: "card-error", role: "alert" }, ` ${error.message}`));
    }
  });
  return link;
}
