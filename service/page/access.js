/** The API key, kept for this tab only, and errors in plain words with what can be done about them. */

import { announce, byId, h } from "./dom.js";
import { roughly } from "./words.js";

const STORED = "assay-api-key";

let wanted = false;

/** Whether a key is held. */
export const hasKey = () => sessionStorage.getItem(STORED) !== null;

/** The headers that carry the key; empty without one. */
export function keyHeaders() {
  const key = sessionStorage.getItem(STORED);
  return key === null ? {} : { Authorization: `Bearer ${key}` };
}

function showButton() {
  const button = byId("key-button");
  button.hidden = !(wanted || hasKey());
  button.textContent = hasKey() ? "API key ✓" : "API key";
}

/** Opens the dialog; `reason` says why a key is needed. */
export function askForKey(reason = "") {
  wanted = true;
  showButton();
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  byId("key-reason").textContent = reason || "It goes to this service only, and is forgotten when this tab is closed.";
  byId("key-forget").hidden = !hasKey();
  byId("key").value = "";
  dialog.showModal();
}

function changed(said) {
  byId("key-dialog").close();
  showButton();
  announce(said);
  document.dispatchEvent(new Event("key-changed"));
}

function keep(event) {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(key)) {
    byId("key").setCustomValidity("A key holds letters, digits and signs, without blanks.");
    byId("key").reportValidity();
    return;
  }
  sessionStorage.setItem(STORED, key);
  changed("The key is in use.");
}

/** Wires button and dialog; `document` hears "key-changed" whenever another key is in use. */
export function startAccess() {
  showButton();
  byId("key-button").addEventListener("click", () => askForKey());
  byId("key-form").addEventListener("submit", keep);
  byId("key").addEventListener("input", () => byId("key").setCustomValidity(""));
  byId("key-close").addEventListener("click", () => byId("key-dialog").close());
  byId("key-forget").addEventListener("click", () => {
    sessionStorage.removeItem(STORED);
    changed("The key is forgotten.");
  });
}

const ADVICE = {
  413: "Send fewer or smaller files.",
  507: "Finished evaluations can be deleted to make room.",
};

function advice({ status, retryAfter }) {
  if (status === 429 || status === 503) return retryAfter ? `Try again in ${roughly(retryAfter)}.` : "Try again in a moment.";
  return ADVICE[status] ?? null;
}

function remedy({ status }) {
  if (status !== 401 && status !== 403) return null;
  return h("button", { type: "button", onclick: () => askForKey() }, status === 401 ? "Give an API key" : "Use another key");
}

/** The service tells programs which header is missing; a reader only needs to know that a key is. */
const plain = ({ status, message }) => (status === 401 ? "This service answers only with an API key that it knows." : message);

/** The rules that were broken, where the service names several. */
function broken(details) {
  if (!Array.isArray(details) || details.length < 2) return null;
  const lines = details.filter((one) => one?.message).map(({ field, message }) => h("li", {}, field ? `${field}: ${message}` : message));
  return lines.length ? h("ul", {}, lines) : null;
}

/**
 * Shows an error (or clears it, with null) in a `role="alert"` element.
 * @param {(() => void) | null} retry what a button "Try again" does.
 */
export function showError(place, error, retry = null) {
  place.replaceChildren();
  if (!error) return;
  place.append(h("div", { className: "notice error" },
    h("p", {}, [plain(error), advice(error)].filter(Boolean).join(" ")),
    broken(error.details),
    h("p", { className: "row" }, remedy(error), retry && h("button", { type: "button", onclick: retry }, "Try again"))));
}
