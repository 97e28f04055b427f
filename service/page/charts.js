/** Small figures drawn as SVG: the eps-accuracy curve and a share with its interval. */

import { h, svg } from "./dom.js";
import { epsValue, interval, percent, spokenPoint } from "./words.js";

const TONES = ["first", "second"];
const HEIGHT = 300;
const EDGE = { top: 14, right: 26, bottom: 42, left: 46 };

/** Doubling eps moves a point by about one tick, and eps = 0 still has its place. */
const stretch = (eps) => Math.log2(1 + eps * 255);

function scales(width, radii) {
  const last = stretch(epsValue(radii.at(-1)));
  return {
    x: (eps) => EDGE.left + (stretch(epsValue(eps)) / last) * (width - EDGE.left - EDGE.right),
    y: (share) => EDGE.top + (1 - share) * (HEIGHT - EDGE.top - EDGE.bottom),
  };
}

function axes(width, radii, { x, y }, axis) {
  const levels = [0, 0.25, 0.5, 0.75, 1].map((share) => [
    svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(share), y2: y(share) }),
    svg("text", { class: "tick", x: EDGE.left - 8, y: y(share) + 4, "text-anchor": "end" }, `${share * 100}`),
  ]);
  let clear = -Infinity;
  const ticks = ["0", ...radii].map((eps) => {
    const text = eps === "0" ? "clean" : eps;
    const room = text.length * 3.6;
    const fits = x(eps) - room > clear;
    if (fits) clear = x(eps) + room + 4;
    return [
      svg("line", { class: "axis", x1: x(eps), x2: x(eps), y1: y(0), y2: y(0) + 5 }),
      fits ? svg("text", { class: "tick", x: x(eps), y: y(0) + 19, "text-anchor": "middle" }, text) : null,
    ];
  });
  return [levels, ticks,
    svg("text", { class: "axis-name", x: width - EDGE.right, y: HEIGHT - 5, "text-anchor": "end" }, `${axis}, on a logarithmic scale`)];
}

const path = (points) => `M${points.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}`;

function band(points, { x, y }, tone) {
  const upper = points.map(({ eps, ci }) => [x(eps), y(ci[1])]);
  const lower = points.map(({ eps, ci }) => [x(eps), y(ci[0])]).reverse();
  return svg("path", { class: `band ${tone}`, d: `${path([...upper, ...lower])}Z` });
}

function dot({ eps, top1, ci }, { x, y }, tone, samples) {
  const note = svg("title", {}, `${eps === "0" ? "clean" : `eps ${eps}`}: ${percent(top1, samples)} (${interval(ci, samples)})`);
  const [cx, cy] = [x(eps), y(top1)];
  return tone === "first"
    ? svg("circle", { class: `dot ${tone}`, cx, cy, r: 4 }, note)
    : svg("rect", { class: `dot ${tone}`, x: cx - 3.6, y: cy - 3.6, width: 7.2, height: 7.2 }, note);
}

function curves(model, tone, radii, scale) {
  const clean = { eps: "0", ...model.clean };
  const worst = [clean, ...radii.filter((eps) => model.worst[eps]).map((eps) => ({ eps, ...model.worst[eps] }))];
  const attacks = model.attacks.filter((attack) => radii.includes(attack.budget));
  const names = [...new Set(attacks.map((attack) => attack.name))];
  const single = names.length < 2 ? [] : names.map((name) => {
    const own = attacks.filter((attack) => attack.name === name).sort((a, b) => epsValue(a.eps) - epsValue(b.eps));
    const points = [clean, ...own.map(({ eps, robust }) => ({ eps, ...robust }))];
    return svg("path", { class: `thread ${tone}`, d: path(points.map(({ eps, top1 }) => [scale.x(eps), scale.y(top1)])) });
  });
  return [band(worst, scale, tone), single,
    svg("path", { class: `curve ${tone}`, d: path(worst.map(({ eps, top1 }) => [scale.x(eps), scale.y(top1)])) }),
    worst.map((point) => dot(point, scale, tone, model.samples))];
}

function legend(models) {
  const threads = models.some((model) => new Set(model.attacks.map(({ name }) => name)).size > 1);
  return h("figcaption", { className: "legend" },
    models.map((model, i) => h("span", { className: `key ${TONES[i]}` }, model.name)),
    h("span", {}, "line: worst attack per image · band: 95 % interval", threads ? " · dotted: each attack alone" : ""));
}

/**
 * The share of inputs that hold, over the first kind of budget, for each model, redrawn when its width changes; null where no attack has a budget.
 * @param {object[]} models the `models` of a result.
 * @param {string} quantity what the vertical axis shows.
 */
export function robustnessCurve(models, quantity) {
  const radii = Object.keys(models[0].worst).filter((name) => !name.includes(":")).sort((a, b) => epsValue(a) - epsValue(b));
  if (!radii.length) return null;
  const [first] = models[0].attacks.filter(({ budget }) => budget === radii[0]);
  const axis = first.norm === "Linf" ? "eps" : first.norm === "L2" ? "eps in the l2 norm" : spokenPoint(first).split(" ").find((word) => Number.isNaN(Number(word)));
  const plot = h("div", { className: "plot" });
  const draw = (width) => {
    const scale = scales(width, radii);
    plot.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": `${quantity} over ${axis}; the table below holds the same figures` },
      axes(width, radii, scale, axis), models.map((model, i) => curves(model, TONES[i], radii, scale))));
  };
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width > 0 && plot.dataset.width !== String(width)) {
      plot.dataset.width = String(width);
      draw(width);
    }
  }).observe(plot);
  return h("figure", { className: "curve-figure" }, h("p", { className: "axis-title" }, `${quantity}, %`), plot, legend(models));
}

/** A share on a scale from 0 to 1, with its interval as a whisker. */
export function gauge({ top1, ci }, tone = "first") {
  const at = (share) => 5 + share * 110;
  return svg("svg", { class: `gauge ${tone}`, viewBox: "0 0 120 14", width: 120, height: 14, "aria-hidden": "true" },
    svg("line", { class: "rail", x1: 5, x2: 115, y1: 7, y2: 7 }),
    [0, 0.5, 1].map((share) => svg("line", { class: "rail", x1: at(share), x2: at(share), y1: 4, y2: 10 })),
    ci ? svg("line", { class: "whisker", x1: at(ci[0]), x2: at(ci[1]), y1: 7, y2: 7 }) : null,
    svg("circle", { class: "point", cx: at(top1), cy: 7, r: 3.6 }));
}
