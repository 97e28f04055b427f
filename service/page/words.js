/** Numbers, times and counts as people write them. */

const NBSP = "\u00a0";

/** A share in [0, 1] as percent, rounded as in core/percent.py; one decimal where enough samples stand behind it. */
export function percent(share, samples = 0) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const digits = samples >= 200 ? 1 : 0;
  const scale = 10 ** digits;
  const exact = Number((100 * share * scale).toFixed(9 - digits)); // counts, without the noise of binary fractions
  return `${(Math.round(exact) / scale).toFixed(digits)}${NBSP}%`;
}

/** A probability as percent; a small one is not shown as none. */
export const chance = (probability) => (probability > 0 && probability < 0.005 ? `<${NBSP}1${NBSP}%` : percent(probability));

/** "1 image", "12 images" */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** "a few seconds", "about 15 minutes", "about 1½ hours": an estimate, no finer than it can be; as core/progress.py says it. */
export function roughly(seconds) {
  const to = (unit, step = 1) => step * Math.floor(seconds / unit / step + 0.5);
  if (seconds < 10) return "a few seconds";
  if (seconds < 60) return "less than a minute";
  if (seconds < 90) return "about a minute";
  const minutes = to(60, seconds < 570 ? 1 : 5);
  if (minutes < 60) return `about ${minutes} minutes`;
  if (seconds < 4500) return "about an hour";
  const hours = to(3600, seconds < 18_000 ? 0.5 : 1);
  return hours > 36 ? `about ${to(86_400)} days` : `about ${String(hours).replace(".5", "½")} hours`;
}

/** "21 Nov 2025, 14:05" in the reader's own zone. */
export function moment(iso) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}
