/** The service’s routes. Paths are relative: a proxy may serve us below a prefix. */

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
async function request(path, { headers = {}, ...options } = {}) {
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
const json = async (path, options) => (await request(path, options)).json();

/** The JSON of what answers a JSON. */
const postJson = (path, body, signal) => json(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });

/** The bytes of a response. */
export const fetchBlob = async (path, options) => (await request(path, options)).blob();

/** Inputs in one request for predictions, and the bytes that they are worth splitting at. */
export const AT_ONCE = 32;
export const BYTES_AT_ONCE = 8_000_000;

/** What a model can be given. */
export const IMAGES = "image-classification";
export const TEXTS = "text-classification";
export const LANGUAGE = "language-model";
export const MASKS = "image-segmentation";

const evaluationPath = (id) => `v1/evaluations/${encodeURIComponent(id)}`;

/** The served models of a task. */
export const fetchModels = async (task) => (await json("v1/models")).filter((model) => model.task === task);

/** What the service takes: image formats, sizes and counts, by the names of its settings. */
export const fetchLimits = () => json("v1/limits");

/** What can be evaluated: the attacks, with their titles, options and budgets. */
export const fetchAttacks = () => json("v1/attacks");

/** The sample images: [{file, label, index}]; empty where the service has none. */
export const fetchSamples = () => json("samples/index.json");

/** Where a sample's picture lies. */
export const sampleUrl = (file) => `samples/${file.split("/").map(encodeURIComponent).join("/")}`;

/**
 * Predictions in the order of the images.
 * @param {{name: string, blob: Blob}[]} images at most `AT_ONCE`.
 * @param {boolean} explain also asks for a map of the model's attention.
 * @param {boolean} seen also asks for the pixels that the model is given.
 */
export function classify(images, model, { explain = false, seen = false, signal } = {}) {
  const form = new FormData();
  for (const { name, blob: bytes } of images) form.append("images", bytes, name);
  form.append("model", model);
  form.append("top_k", "3");
  if (explain) form.append("explain", "true");
  if (seen) form.append("show_input", "true");
  return json("classify", { method: "POST", body: form, signal });
}

/** The class of each pixel of an image: {png, input, width, height, legend: [{label, color, share}]}. */
export function segment(image, model, signal) {
  const form = new FormData();
  form.append("image", image, image.name);
  form.append("model", model);
  return json("segment", { method: "POST", body: form, signal });
}

/** Predictions in the order of the texts, at most `AT_ONCE`. */
export const classifyTexts = (texts, model, signal) => postJson("classify_text", { texts, model, top_k: 5 }, signal);

/** What a language model thinks of a text: {tokens: [{token, start, surprise | null}], perplexity, bits_per_character, count, context, model}. */
export const scoreText = (text, model, signal) => postJson("score", { text, model }, signal);

/** What an evaluation would cost: {model_evaluations, queries | null, amount | null, seconds | null}. */
export const fetchCost = (spec, samples, signal) => postJson("v1/evaluations/cost", { spec, samples }, signal);

/**
 * Queues an evaluation; answers {id, status, cost}.
 * @param {{images?: {name: string, blob: Blob}[], texts?: string[], archive?: File}} inputs one of them.
 * @param {(string | number)[] | null} labels one per input, or null to measure stability.
 * @param {string} key the same key never starts a second evaluation.
 */
export function submitEvaluation(spec, { images, texts, archive }, { labels, priority, key }) {
  const form = new FormData();
  form.append("spec", JSON.stringify(spec));
  for (const { name, blob: bytes } of images ?? []) form.append("images", bytes, name);
  if (texts) form.append("texts", JSON.stringify(texts));
  if (archive) form.append("archive", archive, archive.name);
  if (labels) form.append("labels", JSON.stringify(labels));
  if (priority !== "normal") form.append("priority", priority);
  return json("v1/evaluations", { method: "POST", body: form, headers: { "Idempotency-Key": key } });
}

/** One evaluation; with `wait`, the service holds the answer back that many seconds while it runs. */
export const fetchEvaluation = (id, { wait = 0, signal } = {}) => json(evaluationPath(id) + (wait ? `?wait=${wait}` : ""), { signal });

/** A page of evaluations, newest first: {evaluations, next_cursor}. */
export function fetchEvaluations({ cursor, status, search, signal }) {
  const query = new URLSearchParams({ limit: "20", ...(cursor && { cursor }), ...(status && { status }), ...(search && { search }) });
  return json(`v1/evaluations?${query}`, { signal });
}

/** Cancels an active evaluation, deletes a finished one. */
export const removeEvaluation = (id) => request(evaluationPath(id), { method: "DELETE" });

/** Queues a cancelled evaluation again; what it has finished is not computed again. */
export const continueEvaluation = (id) => request(`${evaluationPath(id)}/continue`, { method: "POST" });

/** Where a form of the report lies: "report.json", "report.html", … */
export const reportUrl = (id, form) => `${evaluationPath(id)}/${form}`;

/** The report as a page. */
export const fetchReportPage = async (id, signal) => (await request(reportUrl(id, "report.html"), { signal })).text();

/** The whole report, with its flags for every sample. */
export const fetchReport = (id, signal) => json(reportUrl(id, "report.json"), { signal });

/**
 * Where a sample's picture lies.
 * @param {"clean" | "adversarial" | "perturbation"} kind
 * @param {{attack?: string, eps?: string, model?: string}} which
 */
export const pictureUrl = (id, index, kind, which) => `${evaluationPath(id)}/samples/${index}/${kind}.png?${new URLSearchParams(which)}`;

/** A sample of texts and what an attack changed in it: {changes: [["same" | "del" | "ins", text]], …}. */
export const fetchChangedText = (id, index, which, signal) => json(`${evaluationPath(id)}/samples/${index}.json?${new URLSearchParams(which)}`, { signal });
