/** Requests to the service. Paths are relative: a proxy may serve us below a prefix. */

import { askForKey, hasKey, keyHeaders } from "./access.js";

/** An answer that is not a success; `message` is the service's own sentence. */
export class ApiError extends Error {
  constructor(status, { code = "unknown", message = "", details = null } = {}, retryAfter = null) {
    super(message || `The service answered with status ${status}.`);
    Object.assign(this, { name: "ApiError", status, code, details, retryAfter });
  }

  /** True where the request itself is at fault, so that sending it again is no use. */
  get isRefusal() {
    return this.status >= 400 && this.status < 500 && ![401, 403, 408, 429].includes(this.status);
  }
}

async function failure(response) {
  const seconds = Number(response.headers.get("Retry-After"));
  const retryAfter = Number.isFinite(seconds) && seconds > 0 ? seconds : null;
  try {
    return new ApiError(response.status, (await response.json()).error, retryAfter);
  } catch {
    return new ApiError(response.status, {}, retryAfter); // a proxy in between speaks no JSON
  }
}

/**
 * A response that is a success.
 * @throws {ApiError} for every other one, status 0 where nothing answers; an AbortError passes through.
 */
export async function request(path, { headers = {}, ...options } = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, ...keyHeaders() } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { code: "unreachable", message: "The service cannot be reached. Is it still running?" });
  }
  if (response.ok) return response;
  if (response.status === 401) askForKey(hasKey() ? "The service does not know the key in use." : "This service answers only with an API key.");
  throw await failure(response);
}

/** The JSON of a response. */
export const json = async (path, options) => (await request(path, options)).json();

/** The bytes of a response. */
export const blob = async (path, options) => (await request(path, options)).blob();
