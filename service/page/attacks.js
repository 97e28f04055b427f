/** The attacks that can be evaluated, and the fields to choose them with; read back as the attacks of a spec. */

import { fetchAttacks } from "./api.js";
import { h } from "./dom.js";

const isShare = (value) => value > 0 && value <= 1;
const isCount = (value) => Number.isInteger(value) && value > 0;

/**
 * What an attack may spend. `chips` are offered to tick, `other` says that any value may be typed,
 * and `number` that the service wants numbers. A typed value must be one that `fits`; `rule` says
 * which do, and `meant` what may have been meant by another one.
 */
const BUDGETS = {
  eps: { title: "Budget (eps)", hint: "How far each pixel may move. 1/255 is one level of an 8-bit image.", chips: ["1/255", "2/255", "4/255", "8/255", "16/255", "32/255"], other: "e.g. 0.1, 12/255", fits: isShare, rule: "a budget lies above 0 and is at most 1", meant: (value) => isCount(value) && value < 256 && `${value}/255` },
  patch: { title: "Side of the patch", hint: "Pixels of one square, anywhere in the image, that may become anything.", chips: ["2", "3", "5", "8"], other: "e.g. 10", number: true, fits: isCount, rule: "sides are whole numbers of pixels from 1 on", meant: () => null },
  severities: { title: "Severity of the corruptions", hint: "From 1, hardly visible, to 5, hard to see through.", chips: ["1", "2", "3", "4", "5"], number: true },
  sigma: { title: "Noise of the smoothing (sigma)", hint: "More noise proves larger radii and costs clean accuracy.", chips: ["0.12", "0.25", "0.5", "1"], other: "e.g. 0.4", fits: (value) => value > 0 && value <= 10, rule: "sigma lies above 0 and is at most 10", meant: () => null },
  rate: { title: "Share of the words", hint: "0.025 is one word in forty.", chips: ["0.025", "0.05", "0.1", "0.25"], other: "e.g. 0.15", fits: isShare, rule: "a share lies above 0 and is at most 1", meant: (value) => value <= 100 && String(value / 100) },
  patches: { title: "Patches", hint: "How many of the patches that the model cuts an image into may be replaced.", chips: ["1", "2", "4"], other: "e.g. 3", number: true, fits: isCount, rule: "patches are whole numbers from 1 on", meant: () => null },
  edits: { title: "Edits", hint: "How many words, tokens or characters of a text may be changed.", chips: ["1", "2", "3", "5", "8"], other: "e.g. 10", number: true, fits: isCount, rule: "edits are whole numbers from 1 on", meant: () => null },
};

/** The rule of radii in other norms than Linf, whose chips and limits fit only that one. */
const RADII = { fits: (value) => value > 0, rule: "a radius lies above 0", meant: () => null };

/** Where to start from; the first one is chosen when the page is opened. What is not named here has the service's default. */
const PRESETS = {
  image: [
    { key: "quick", title: "Quick check", what: "FGSM and PGD with two budgets. Takes seconds and finds weak models.", attacks: { fgsm: {}, pgd: {} }, eps: ["2/255", "8/255"] },
    { key: "paper", title: "Paper’s protocol", what: "As for Elliptical Attention: FGSM and PGD-20 from 1/255 to 6/255, SPSA at 1/255.", attacks: { fgsm: {}, pgd: {}, spsa: { only: "1/255" } }, eps: ["1/255", "2/255", "3/255", "4/255", "5/255", "6/255"] },
    { key: "autoattack", title: "AutoAttack", what: "The standard benchmark, at 8/255. Slow and reliable.", attacks: { autoattack: {} }, eps: ["8/255"] },
    { key: "curve", title: "Accuracy curve", what: "FGSM and PGD-20 from 1/255 to 16/255.", attacks: { fgsm: {}, pgd: {} }, eps: ["1/255", "2/255", "4/255", "8/255", "16/255"] },
    { key: "queries", title: "Queries only", what: "Square at 8/255 with 500 queries: it sees scores and nothing else.", attacks: { square: { queries: 500 } }, eps: ["8/255"] },
    { key: "label", title: "Class only", what: "RayS at 8/255 with 1,000 queries: it sees the class and nothing else.", attacks: { rays: { queries: 1000 } }, eps: ["8/255"] },
    { key: "corruptions", title: "Common corruptions", what: "15 corruptions such as fog, blur and noise, at three severities.", attacks: { corruptions: {} }, severities: ["1", "3", "5"] },
    { key: "proof", title: "Proof", what: "What no change of pixels within 1/255 to 4/255 can do, proved, beside PGD.", attacks: { pgd: {}, "pixel-bounds": {} }, eps: ["1/255", "2/255", "4/255"] },
    { key: "certificate", title: "Certificate", what: "Randomized smoothing proves a radius within which no attack succeeds.", attacks: { smoothing: {} }, sigma: ["0.25"] },
  ],
  mask: [
    { key: "quick", title: "Quick check", what: "FGSM and SegPGD with two budgets.", attacks: { fgsm: {}, segpgd: {} }, eps: ["2/255", "8/255"] },
    { key: "curve", title: "Accuracy curve", what: "PGD-20 and SegPGD-20 from 1/255 to 16/255.", attacks: { pgd: {}, segpgd: {} }, eps: ["1/255", "2/255", "4/255", "8/255", "16/255"] },
  ],
  text: [
    { key: "quick", title: "Quick check", what: "Up to three typos a text, with 100 queries each. Takes seconds and finds weak models.", attacks: { typos: { queries: 100 } }, edits: ["1", "3"] },
    { key: "typos", title: "Typos", what: "One to five mistyped words, a thousand queries each.", attacks: { typos: {} }, edits: ["1", "3", "5"] },
    { key: "hotflip", title: "HotFlip", what: "One to five tokens replaced along the gradient. The strongest one.", attacks: { hotflip: {} }, edits: ["1", "3", "5"] },
    { key: "swap", title: "Word Swap", what: "The paper’s protocol: 2.5 % of the words become “AAA”, and more.", attacks: { "word-swap": {} }, rate: ["0.025", "0.1", "0.25"] },
    { key: "proof", title: "Proof", what: "What no one, two or five replaced pieces can do, proved, beside HotFlip and the worst pieces.", attacks: { hotflip: {}, "worst-pieces": {}, substitutions: {} }, edits: ["1", "2", "5"] },
    { key: "all", title: "All three", what: "Typos, HotFlip and Word Swap, one after the other.", attacks: { typos: {}, hotflip: {}, "word-swap": {} }, edits: ["1", "3"], rate: ["0.025", "0.1"] },
  ],
};

const PROOF = ["proof", "A proof says of each input whether any change of its set, found or not, misleads the model; attacks inside of that set show which inputs are broken."];

/** What holds of an evaluation with attacks of some access or role. */
const NOTES = {
  image: [
    ["gradient", "Gradient attacks see everything inside the model."],
    ["attack", "Each success is scored again on the model as served, and once more as an 8-bit image."],
    ["corruption", "Corruptions follow from image and seed, and are scored on the model as served."],
    ["certificate", "A certificate is no attack: it holds for a vote of the model as served over noisy copies."],
    PROOF,
  ],
  mask: [["attack", "What counts of an image is its pixel accuracy under the attack that takes most of it, scored again on the model as served, and once more as an 8-bit image."]],
  text: [["attack", "Every changed text is processed as any other: tokenized, truncated, and scored by the model as served."], PROOF],
};

/** Why an attack cannot be tried on a model that does not show what it needs. */
const LACKS = { gradient: "gradients, which it does not show", weights: "a TransJect in fp32 with mean pooling, of images with fixed eigenvalues and one expert", "token-wise": "tokens that do not see each other: a TransJect with fixed eigenvalues, one expert and mean pooling", graph: "its graph, in fp32", scores: "scores, and it shows the class alone" };

let attacks = [];

/** Reads what the service can run: [{name, title, what, input, role, budget, norms, options}]. */
export async function loadAttacks() {
  attacks = await fetchAttacks();
}

const attackOf = (name) => attacks.find((attack) => attack.name === name);

/** What an evaluation is of: "image" or "text". */
export const inputKind = (spec) => attackOf(spec.attacks[0].name)?.input ?? "image";

/** The norm of an attack of a spec, which may know but one; null where its budgets are no radii. */
const normOf = ({ name, norm }) => norm || (attackOf(name)?.norms ?? [])[0] || null;

/** Whether its radii are in another norm than Linf, and so of another size. */
const beyond = (attack) => ![null, "Linf"].includes(normOf(attack));

/** "PGD, FGSM at eps 2/255, 8/255" */
export function attackSummary(spec) {
  const known = spec.attacks.map((attack) => ({ attack, ...attackOf(attack.name) }));
  const titles = new Set(known.map(({ attack, title }) => attack.attack ?? title ?? attack.name));
  const values = new Map();
  for (const { attack, budget = "eps" } of known) {
    const norm = beyond(attack) ? `${normOf(attack)}:` : "";
    for (const value of attack[budget] ?? []) values.set(budget, (values.get(budget) ?? new Set()).add(norm + value));
  }
  const points = [...values].map(([budget, own]) => `${budget} ${[...own].join(", ")}`);
  return [[...titles].join(", "), points.join(" and ")].filter(Boolean).join(" at ");
}

function epsValue(text) {
  const [numerator, denominator = "1"] = text.split("/");
  return Number(numerator) / Number(denominator);
}

/** How options are typed that are no counts: as `pattern` has it, else `title` says what is wrong. */
const TYPED = {
  number: { type: "text", className: "short", placeholder: "default", pattern: "[0-9.eE\\-]+(/[0-9.]+)?", title: "Enter a number such as 0.01 or 2/255." },
  object: { type: "text", pattern: "\\s*([^\\s=]+=\\S+(\\s+|$))*" },
};
/** How pairs are typed, by the option that they make. */
const PAIRS = { params: "steps=20 decay=1", table: "film=movie,picture good=fine" };

const spell = (value, type) => (type === "object" ? Object.entries(value).map((pair) => pair.join("=")).join(" ") : value);

/** A value of a pair; several numbers have commas between them. */
function readValue(text) {
  if (text.includes(",")) return text.split(",").map(readValue);
  if (["true", "false"].includes(text)) return text === "true";
  return text === "" || Number.isNaN(Number(text)) ? text : Number(text);
}

function optionField(attack, { name, type, several, choices, minimum, maximum, required, default: usual }) {
  const key = `${attack}-${name}`;
  if (several) return h("span", { className: "row", role: "group", "aria-label": name }, choices.map((one) => chip(key, one)));
  const own = required || usual !== null ? [] : [h("option", { value: "" }, "default")];
  const field = choices
    ? h("select", { name: key }, own, choices.map((one) => h("option", { value: one }, one)))
    : h("input", { name: key, autocomplete: "off", spellcheck: false, ...(type === "object" && { placeholder: PAIRS[name], title: `Enter pairs such as ${PAIRS[name]}.` }), ...(TYPED[type] ?? { type: "number", min: minimum, max: maximum, required: true, inputMode: "numeric" }) });
  return h("label", { className: "inline" }, name, field);
}

/** The options that have a field: all but the budget, and those without a choice. */
const offered = ({ options, budget }) => options.filter(({ name, choices }) => name !== budget && choices?.length !== 1);

/** Whether another attack spends the same, so that one may want values of its own. */
const shares = ({ name, input, budget }) => attacks.some((other) => other.name !== name && other.input === input && other.budget === budget);

const onlyField = ({ name }) => h("label", { className: "inline" }, "only at", h("input", { type: "text", className: "short", name: `${name}-only`, autocomplete: "off", spellcheck: false }));

function attackRow(attack) {
  return h("div", { className: "attack" },
    h("label", { className: "check" },
      h("input", { type: "checkbox", name: "attack", value: attack.name }),
      h("span", {}, h("b", {}, attack.title), h("small", {}, attack.what))),
    h("span", { className: "row", role: "group", "aria-label": attack.title }, offered(attack).map((option) => optionField(attack.name, option)), shares(attack) && onlyField(attack),
      h("small", { className: "hint" }, attack.options.filter((option) => offered(attack).includes(option) || (attack.role === "proof" && option.name === attack.budget)).map(({ name, text }) => `${name}: ${text}`).join(" · "))));
}

const chip = (name, value) => h("label", { className: "chip" }, h("input", { type: "checkbox", name, value }), h("span", {}, value.replaceAll("_", " ")));

function budgetField(key) {
  const { title, hint, chips, other } = BUDGETS[key];
  return h("fieldset", { className: "budget", "data-budget": key }, h("legend", {}, title),
    h("p", { className: "hint" }, hint),
    h("div", { className: "row" }, chips.map((value) => chip(key, value)),
      other && h("label", { className: "inline" }, "others", h("input", { type: "text", name: `other-${key}`, placeholder: other, autocomplete: "off", spellcheck: false }))));
}

const presetCard = ({ key, title, what }, i) => h("label", { className: "preset" },
  h("input", { type: "radio", name: "preset", value: key, checked: i === 0 }),
  h("span", { className: "preset-title" }, title),
  h("span", { className: "preset-what" }, what));

const ticked = (form, name) => [...form.querySelectorAll(`[name="${name}"]:checked`)].map((box) => box.value);
const typed = (text) => text.split(/[\s,;]+/).filter(Boolean);

/** What is wrong with a typed budget, or null. */
function typedFault({ fits, rule, meant }, text) {
  const wrong = typed(text).find((one) => !fits(epsValue(one)));
  if (wrong === undefined) return null;
  const better = epsValue(wrong) > 0 && meant(epsValue(wrong));
  return `“${wrong}” does not fit: ${rule}.${better ? ` Did you mean ${better}?` : ""}`;
}

/** What each kind of form is about: what goes in, and what a model answers with. */
const KINDS = { image: ["image", "class"], text: ["text", "class"], mask: ["image", "pixels"] };

/** The fields for one kind of input, "image", "text" or "mask", in a form of their own. */
export class AttackFields {
  constructor(form, kind) {
    const [wanted, answer] = KINDS[kind];
    Object.assign(this, { form, kind, attacks: attacks.filter(({ input, answers, budget }) => input === wanted && answers.includes(answer) && budget in BUDGETS) });
    this.budgets = [...new Set(this.attacks.map(({ budget }) => budget))];
    this.known = PRESETS[kind].filter((preset) => Object.keys(preset.attacks).every(attackOf));
    this.presets = h("fieldset", { className: "presets-field" }, h("legend", {}, "Attack strength"),
      h("div", { className: "presets" }, this.known.map(presetCard)), this.left = h("p", { className: "hint left-out", hidden: true }));
    this.details = h("details", { className: "adjust" }, h("summary", {}, "Choose attacks and budgets"),
      h("div", { className: "fields" },
        h("fieldset", {}, h("legend", {}, "Attacks"), this.attacks.map(attackRow)),
        this.budgets.map(budgetField)));
  }

  /** Offers what can be tried on a model, and says what cannot, and why. */
  offer(model) {
    const lost = model ? this.attacks.filter(({ access }) => !model.access.includes(access)) : [];
    const names = lost.map(({ name }) => name);
    for (const box of this.form.querySelectorAll("[name=attack]")) {
      box.closest(".attack").hidden = box.disabled = names.includes(box.value);
      box.checked &&= !box.disabled;
    }
    const fits = ({ attacks: own }) => !Object.keys(own).some((name) => names.includes(name));
    this.known.forEach((preset, i) => { this.presets.querySelectorAll(".preset")[i].hidden = !fits(preset); });
    const [preset] = ticked(this.form, "preset");
    if (!this.chosen().length || this.known.some((one) => one.key === preset && !fits(one))) {
      const first = this.known.find(fits)?.key;
      for (const radio of this.form.querySelectorAll("[name=preset]")) radio.checked = radio.value === first;
      this.apply(first);
    }
    const why = Object.entries(LACKS).map(([access, lack]) => [lost.filter((attack) => attack.access === access).map(({ title }) => title), lack]);
    this.left.textContent = lost.length ? `Not tried on ${model.name}: ${why.filter(([own]) => own.length).map(([own, lack]) => `${own.join(", ")} (needs ${lack})`).join("; ")}.` : "";
    this.left.hidden = !lost.length;
    this.#showBudgets();
  }

  /** Follows a change of any field: a preset fills the others, and changing them leaves the preset. */
  changed(field) {
    if (field.name === "preset") this.apply(field.value);
    else if (this.details.contains(field)) for (const radio of this.form.querySelectorAll("[name=preset]")) radio.checked = false;
    this.#showBudgets();
  }

  /** Fills attacks and budgets from a preset, the first one where none is named. */
  apply(key = this.known[0]?.key) {
    const preset = this.known.find((one) => one.key === key);
    if (preset) this.#fill(preset);
  }

  /** Fills attacks and budgets from those of a spec; returns the names of what has no place here. */
  take(list) {
    const found = { attacks: {} };
    const left = [];
    for (const { name, ...chosen } of list) {
      const attack = this.attacks.find((one) => one.name === name && !this.form.querySelector(`[name=attack][value="${name}"]`).disabled);
      if (!attack || name in found.attacks) {
        left.push(name);
        continue;
      }
      const { budget, options } = attack;
      const values = (chosen[budget] ?? options.find((option) => option.name === budget).default).map(String);
      const own = beyond({ name, ...chosen }) || (found[budget] ?? values).join() !== values.join();
      if (!own) found[budget] = values;
      found.attacks[name] = { ...chosen, only: own ? values.join(" ") : "" };
    }
    for (const radio of this.form.querySelectorAll("[name=preset]")) radio.checked = false;
    this.#fill(found);
    this.details.open = true;
    return left;
  }

  #fill(found) {
    for (const box of this.form.querySelectorAll("[name=attack]")) box.checked = box.value in found.attacks;
    for (const budget of this.budgets) this.#fillBudget(budget, found[budget] ?? []);
    for (const attack of this.attacks) this.#fillOptions(attack, found.attacks[attack.name] ?? {});
    this.#showBudgets();
  }

  #fillOptions(attack, chosen) {
    for (const { name, type, several, default: usual, required, choices } of offered(attack)) {
      const key = `${attack.name}-${name}`;
      const value = chosen[name] ?? usual ?? (required && choices ? choices[0] : "");
      if (several) for (const box of this.form.querySelectorAll(`[name="${key}"]`)) box.checked = value.includes(box.value);
      else this.form.elements[key].value = spell(value, type);
    }
    const only = this.form.elements[`${attack.name}-only`];
    if (only) only.value = chosen.only ?? "";
  }

  #fillBudget(budget, values) {
    for (const box of this.form.querySelectorAll(`[name="${budget}"]`)) box.checked = values.includes(box.value);
    const other = this.form.elements[`other-${budget}`];
    if (other) other.value = values.filter((value) => !BUDGETS[budget].chips.includes(value)).join(" ");
  }

  /** Only what a chosen attack may spend is asked for. */
  #showBudgets() {
    const chosen = this.chosen().map(({ budget }) => budget);
    for (const field of this.details.querySelectorAll(".budget")) field.hidden = !chosen.includes(field.dataset.budget);
  }

  /** The attacks that are ticked. */
  chosen() {
    const names = ticked(this.form, "attack");
    return this.attacks.filter(({ name }) => names.includes(name));
  }

  /** What is to know about the chosen ones, and nothing about others. */
  notes() {
    const kinds = new Set(this.chosen().flatMap(({ access, role }) => (role === "attack" ? [access, role] : [role])));
    return NOTES[this.kind].filter(([kind]) => kinds.has(kind)).map(([, note]) => note).join(" ");
  }

  /** Whether any chosen one is of this role: an attack, so that a worst case exists, or a proof. */
  runs(kind) {
    return this.chosen().some(({ role }) => role === kind);
  }

  #values({ name, budget }) {
    const own = this.#own({ name });
    if (own) return typed(own);
    const all = new Set([...ticked(this.form, budget), ...typed(this.form.elements[`other-${budget}`]?.value ?? "")]);
    return [...all].sort((a, b) => epsValue(a) - epsValue(b));
  }

  /** An option as a spec has it; undefined where its default holds. */
  #option(attack, { name, type, several, choices, default: usual }) {
    const key = `${attack.name}-${name}`;
    const text = this.form.elements[key].value?.trim();
    let value = several ? ticked(this.form, key) : text || null;
    if (type === "integer") value = Number(text);
    if (type === "object") value = Object.fromEntries(text.split(/\s+/).filter(Boolean).map((pair) => [pair.split("=", 1)[0], readValue(pair.slice(pair.indexOf("=") + 1))]));
    return value === null || JSON.stringify(value) === JSON.stringify(usual) ? undefined : value;
  }

  #own({ name }) {
    return this.form.elements[`${name}-only`]?.value.trim();
  }

  #beyond({ name }) {
    return beyond({ name, norm: this.form.elements[`${name}-norm`]?.value });
  }

  #fields(attack) {
    return this.form.elements[this.#own(attack) ? `${attack.name}-only` : `other-${attack.budget}`];
  }

  /** What is typed and breaks a rule, of the chosen attacks: [{field, message}]. */
  faults() {
    const ruled = this.chosen().map((attack) => {
      const field = this.#fields(attack);
      const other = this.#own(attack) && this.#beyond(attack);
      return { field, message: field && typedFault(other ? RADII : BUDGETS[attack.budget], field.value) };
    });
    return ruled.filter(({ message }) => message);
  }

  /** The field that a place in a spec such as "attacks.0.eps" is about; null where there is none. */
  at(place) {
    const [, index, name] = /^attacks\.(\d+)(?:\.(\w+))?/.exec(place) ?? [];
    const attack = this.chosen()[index];
    if (!attack) return null;
    const one = (key) => this.form.querySelector(`[name="${key}"]`);
    if (name === attack.budget) return this.#fields(attack) ?? one(name);
    return one(`${attack.name}-${name}`) ?? this.form.querySelector(`[name="attack"][value="${attack.name}"]`);
  }

  /** The attacks as a spec names them. */
  read() {
    return this.chosen().map((attack) => {
      const { name, budget } = attack;
      const values = this.#values(attack);
      const options = offered(attack).map((option) => [option.name, this.#option(attack, option)]).filter(([, value]) => value !== undefined);
      return { name, [budget]: BUDGETS[budget].number ? values.map(Number) : values, ...Object.fromEntries(options) };
    });
  }

  /** What is missing, in words; null where nothing is. */
  missing() {
    const chosen = this.chosen();
    if (!chosen.length) return "Choose at least one attack.";
    const other = chosen.find((attack) => !this.#own(attack) && this.#beyond(attack));
    if (other) return `${other.title}: radii in another norm than Linf are of another size. Enter them at “only at”, such as ${normOf(other) === "L0" ? 5 : 0.5}.`;
    const blank = chosen.find((attack) => offered(attack).some(({ name, several }) => several && !ticked(this.form, `${attack.name}-${name}`).length));
    if (blank) return `Choose at least one of the ${blank.title.toLowerCase()}.`;
    const [bare, option] = chosen.flatMap((attack) => offered(attack).map((one) => [attack, one])).find(([{ name }, one]) => one.required && !this.form.elements[`${name}-${one.name}`].value.trim()) ?? [];
    if (bare) return `Enter the ${option.name} of “${bare.title}”, such as ${PAIRS[option.name]}.`;
    const empty = chosen.find((attack) => !this.#values(attack).length);
    return empty ? `Choose at least one value for “${BUDGETS[empty.budget].title}”.` : null;
  }
}
