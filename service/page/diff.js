/** Two texts as one: what stayed, what was taken out, what was put in. */

import { h } from "./dom.js";

const LONGEST_TABLE = 4_000_000; // cells; above that, texts are compared by their common ends alone
const KEPT = 160;

const pieces = (text) => text.match(/\s+|\S+/g) ?? [];

/** Lengths of the longest common subsequences of all tails, row by row. */
function tails(before, after) {
  const width = after.length + 1;
  const table = new Uint16Array((before.length + 1) * width);
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let k = after.length - 1; k >= 0; k -= 1) {
      table[i * width + k] = before[i] === after[k] ? table[(i + 1) * width + k + 1] + 1 : Math.max(table[(i + 1) * width + k], table[i * width + k + 1]);
    }
  }
  return (i, k) => table[i * width + k];
}

function middle(before, after) {
  if (before.length * after.length > LONGEST_TABLE) return [...before.map((text) => ["del", text]), ...after.map((text) => ["ins", text])];
  const common = tails(before, after);
  const steps = [];
  let [i, k] = [0, 0];
  while (i < before.length || k < after.length) {
    if (i < before.length && k < after.length && before[i] === after[k]) {
      steps.push(["same", before[i]]);
      i += 1;
      k += 1;
    } else if (k === after.length || (i < before.length && common(i + 1, k) >= common(i, k + 1))) steps.push(["del", before[i++]]);
    else steps.push(["ins", after[k++]]);
  }
  return steps;
}

/** The words of both texts in order: [["same" | "del" | "ins", text]], neighbours of a kind joined. */
export function difference(old, changed) {
  const [before, after] = [pieces(old), pieces(changed)];
  let start = 0;
  while (start < before.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < Math.min(before.length, after.length) - start && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  const steps = [
    ...before.slice(0, start).map((text) => ["same", text]),
    ...middle(before.slice(start, before.length - end), after.slice(start, after.length - end)),
    ...before.slice(before.length - end).map((text) => ["same", text]),
  ];
  const joined = [];
  for (const [kind, text] of steps) {
    if (joined.at(-1)?.[0] === kind) joined.at(-1)[1] += text;
    else joined.push([kind, text]);
  }
  return joined;
}

/** An unchanged passage: its ends, where it is long. */
function shortened(text) {
  return text.length <= KEPT ? text : `${text.slice(0, KEPT / 2)} … ${text.slice(-KEPT / 2)}`;
}

const SAID = { del: "taken out: ", ins: "put in: " };

/** The nodes that show a difference, the changed words marked. */
export function marked(old, changed) {
  return difference(old, changed).map(([kind, text]) => (kind === "same"
    ? shortened(text)
    : h(kind, {}, h("span", { className: "visually-hidden" }, SAID[kind]), text)));
}
