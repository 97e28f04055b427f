/** Line charts as SVG, redrawn when their width changes, coloured by the page's classes. */

import { h, svg } from "./dom.js";

const HEIGHT = 300;
const EDGE = { top: 14, right: 26, bottom: 42, left: 46 };

/**
 * @typedef {object} Curve
 * @property {"first" | "second"} tone
 * @property {string | null} thread   class of a thin line without points, for an attack alone
 * @property {{x: number, share: number, ci?: number[], note?: string}[]} points
 */

function scales(width, last, stretch) {
  return {
    x: (value) => EDGE.left + (stretch(value) / (stretch(last) || 1)) * (width - EDGE.left - EDGE.right),
    y: (share) => EDGE.top + (1 - share) * (HEIGHT - EDGE.top - EDGE.bottom),
  };
}

function axes(width, ticks, { x, y }, title) {
  const levels = [0, 0.25, 0.5, 0.75, 1].map((share) => [
    svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(share), y2: y(share) }),
    svg("text", { class: "tick", x: EDGE.left - 8, y: y(share) + 4, "text-anchor": "end" }, `${share * 100}`),
  ]);
  let clear = -Infinity;
  const marks = ticks.map(([value, text]) => {
    const room = text.length * 3.6;
    const fits = x(value) - room > clear;
    if (fits) clear = x(value) + room + 4;
    return [
      svg("line", { class: "axis", x1: x(value), x2: x(value), y1: y(0), y2: y(0) + 5 }),
      fits ? svg("text", { class: "tick", x: x(value), y: y(0) + 19, "text-anchor": "middle" }, text) : null,
    ];
  });
  return [levels, marks, svg("text", { class: "axis-name", x: width - EDGE.right, y: HEIGHT - 5, "text-anchor": "end" }, title)];
}

const path = (points) => `M${points.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}`;

function band(points, { x, y }, tone) {
  if (points.some(({ ci }) => !ci)) return null;
  const upper = points.map(({ x: value, ci }) => [x(value), y(ci[1])]);
  const lower = points.map(({ x: value, ci }) => [x(value), y(ci[0])]).reverse();
  return svg("path", { class: `band ${tone}`, d: `${path([...upper, ...lower])}Z` });
}

function dot({ x: value, share, note }, { x, y }, tone) {
  const title = note ? svg("title", {}, note) : null;
  const [cx, cy] = [x(value), y(share)];
  return tone === "first"
    ? svg("circle", { class: `dot ${tone}`, cx, cy, r: 4 }, title)
    : svg("rect", { class: `dot ${tone}`, x: cx - 3.6, y: cy - 3.6, width: 7.2, height: 7.2 }, title);
}

function drawn({ tone, thread, points, smooth }, scale) {
  const line = path(points.map(({ x, share }) => [scale.x(x), scale.y(share)]));
  if (thread) return svg("path", { class: `thread ${tone} ${thread}`, d: line });
  return [band(points, scale, tone), svg("path", { class: `curve ${tone}`, d: line }), smooth ? null : points.map((point) => dot(point, scale, tone))];
}

/**
 * A chart of shares in [0, 1].
 * @param {{label: string, title: string, ticks: [number, string][], curves: Curve[], stretch?: (x: number) => number}} chart
 */
export function chart({ label, title, ticks, curves, stretch = (x) => x }) {
  const plot = h("div", { className: "plot" });
  const last = Math.max(...ticks.map(([value]) => value), ...curves.flatMap(({ points }) => points.map(({ x }) => x)));
  const draw = (width) => {
    const scale = scales(width, last, stretch);
    plot.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label },
      axes(width, ticks, scale, title), curves.map((curve) => drawn(curve, scale))));
  };
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width > 0 && plot.dataset.width !== String(width)) {
      plot.dataset.width = String(width);
      draw(width);
    }
  }).observe(plot);
  return plot;
}

/** A short piece of a line, for a legend. */
export const lineKey = (kind, tone = "first") => svg("svg", { class: "line-key", viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": "true" },
  svg("line", { class: `${kind} ${tone}`, x1: 0, x2: 28, y1: 4, y2: 4 }));

/** A share on a scale from 0 to 1, with its interval as a whisker. */
export function gauge({ top1, ci }, tone = "first") {
  const at = (share) => 5 + share * 110;
  return svg("svg", { class: `gauge ${tone}`, viewBox: "0 0 120 14", width: 120, height: 14, "aria-hidden": "true" },
    svg("line", { class: "rail", x1: 5, x2: 115, y1: 7, y2: 7 }),
    [0, 0.5, 1].map((share) => svg("line", { class: "rail", x1: at(share), x2: at(share), y1: 4, y2: 10 })),
    ci ? svg("line", { class: "whisker", x1: at(ci[0]), x2: at(ci[1]), y1: 7, y2: 7 }) : null,
    svg("circle", { class: "point", cx: at(top1), cy: 7, r: 3.6 }));
}
