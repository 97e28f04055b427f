/** The view of language models: a text, its perplexity, and its words coloured by their surprise. */

import { showError } from "./access.js";
import { scoreText } from "./api.js";
import { announce, byId, h } from "./dom.js";
import { languageModels } from "./models.js";
import { count } from "./words.js";

const LEVELS = [4, 8, 12, 16]; // bits of a word at which the next colour begins

const levelOf = (bits) => LEVELS.filter((bound) => bits >= bound).length;
const bitsText = (bits) => `${bits.toFixed(1)} bits`;

/** The runs of a text without blanks, each with the blanks behind it and the bits of all its tokens; null where none is predicted. */
function wordsOf(text, tokens) {
  const surprises = new Map();
  for (const { start, surprise } of tokens) if (surprise !== null) surprises.set(start, (surprises.get(start) ?? 0) + surprise);
  let place = 0; // in characters, of which some are two units of a string
  return (text.match(/\S*\s+|\S+/gu) ?? []).map((run) => {
    const from = place;
    place += [...run].length;
    const own = [...surprises].filter(([start]) => start >= from && start < place);
    return { run, bits: own.length ? own.reduce((sum, [, bits]) => sum + bits, 0) : null };
  });
}

function word({ run, bits }) {
  const text = run.trimEnd();
  if (bits === null || !text) return run;
  return [h("span", { className: `surprise s${levelOf(bits)}`, title: bitsText(bits) }, text, h("small", {}, ` ${bits.toFixed(1)}`)), run.slice(text.length)];
}

function legend() {
  const name = (level) => (level === 0 ? `below ${LEVELS[0]}` : level === LEVELS.length ? `${LEVELS.at(-1)} and more` : `${LEVELS[level - 1]}–${LEVELS[level]}`);
  return h("p", { className: "legend" }, "bits of a word:", [0, ...LEVELS].map((_, level) => h("span", { className: `surprise s${level}` }, name(level))));
}

function draw(text, found) {
  const passage = h("p", { className: "passage scored" }, wordsOf(text, found.tokens).map(word));
  const numbers = h("button", { type: "button", className: "toggle", "aria-pressed": "false" }, "Show the bits of each word");
  numbers.addEventListener("click", () => numbers.setAttribute("aria-pressed", String(passage.classList.toggle("numbers"))));
  const headline = `Perplexity ${found.perplexity.toFixed(2)} by token`;
  byId("score-result").replaceChildren(
    h("p", { className: "headline" }, headline),
    h("p", { className: "hint" }, `${found.bits_per_character.toFixed(2)} bits per character; ${count(found.count, "token")} predicted, each from at most ${found.context} before it, by ${found.model}.`),
    legend(), passage, numbers);
  announce(headline);
}

/** Wires the view, which is linked where a language model is served. */
export function startScore() {
  let asked = new AbortController();
  const form = byId("score-form");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    asked.abort();
    const { signal } = (asked = new AbortController());
    const text = byId("score-text").value;
    showError(byId("score-error"), null);
    try {
      const found = await scoreText(text, languageModels.reference(languageModels.chosen), signal);
      if (!signal.aborted) draw(text, found);
    } catch (error) {
      if (signal.aborted) return;
      byId("score-result").replaceChildren();
      showError(byId("score-error"), error);
    }
  });
  byId("score-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  languageModels.addEventListener("change", () => { byId("language-link").hidden = languageModels.all.length === 0; });
}
