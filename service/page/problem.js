/** Errors in plain words, with what can be done about them. */

import { askForKey } from "./access.js";
import { h } from "./dom.js";
import { duration } from "./words.js";

const ADVICE = {
  413: "Send fewer or smaller files.",
  507: "Finished evaluations can be deleted to make room.",
};

function advice({ status, retryAfter }) {
  if (status === 429 || status === 503) return retryAfter ? `Try again in ${duration(retryAfter)}.` : "Try again in a moment.";
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
