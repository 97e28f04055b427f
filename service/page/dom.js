/** Building nodes without ever parsing text as markup, so that hostile names stay text. */

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && key !== "list") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/**
 * An HTML element; strings among the children become text nodes.
 * @param {string} tag
 * @param {object} props properties (className, textContent), attributes, or listeners ("onclick").
 */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** A button that is one of several choices. */
export const choiceButton = (text, chosen, onclick, props = {}) => h("button", { type: "button", className: "chip-button", "aria-pressed": String(chosen), onclick, ...props }, text);

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** The files of a drop; a folder comes as the entry that opens it, since as a file it cannot be read. */
function dropped({ items }) {
  const given = [...items].filter(({ kind }) => kind === "file").map((item) => [item.webkitGetAsEntry?.(), item.getAsFile()]);
  return given.map(([entry, file]) => (entry?.isDirectory ? entry : file));
}

/**
 * Hands over the files that are chosen in fields, or dragged onto the page while its view is shown.
 * @param {HTMLElement} area is marked while files are dragged over the page.
 * @param {(given: (File | FileSystemDirectoryEntry)[]) => void} take
 */
export function acceptFiles(area, fields, take) {
  const isFileDrag = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  for (const field of fields) {
    field.addEventListener("change", () => {
      take([...field.files]);
      field.value = "";
    });
  }
  document.addEventListener("dragover", (event) => {
    if (!isFileDrag(event)) return; // a dragged passage goes into a field as usual
    event.preventDefault();
    area.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) area.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    area.classList.remove("over");
    if (!isFileDrag(event)) return;
    event.preventDefault(); // a file that misses must not replace the page
    if (!area.closest(".view").hidden) take(dropped(event.dataTransfer));
  });
}

/** Says one sentence to screen readers. */
export function announce(text) {
  const place = byId("announcer");
  if (place.textContent !== text) place.textContent = text;
}
