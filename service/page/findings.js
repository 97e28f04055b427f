/** What a result says, in sentences. */

import { count, kindOf, percent, spokenPoint } from "./words.js";

const NBSP = "\u00a0";

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

/** What corruptions or smoothing leave, where no attack had a budget. */
function unaimed({ mean_corruption_error: error, certificates: [proof], samples }) {
  if (error !== null) return `Under common corruptions ${percent(1 - error, samples)} are right on average.`;
  if (!proof) return "No attack with a budget was run.";
  const held = proof.curve.filter(({ share }) => share > 0).at(-1);
  return `Smoothed with sigma ${proof.sigma}, ${percent(proof.curve[0].share, samples)} are provably right, the last of them up to an l2 radius of ${(held ?? proof.curve[0]).radius.toFixed(2)}.`;
}

/** What is left of a model at the worst, and by what: {share, what}; null where only clean inputs were judged. */
export function remainder(model) {
  const worst = worstOf(model);
  if (worst) return { share: worst.top1, what: `under the worst attack within ${worst.eps}` };
  if (model.mean_corruption_error !== null) return { share: 1 - model.mean_corruption_error, what: "on average over common corruptions" };
  const [proof] = model.certificates;
  return proof ? { share: proof.curve[0].share, what: `provably, smoothed with sigma ${proof.sigma}` } : null;
}

/** The headline: what the tried model does without and with attack. */
export function headline(model, metric, kind) {
  const n = model.samples;
  const clean = hits(model.clean.top1, n);
  const start = clean === n ? `all ${n} ${kind}s` : `${clean} of ${n} ${kind}s`;
  const worst = worstOf(model);
  if (!worst) return metric === "stability" ? `${model.name} was tried on ${count(n, kind)}. ${unaimed(model)}` : `${model.name} names ${start} correctly. ${unaimed(model)}`;
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
  if (!worstOf(second)) return `${second.name}: ${unaimed(second)}`;
  const [a, b] = [worstOf(first), worstOf(second)];
  const left = `${second.name} is left with ${hits(b.top1, second.samples)} of ${second.samples}`;
  const p = comparison?.largest?.p_value;
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
