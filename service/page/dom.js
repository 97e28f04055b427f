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

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** Says one sentence to screen readers. */
export function announce(text) {
  const place = byId("announcer");
  if (place.textContent !== text) place.textContent = text;
}
