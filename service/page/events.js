/** The progress of an evaluation: server-sent events, and plain questions where no stream gets through. */

import { ApiError, fetchEvaluation, openEvents } from "./api.js";

const SILENT_MS = 40_000; // the service says something every 15 s
const WAIT_SECONDS = 2;
const RETRY_MS = 2000;

/** Whether an evaluation may still change. */
export const isActive = ({ status }) => status === "queued" || status === "running";

const pause = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    reject(new DOMException("left the view", "AbortError"));
  }, { once: true });
});

/** The fields of one event: {event, data}; data is null for a comment. */
function parse(block) {
  const found = { event: "message", data: null };
  for (const line of block.split("\n")) {
    const [, name, value] = /^(event|data): ?(.*)$/.exec(line) ?? [];
    if (name === "event") found.event = value;
    if (name === "data") found.data = found.data === null ? value : `${found.data}\n${value}`;
  }
  return found;
}

/** A stream read by `fetch`: an EventSource cannot carry a key. */
async function* events(id, signal) {
  const silence = new AbortController();
  const response = await openEvents(id, AbortSignal.any([signal, silence.signal]));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const timer = setTimeout(() => silence.abort(), SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const blocks = (text + value.replaceAll("\r", "")).split("\n\n");
    text = blocks.pop();
    yield* blocks.map(parse).filter(({ data }) => data !== null);
  }
}

async function stream(id, signal, show) {
  let latest = null;
  for await (const { data } of events(id, signal)) {
    latest = JSON.parse(data);
    show(latest);
    if (!isActive(latest)) break;
  }
  return latest;
}

async function ask(latest, signal, show, trouble) {
  try {
    const answer = await fetchEvaluation(latest.id, { wait: WAIT_SECONDS, signal });
    trouble(null);
    show(answer);
    return answer;
  } catch (error) {
    if (!(error instanceof ApiError) || error.isRefusal) throw error;
    trouble(error); // out of reach or overloaded: the job runs on without us
    await pause(RETRY_MS, signal);
    return latest;
  }
}

/**
 * Follows an evaluation to its end and answers its last state.
 * @param {(evaluation: object) => void} show hears every change.
 * @param {(error: Error | null) => void} trouble hears that the service is out of reach, or back.
 * @throws {ApiError} the evaluation is gone; an AbortError when `signal` says that the reader has left.
 */
export async function follow(evaluation, { signal, show, trouble }) {
  let latest = evaluation;
  try {
    latest = (await stream(latest.id, signal, show)) ?? latest;
  } catch (error) {
    if (signal.aborted) throw error;
    if (error instanceof ApiError && [404, 410].includes(error.status)) throw error;
  }
  while (isActive(latest)) latest = await ask(latest, signal, show, trouble);
  return latest.status === "succeeded" && !latest.result ? fetchEvaluation(latest.id, { signal }) : latest;
}
