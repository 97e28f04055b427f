/** The API key: kept for this tab only, sent as a bearer token, asked for when the service wants one. */

import { announce, byId } from "./dom.js";

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
