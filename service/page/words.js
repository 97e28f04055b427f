/** Figures and findings in plain words. */

const NBSP = "\u00a0";

/** A share in [0, 1] as percent; one decimal where enough samples stand behind it. */
export function percent(share, samples = 0) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const digits = samples >= 200 ? 1 : 0;
  return `${(share * 100).toFixed(digits)}${NBSP}%`;
}

/** A probability as percent; a small one is not shown as none. */
export const chance = (probability) => (probability > 0 && probability < 0.005 ? `<${NBSP}1${NBSP}%` : percent(probability));

/** "62–81 %" */
export function interval([low, high], samples = 0) {
  const digits = samples >= 200 ? 1 : 0;
  return `${(low * 100).toFixed(digits)}–${(high * 100).toFixed(digits)}${NBSP}%`;
}

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
  const date = new Date(typeof iso === "number" ? iso * 1000 : iso);
  if (Number.isNaN(date.getTime())) return "";
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

/** The value of a point as it is written in a spec ("8/255", "0.03") or a report ("L2:0.5", "edits:5", "fog:3"). */
export function epsValue(text) {
  const [numerator, denominator = "1"] = String(text).split(":").at(-1).split("/");
  return Number(numerator) / Number(denominator);
}

const TITLES = {
  square: "Square", autoattack: "AutoAttack", corruptions: "common corruptions", smoothing: "randomized smoothing",
  "word-swap": "Word Swap", hotflip: "HotFlip", typos: "Typos",
};

/** An attack's name as people write it. */
export const attackName = (name) => TITLES[name] ?? name.toUpperCase();

/** What an evaluation judges: "image" or "text". */
export const inputKind = (spec) => (["word-swap", "hotflip", "typos"].includes(spec.attacks[0].name) ? "text" : "image");

/** What an attack may spend: radii in one norm, rates and edits have no common order. */
export const kindOf = ({ name, norm }) => norm ?? (name === "word-swap" ? "rate" : "edits");

/** A point with its norm where that is not the usual one, as the service's pictures are asked for: "8/255", "L2:0.5". */
export const pointOf = ({ norm, eps }) => (norm === "L2" ? `L2:${eps}` : eps);

/** A point in words: "8/255", "L2 0.5", "3 edits". */
export function spokenPoint(attack) {
  const kind = kindOf(attack);
  if (kind === "edits") return count(Number(attack.eps), "edit");
  return kind === "Linf" ? attack.eps : `${kind} ${attack.eps}`;
}

/** A judged share, given either bare or with its interval: {top1, ci | null}. */
export function figure(value) {
  if (value === null || value === undefined) return { top1: null, ci: null };
  return typeof value === "number" ? { top1: value, ci: null } : { top1: value.top1, ci: value.ci ?? null };
}

const SPENT = { eps: "eps", sigma: "sigma", severities: "severity", rate: "share", edits: "edits" };

/** "PGD, FGSM at eps 2/255, 8/255" */
export function attackSummary({ attacks }) {
  const names = [...new Set(attacks.map(({ name }) => attackName(name)))].join(", ");
  const points = Object.entries(SPENT).flatMap(([key, word]) => {
    const values = [...new Set(attacks.flatMap((attack) => (attack[key] ?? []).map((eps) => pointOf({ norm: attack.norm, eps }))))];
    return values.length ? [`${word} ${values.join(", ")}`] : [];
  });
  return points.length ? `${names} at ${points.join(" and ")}` : names;
}
