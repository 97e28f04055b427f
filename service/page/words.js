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

/** "1st", "12th", "23rd" */
export function ordinal(number) {
  const ending = { one: "st", two: "nd", few: "rd" }[new Intl.PluralRules("en", { type: "ordinal" }).select(number)] ?? "th";
  return `${number}${ending}`;
}

/** "3 s", "2 min 10 s", "1 h 5 min" */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 1) return "less than a second";
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 ? ` ${s % 60} s` : ""}`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** "21 Nov 2025, 14:05" in the reader's own zone. */
export function moment(iso) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}
