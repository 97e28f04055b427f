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
const kindOf = ({ name, norm }) => norm ?? (name === "word-swap" ? "rate" : "edits");

/** A point with its norm where that is not the usual one, as the service's pictures are asked for: "8/255", "L2:0.5". */
export const pointOf = ({ norm, eps }) => (norm === "L2" ? `L2:${eps}` : eps);

/** A point in words: "8/255", "L2 0.5", "3 edits". */
export function spokenPoint(attack) {
  const kind = kindOf(attack);
  if (kind === "edits") return count(Number(attack.eps), "edit");
  return kind === "Linf" ? attack.eps : `${kind} ${attack.eps}`;
}

/** The attacks at the largest budget of their kind, among those of one model or sample. */
function strongest(attacks) {
  const largest = new Map();
  for (const attack of attacks) largest.set(kindOf(attack), Math.max(attack.eps_value, largest.get(kindOf(attack)) ?? 0));
  return attacks.filter((attack) => attack.eps_value === largest.get(kindOf(attack)));
}

/**
 * The share of inputs that hold under every attack at the largest budget.
 * @param {"robust" | "confirmed" | "confirmed_8bit"} level who judges: the twin, the served model, or that one in 8 bit.
 */
export function leftAtWorst(samples, modelIndex, level) {
  const models = samples.map((sample) => sample.models[modelIndex]);
  return models.filter((model) => strongest(model.attacks).every((attack) => attack[level])).length / models.length;
}

/** A judged share, given either bare or with its interval: {top1, ci | null}. */
export function figure(value) {
  if (value === null || value === undefined) return { top1: null, ci: null };
  return typeof value === "number" ? { top1: value, ci: null } : { top1: value.top1, ci: value.ci ?? null };
}

/** One image that fell to the smallest change that is confirmed, also in 8 bit where there is such a one: {sample, attack}. */
export function smallestFall(samples, modelIndex) {
  const falls = samples.flatMap((sample) => {
    const model = sample.models[modelIndex];
    const found = model.attacks.filter((attack) => attack.norm === "Linf" && !attack.confirmed);
    return model.clean.correct ? found.map((attack) => ({ sample, attack })) : [];
  });
  const rank = ({ attack }) => (attack.confirmed_8bit ? 1 : 0) + attack.eps_value; // an l-infinity radius is at most 1
  return falls.sort((a, b) => rank(a) - rank(b))[0] ?? null;
}

const hits = (share, samples) => Math.round(share * samples);

/** The figures of the largest budget, worst attack per input, and `eps`, that budget in words; null where no attack has one. */
export function worstOf(model) {
  const points = [...new Set(strongest(model.attacks).map(spokenPoint))];
  return points.length ? { eps: points.join(" and "), ...model.largest } : null;
}

/** The headline: what the tried model does without and with attack. */
export function headline(model, metric, kind) {
  const n = model.samples;
  const clean = hits(model.clean.top1, n);
  const start = clean === n ? `all ${n} ${kind}s` : `${clean} of ${n} ${kind}s`;
  const worst = worstOf(model);
  if (!worst) return metric === "stability" ? `${model.name} was tried on ${count(n, kind)}, by no attack with a budget.` : `${model.name} names ${start} correctly. No attack with a budget was run.`;
  const left = hits(worst.top1, n);
  const stays = left === 0 ? "none" : left === clean ? "all of them" : `${left}`;
  if (metric === "stability") {
    const kept = left === n ? `every one of its ${n} answers` : left === 0 ? `none of its ${n} answers` : `${left} of its ${n} answers`;
    return `${model.name} keeps ${kept} under the worst attack within ${worst.eps}.`;
  }
  return `${model.name} names ${start} correctly. Under the worst attack within ${worst.eps}, ${stays} ${left === 1 ? "is" : "are"} left.`;
}

/** How far the headline may be trusted, given how few inputs stand behind it. */
export function precisionNote(model, kind) {
  const { ci } = worstOf(model) ?? model.clean;
  const width = ci[1] - ci[0];
  if (width < 0.08) return null;
  return `With ${count(model.samples, kind)}, the true share may be anywhere from ${percent(ci[0], model.samples)} to ${percent(ci[1], model.samples)}. More ${kind}s narrow this down.`;
}

/** The second model in one sentence. */
export function rivalry(first, second, comparison) {
  const a = worstOf(first) ?? first.clean;
  const b = worstOf(second) ?? second.clean;
  const left = `${second.name} is left with ${hits(b.top1, second.samples)} of ${second.samples}`;
  const p = (comparison?.largest ?? comparison?.clean)?.p_value;
  if (a.top1 === b.top1) return `${left}: no difference.`;
  if (p === undefined) return `${left}.`;
  const better = a.top1 > b.top1 ? first.name : second.name;
  const exact = `exact McNemar test, p${NBSP}${p < 0.001 ? "<" : "="}${NBSP}${p < 0.001 ? "0.001" : Number(p.toFixed(3))}`;
  return p < 0.05 ? `${left}. That ${better} holds better is more than chance explains (${exact}).` : `${left}. So small a difference may be chance (${exact}).`;
}

/** What became of the attacks' successes when they were judged again; null where there was no attack. */
export function confirmation(samples, modelIndex, kind) {
  if (!samples[0].models[modelIndex].attacks.length) return null;
  const successes = samples.flatMap((sample) => {
    const model = sample.models[modelIndex];
    return model.clean.correct ? model.attacks.filter((attack) => !attack.robust) : [];
  });
  if (!successes.length) return "No attack succeeded, so there was nothing to confirm.";
  const served = successes.filter((attack) => !attack.confirmed).length;
  const eightBit = successes.filter((attack) => attack.confirmed_8bit === false).length;
  const all = count(successes.length, `attack run on one ${kind}`, `successful attacks on single ${kind}s`);
  const part = (number) => (number === successes.length ? "all" : `${number}`);
  const written = kind === "image" ? ` and ${part(eightBit)} still do when written as an 8-bit PNG` : "";
  return `Of ${all}, ${part(served)} also mislead the model as served${written}.`;
}

/** What a request calls a model: its version only where several are served. */
export const referenceAmong = (models, model) => (models.filter(({ name }) => name === model.name).length > 1 ? `${model.name}:${model.version}` : model.name);
