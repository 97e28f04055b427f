/** The OpenAPI document in Swagger UI, which tries every route with the key of this tab. */

import { keyHeaders } from "./access.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

/** Adds the key, and leaves out the fields of a form that were left empty. */
function prepare(request) {
  request.headers = { ...keyHeaders(), ...request.headers };
  if (request.body instanceof FormData) [...request.body].forEach(([name, value]) => value === "" && request.body.delete(name));
  return request;
}

window.SwaggerUIBundle({
  url: "docs.json",
  dom_id: "#main",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // it would send the document to a stranger
  requestInterceptor: prepare,
});
