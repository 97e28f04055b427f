/** The service's HTTP surface, as this page uses it. Paths are relative: a proxy may serve us below a prefix. */

const CLASSIFY_AT_ONCE = 32;

/** An answer that is not a success; `message` is the service's own sentence. */
export class ApiError extends Error {
  constructor(status, { code = "unknown", message = "", details = null } = {}) {
    super(message || `The service answered with status ${status}.`);
    Object.assign(this, { name: "ApiError", status, code, details });
  }

  /** True where the request itself is at fault, so that sending it again is no use. */
  get isRefusal() {
    return this.status >= 400 && this.status < 500 && this.status !== 429;
  }
}

async function failure(response) {
  try {
    return new ApiError(response.status, (await response.json()).error);
  } catch {
    return new ApiError(response.status);
  }
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { code: "unreachable", message: "The service cannot be reached. Is it still running?" });
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function json(path, options) {
  return (await request(path, options)).json();
}

const evaluationPath = (id) => `v1/evaluations/${encodeURIComponent(id)}`;

/** The served models of a task: those that take images, or "text-classification". */
export async function fetchModels(task = "image-classification") {
  return (await json("v1/models")).filter((model) => model.task === task);
}

/** The sample images: [{file, label, index}]; empty where the service has none. */
export async function fetchSamples() {
  try {
    return await json("samples/index.json");
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}

/** Where a sample's picture lies. */
export const sampleUrl = (file) => `samples/${file.split("/").map(encodeURIComponent).join("/")}`;

/** The bytes behind an address of this service. */
export async function fetchBlob(path) {
  return (await request(path)).blob();
}

/**
 * Predictions in the order of the images.
 * @param {{name: string, blob: Blob}[]} images at most `CLASSIFY_AT_ONCE`.
 */
export function classify(images, model, signal) {
  const form = new FormData();
  for (const { name, blob } of images) form.append("images", blob, name);
  form.append("model", model);
  form.append("top_k", "3");
  return json("classify", { method: "POST", body: form, signal });
}
classify.limit = CLASSIFY_AT_ONCE;

/** The prediction of one text. */
export async function classifyText(text, model, signal) {
  const body = JSON.stringify({ texts: [text], model, top_k: 5 });
  const headers = { "Content-Type": "application/json" };
  return (await json("classify_text", { method: "POST", body, headers, signal }))[0];
}

/**
 * Queues an evaluation; answers {id, status, cost: {model_evaluations, seconds}}.
 * @param {string[] | null} labels one name per image, or null to judge stability.
 * @param {string} key the same key never starts a second evaluation.
 */
export function submitEvaluation(spec, images, labels, key) {
  const form = new FormData();
  form.append("spec", JSON.stringify(spec));
  for (const { name, blob } of images) form.append("images", blob, name);
  if (labels) form.append("labels", JSON.stringify(labels));
  return json("v1/evaluations", { method: "POST", body: form, headers: { "Idempotency-Key": key } });
}

/** One evaluation; with `wait`, the service holds the answer back that many seconds while nothing changes. */
export function fetchEvaluation(id, { wait = 0, signal } = {}) {
  return json(evaluationPath(id) + (wait ? `?wait=${wait}` : ""), { signal });
}

/** A page of evaluations, newest first: {evaluations, next_cursor}. */
export function fetchEvaluations(cursor = null) {
  const query = new URLSearchParams({ limit: "20", ...(cursor ? { cursor } : {}) });
  return json(`v1/evaluations?${query}`);
}

/** Cancels an active evaluation, deletes a finished one. */
export async function removeEvaluation(id) {
  await request(evaluationPath(id), { method: "DELETE" });
}

/** Where the whole report lies, for programs. */
export const reportUrl = (id) => `${evaluationPath(id)}/report.json`;

/** Where it lies as a page of its own, in one file. */
export const pageUrl = (id) => `${evaluationPath(id)}/report.html`;

/** The whole report, with its flags for every sample. */
export const fetchReport = (id) => json(reportUrl(id));

/**
 * Where a sample's picture lies.
 * @param {"clean" | "adversarial" | "perturbation"} kind
 * @param {{attack?: string, eps?: string, model?: string}} which
 */
export function pictureUrl(id, index, kind, which) {
  return `${evaluationPath(id)}/samples/${index}/${kind}.png?${new URLSearchParams(which)}`;
}
