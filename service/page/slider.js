/** Two pictures in one place, and a slider that uncovers the second. */

import { h } from "./dom.js";
import { picture } from "./pictures.js";

/**
 * @param {string} clean address of the picture as it was.
 * @param {string} adversarial address of the picture as the attack left it.
 * @param {string} name what is shown, for screen readers.
 */
export function slider(clean, adversarial, name) {
  const field = h("input", { type: "range", min: 0, max: 100, step: 5, value: 50, "aria-label": `${name}, from clean to adversarial` });
  const box = h("div", { className: "wipe" },
    picture(clean, `${name}, unchanged`, { width: 224, height: 224 }),
    picture(adversarial, `${name}, after the attack`, { className: "wipe-above", width: 224, height: 224 }),
    h("span", { className: "wipe-edge", "aria-hidden": "true" }),
    h("span", { className: "wipe-name left", "aria-hidden": "true" }, "adversarial"),
    h("span", { className: "wipe-name right", "aria-hidden": "true" }, "clean"),
    field);
  const move = () => {
    box.style.setProperty("--edge", `${field.value}%`);
    field.setAttribute("aria-valuetext", `${field.value} % adversarial`);
    box.classList.toggle("at-start", Number(field.value) < 30);
    box.classList.toggle("at-end", Number(field.value) > 70);
  };
  field.addEventListener("input", move);
  move();
  return box;
}
