/** The curves of a result: what holds over the budget of attacks, over distances, and over proven radii. */

import { chart, lineKey } from "./chart.js";
import { h } from "./dom.js";
import { attackName, interval, kindOf, percent } from "./words.js";

const TONES = ["first", "second"];
const AXES = { Linf: "eps, on a logarithmic scale", L2: "eps in the l2 norm", rate: "share of the words", edits: "edits of a text" };
const MOST_TICKS = 6;

/** Doubling eps moves a point by about one tick, and eps = 0 still has its place. */
const doubling = (eps) => Math.log2(1 + eps * 255);

function point(x, name, share, samples) {
  return { x, share: share.top1, ci: share.ci, note: `${name}: ${percent(share.top1, samples)} (${interval(share.ci, samples)})` };
}

const namesOf = (attacks) => [...new Set(attacks.map(({ name }) => name))];

function threads(model, tone, clean, own, names) {
  if (names.length < 2) return [];
  return names.flatMap((name, i) => {
    const runs = own.filter((attack) => attack.name === name).sort((a, b) => a.eps_value - b.eps_value);
    const points = [clean, ...runs.map(({ eps_value: x, robust }) => ({ x, share: robust.top1 }))];
    return runs.length ? [{ tone, thread: `dash-${i % 5}`, points }] : [];
  });
}

function modelCurves(model, tone, kind, names) {
  const own = model.attacks.filter((attack) => kindOf(attack) === kind);
  const clean = point(0, "clean", model.clean, model.samples);
  const budgets = new Map(own.map((attack) => [attack.budget, attack]));
  const worst = [...budgets].sort(([, a], [, b]) => a.eps_value - b.eps_value)
    .map(([budget, { eps, eps_value: x }]) => point(x, eps, model.worst[budget], model.samples));
  return [...threads(model, tone, clean, own, names), { tone, thread: null, points: [clean, ...worst] }];
}

function legend(models, names, note) {
  return h("figcaption", { className: "legend" },
    models.map((model, i) => h("span", { className: `key ${TONES[i]}` }, model.name)),
    names.length > 1 ? names.map((name, i) => h("span", { className: "line-name" }, lineKey(`thread dash-${i % 5}`, "neutral"), attackName(name), " alone")) : null,
    h("span", {}, note));
}

const figure = (title, plot, caption) => h("figure", { className: "curve-figure" }, h("p", { className: "axis-title" }, `${title}, %`), plot, caption);

/** One chart for each kind of budget: the worst attack in bold with its interval, each attack alone as a thread. */
export function attackCurves(models, quantity) {
  const kinds = [...new Set(models[0].attacks.map(kindOf))];
  return kinds.map((kind) => {
    const attacks = models[0].attacks.filter((attack) => kindOf(attack) === kind);
    const names = namesOf(attacks);
    const spelled = new Map(attacks.map(({ eps, eps_value: value }) => [value, eps]));
    return figure(quantity, chart({
      label: `${quantity} over ${AXES[kind]}; the table below holds the same figures`,
      title: AXES[kind],
      ticks: [[0, "clean"], ...[...spelled].sort(([a], [b]) => a - b)],
      curves: models.flatMap((model, i) => modelCurves(model, TONES[i], kind, names)),
      stretch: kind === "Linf" ? doubling : undefined,
    }), legend(models, names, "bold: worst attack on each input · band: 95 % interval"));
  });
}

function roundTicks(last) {
  const power = 10 ** Math.floor(Math.log10(last / MOST_TICKS));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one * MOST_TICKS >= last);
  return Array.from({ length: Math.ceil(last / step - 1e-9) + 1 }, (_, i) => [i * step, String(Number((i * step).toPrecision(6)))]);
}

function smoothChart(models, quantity, title, curves, note) {
  const last = Math.max(...curves.flatMap(({ points }) => points.map(({ x }) => x))) || 1;
  return figure(quantity, chart({ label: `${quantity} over ${title}`, title, ticks: roundTicks(last), curves }), legend(models, [], note));
}

/** What is proven by randomized smoothing, one chart for each sigma. */
export function certificateCurves(models) {
  return models[0].certificates.map(({ sigma, samples }) => {
    const curves = models.flatMap((model, i) => model.certificates.filter((one) => one.sigma === sigma).map(({ curve }) => (
      { tone: TONES[i], thread: null, smooth: true, points: curve.map(({ radius, share, ci }) => ({ x: radius, share, ci })) })));
    return smoothChart(models, `Provably right, sigma ${sigma}`, "radius in the l2 norm", curves, `a vote over ${samples} noisy copies · band: 95 % interval`);
  });
}

/** Accuracy at every radius at once, where an attack looked for the nearest change. */
export function minimalCurves(models, quantity) {
  const norms = [...new Set(models[0].minimal.map(({ norm }) => norm))];
  return norms.map((norm) => {
    const curves = models.flatMap((model, i) => model.minimal.filter((one) => one.norm === norm).map(({ eps, accuracy }) => (
      { tone: TONES[i], thread: null, smooth: true, points: eps.map((x, k) => ({ x, share: accuracy[k] })) })));
    return smoothChart(models, `${quantity}, at every distance`, norm === "Linf" ? "eps" : "eps in the l2 norm", curves, "from the nearest change that was found for each input");
  });
}
