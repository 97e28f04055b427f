/** The samples of a finished evaluation, one attack at a time: chosen by model, attack and outcome. */

import { showError } from "./access.js";
import { classify, fetchBlob, fetchChangedText, pictureUrl } from "./api.js";
import { choiceButton, h } from "./dom.js";
import { imageModels, textModels } from "./models.js";
import { attentionLayer, picture, slider } from "./pictures.js";
import { chance, count } from "./words.js";

const SHOWN_AT_FIRST = 8;
const SHOWN_MORE = 24;
const ORDER = { contradicted: 0, fallen: 1, held: 2, lost: 3 };
const STATES = { broken: "fallen", proved: "held", open: "lost" };

/** By what was run: what it makes of an image, what can come of it, and what a slider shows. */
const WORDS = {
  attack: { made: "adversarial", outcomes: { fallen: "misled", held: "held", lost: "wrong without attack" }, end: "the adversarial one" },
  corruption: { made: "corrupted", outcomes: { fallen: "prediction changed", held: "held", lost: "wrong without corruption" }, end: "the corrupted one" },
  proof: { made: "adversarial", outcomes: { contradicted: "proof contradicted", fallen: "broken", held: "proved", lost: "open" }, end: "what an attack inside of the set made of it" },
  certificate: { made: "noisy", outcomes: { fallen: "not provable", held: "provable" }, end: "the first of the noisy copies that vote, its pixels cut to black and white" },
};

/** A budget as the service’s addresses name it: "8/255", "L2:0.5". */
const pointOf = ({ norm, eps }) => (norm && norm !== "Linf" ? `${norm}:${eps}` : eps);

/** Whether an attack is the chosen one. */
const isRun = ({ attack, eps }) => (one) => one.name === attack && pointOf(one) === eps;

/** Corruptions, certificates and proofs in the shape of attacks, so that they are shown alike. */
const asAttack = ({ name, severity, ...one }) => ({ ...one, role: "corruption", name: "corruptions", norm: null, eps: `${name}:${severity}`, kind: "corruption", eps_value: severity, title: name.replaceAll("_", " "), description: `${name.replaceAll("_", " ")} at severity ${severity}`, finding: "" });
const asCertificate = ({ sigma, ...one }) => ({ ...one, role: "certificate", name: "smoothing", norm: null, eps: sigma, kind: "sigma", eps_value: 0, title: "Randomized smoothing", description: `noise of sigma ${sigma}`, finding: "" });
const asProof = (one) => ({ ...one, role: "proof", norm: one.kind.startsWith("L") ? one.kind : null });

/** What was run on a model, from its figures. */
const runsOf = ({ attacks, corruptions, certificates, brackets }) => [...attacks, ...corruptions.map(asAttack), ...certificates.map(asCertificate), ...brackets.map(asProof)];

const roleOf = ({ role = "attack" }) => role;
const titled = ({ title, description }) => `${title} ${description}`;

/** What is known of a sample in the set of a proof, with what the attack inside made that misled, or else came nearest. */
function known({ attacks, brackets }, flags, proof, index) {
  const bracket = brackets.map(asProof).find(isRun({ attack: proof.name, eps: pointOf(asProof(proof)) }));
  const rank = ({ robust, confirmed, margin }) => (robust && confirmed ? margin ?? Infinity : -Infinity);
  const inside = attacks.filter((one) => bracket.attacks.includes(titled(one))).map((one) => ({ ...one, ...flags.attacks.find(isRun({ attack: one.name, eps: pointOf(one) })) }));
  const [found] = inside.sort((a, b) => rank(a) - rank(b));
  const contradiction = bracket.contradictions.find(({ sample }) => sample === index);
  return { ...bracket, ...proof, contradiction, by: found && titled(found), confirmed: null,
    which: found ? { attack: found.name, eps: pointOf(found) } : { attack: "none" },
    adversarial_index: found?.adversarial_index, adversarial_probability: found?.adversarial_probability,
    outcome: contradiction ? "contradicted" : STATES[proof.state] };
}

/** What a run did to a sample on one model; undefined where that was not run. */
function fared(report, sample, choice) {
  const model = sample.models.find(({ name }) => name === choice.model);
  const figures = report.summary.models.find(({ name }) => name === choice.model);
  const noise = (one) => ({ ...asAttack(one), robust: model.clean.correct && one.correct, confirmed: null, adversarial_index: one.index });
  const certificate = (one) => ({ ...asCertificate(one), robust: one.correct, confirmed: null, adversarial_index: one.index });
  const proofs = model.proofs.map((one) => known(figures, model, one, sample.index));
  const attack = [...model.attacks, ...model.corruptions.map(noise), ...model.certificates.map(certificate), ...proofs].find(isRun(choice));
  const lost = model.clean.correct || (attack && roleOf(attack) === "certificate") ? "fallen" : "lost";
  const which = { model: choice.model, ...(attack?.which ?? choice) };
  return attack && { sample, model, attack, proofs, which, outcome: attack.outcome ?? (attack.robust ? "held" : lost) };
}

/** What a proof says of a sample, in words. */
function proofText({ state, description, method, margin, rounding }) {
  if (state === "broken") return `broken ${description}`;
  const number = (value) => (value === null ? "unknown" : String(Number(value.toPrecision(2))));
  const way = state === "open" ? "" : method === "exact" ? " exactly" : ` by ${method}`;
  return `${state} ${description}${way} (${margin > 0 && state === "open" ? `rounding may take ${number(rounding)} of ` : ""}margin ${number(margin)})`;
}

/** What the chosen proof says of a sample, or those whose sets hold the chosen attack. */
function proofList({ attack, proofs }, run) {
  const telling = roleOf(attack) === "proof" ? [attack] : proofs.filter(({ attacks }) => attacks.includes(titled(run)));
  const lines = telling.map((one) => h("li", { className: one.contradiction ? "card-error" : "" }, one.contradiction?.finding ?? proofText(one)));
  return lines.length ? h("ul", { className: "proofs hint" }, lines) : null;
}

function confirmations({ attack, outcome: kind }) {
  if (kind !== "fallen" || attack.confirmed === null) return null;
  const line = (holds, text) => h("span", { className: "confirmed" }, `${holds ? "✓" : "✗"} ${text}`);
  return [line(!attack.confirmed, "confirmed as served"), attack.confirmed_8bit === null ? null : line(!attack.confirmed_8bit, "in 8 bit")];
}

function rivals(report, { sample }, choice) {
  return sample.models.filter(({ name }) => name !== choice.model).map(({ name }) => {
    const other = fared(report, sample, { ...choice, model: name });
    return other && h("span", { className: "rival" }, `${name}: ${WORDS[roleOf(other.attack)].outcomes[other.outcome]}`);
  });
}

/** What an index with its probability means. The served model's own names, where it is still served: two models need not share their classes. */
function labelNames(report, model) {
  const served = [...imageModels.all, ...textModels.all].find(({ name }) => name === model);
  const names = served?.labels ?? report.data.labels;
  const perplexity = (_, probability) => `perplexity ${(1 / probability).toFixed(2)}`;
  if (!names.length) return Object.assign(perplexity, { unclassed: true }); // of a language model
  return (index, probability) => (index === null ? "abstains" : names[index] ?? `class ${index}`) + (probability === null || probability === undefined ? "" : ` ${chance(probability)}`);
}

/** The predictions before and after; before alone where nothing was made of the sample. */
function answersLine({ model, attack, which, outcome: kind }, nameOf) {
  const tone = (right) => (nameOf.unclassed ? "" : right ? "hold" : "fall");
  return h("p", { className: "answers" },
    h("span", { className: `answer ${tone(model.clean.correct)}` }, nameOf(model.clean.index, model.clean.probability)),
    which.attack === "none" ? null : [" → ", h("span", { className: `answer ${tone(kind === "held" || (kind === "lost" && model.clean.correct))}` }, nameOf(attack.adversarial_index, attack.adversarial_probability))],
    attack.radius ? h("span", {}, ` within ${attack.radius.toFixed(2)} (l2)`) : null);
}

/** What stands below every sample: its number, its label, and what became of it. */
function exhibitLine({ report, run, choice }, entry, nameOf) {
  const { sample } = entry;
  return [h("p", { className: "exhibit-line" },
    h("b", {}, `#${sample.index}`), h("bdi", { className: "file", title: sample.name }, sample.name),
    sample.label === null ? null : h("span", {}, `label ${nameOf(sample.label)}`),
    nameOf.unclassed ? null : h("span", { className: `outcome ${entry.outcome}` }, WORDS[roleOf(entry.attack)].outcomes[entry.outcome]),
    confirmations(entry), entry.attack.by && h("span", {}, `shown: ${entry.attack.by}`), nameOf.unclassed ? null : rivals(report, entry, choice)), proofList(entry, run)];
}

function select(label, options, value, onChoice) {
  const field = h("select", { onchange: () => onChoice(field.value) }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return h("label", { className: "inline" }, label, field);
}

/** Draws controls and samples; a subclass says how one sample looks, by `exhibit(entry)`, and what to do with it, by `guide`. */
class Evidence {
  constructor(evaluation, report, signal) {
    Object.assign(this, { evaluation, report, signal, only: null, shown: SHOWN_AT_FIRST });
    this.names = report.samples[0].models.map(({ name }) => name);
    this.runs = runsOf(report.summary.models[0]);
    const usual = this.runs.filter((one) => one.kind === this.runs[0].kind && roleOf(one) === roleOf(this.runs[0]));
    const [strongest] = usual.sort((a, b) => b.eps_value - a.eps_value || b.name.localeCompare(a.name));
    this.choice = { model: this.names[0], attack: strongest.name, eps: pointOf(strongest) };
    this.hint = h("p", { className: "hint" });
    this.controls = h("div", { className: "row controls" });
    this.finding = h("p", { className: "finding" });
    this.grid = h("ul", { className: "exhibits" });
    this.more = h("button", { type: "button", className: "quiet", onclick: () => this.draw({ shown: this.shown + SHOWN_MORE }) });
  }

  #filters(all) {
    if (!this.report.data.labels.length) return ""; // no text of a language model is misled
    const button = (key, text, number) => choiceButton(`${text} ${number}`, this.only === key, () => this.draw({ only: key, shown: SHOWN_AT_FIRST }), { disabled: number === 0 });
    return h("div", { className: "segmented", role: "group", "aria-label": "Which samples" },
      button(null, "all", all.length),
      Object.entries(this.words.outcomes).map(([key, text]) => [key, text, all.filter((entry) => entry.outcome === key).length])
        .filter(([key, , found]) => found || key !== "contradicted").map((one) => button(...one)));
  }

  #selectors() {
    const run = `${this.choice.attack} ${this.choice.eps}`;
    const pick = (text) => {
      const [attack, eps] = text.split(" ");
      this.draw({ choice: { ...this.choice, attack, eps }, shown: SHOWN_AT_FIRST });
    };
    const models = select("model", this.names.map((name) => [name, name]), this.choice.model, (model) => this.draw({ choice: { ...this.choice, model }, shown: SHOWN_AT_FIRST }));
    const texts = { corruption: ({ description }) => description, proof: (one) => `${titled(one)}, proved or not` };
    const attacks = select([...new Set(this.runs.map(roleOf))].join(" or "), this.runs.map((one) => [`${one.name} ${pointOf(one)}`, (texts[roleOf(one)] ?? titled)(one)]), run, pick);
    return this.names.length > 1 ? [models, attacks] : [attacks];
  }

  /** Further controls; none unless a subclass has some. */
  extras() {
    return [];
  }

  draw(change = {}) {
    Object.assign(this, change);
    const all = this.report.samples.map((sample) => fared(this.report, sample, this.choice)).filter(Boolean);
    const some = this.only ? all.filter((entry) => entry.outcome === this.only) : all;
    const fields = () => [...this.controls.querySelectorAll("button, select")];
    const focused = fields().indexOf(document.activeElement);
    this.controls.replaceChildren(...this.#selectors(), this.#filters(all), ...this.extras());
    fields()[focused]?.focus();
    this.hint.textContent = this.guide;
    this.finding.textContent = this.run.finding;
    const sorted = [...some].sort((a, b) => ORDER[a.outcome] - ORDER[b.outcome]);
    this.grid.replaceChildren(...sorted.slice(0, this.shown).map((entry) => this.exhibit(entry)));
    this.more.hidden = some.length <= this.shown;
    this.more.textContent = `Show ${Math.min(SHOWN_MORE, some.length - this.shown)} more of ${count(some.length, "sample")}`;
  }

  /** The chosen model in the report's summary. */
  get model() {
    return this.report.summary.models.find(({ name }) => name === this.choice.model);
  }

  /** The chosen attack on it, and what it leaves. */
  get run() {
    return runsOf(this.model).find(isRun(this.choice));
  }

  /** What the chosen run is called, and what it makes. */
  get words() {
    return WORDS[roleOf(this.run)];
  }

  /** The section with the samples. */
  section() {
    this.draw();
    return h("section", { className: "evidence", "aria-labelledby": "evidence-title" }, h("h2", { id: "evidence-title" }, "Evidence"), this.hint, this.controls, this.finding, this.grid, this.more);
  }
}

const PAIRS_AT_ONCE = 4;

const framed = (address, alt) => picture(address, alt, { width: 112, height: 112 });

const frame = (content, title, note = null) => h("figure", { className: "frame" }, content,
  h("figcaption", {}, h("span", { className: "frame-title" }, title), note));

class ImageEvidence extends Evidence {
  attention = false;
  /** Places that wait for their two maps, and the addresses of their pictures. */
  #waiting = [];
  #drawing = null;
  error = h("div", { role: "alert" });


  get guide() {
    return `Drag a slider, or use the arrow keys on it, to go from the clean image to ${this.words.end}.`;
  }

  exhibit(entry) {
    const { sample, which } = entry;
    const { made } = this.words;
    const address = (kind) => pictureUrl(this.evaluation.id, sample.index, kind, which);
    const shown = [this.run, ...this.runs].find(isRun(which));
    const nameOf = labelNames(this.report, this.choice.model);
    const [clean, changed] = ["clean", "adversarial"].map(address);
    const maps = this.attention && shown ? h("div", { className: "maps" }, h("p", { className: "card-wait" }, "computing …")) : null;
    if (maps) this.#waiting.push({ place: maps, addresses: [clean, changed] });
    return h("li", { className: `exhibit ${entry.outcome}` },
      answersLine(entry, nameOf),
      h("div", { className: "show" }, shown ? [
        slider(clean, changed, `image ${sample.index}`, made),
        frame(framed(address("perturbation"), `what changed in image ${sample.index}, amplified`),
          shown.norm === "Linf" ? `change × ${Math.round(0.5 / shown.eps_value)}` : "change, amplified", h("span", { className: "answer", title: shown.description }, shown.description)),
      ] : frame(framed(clean, `image ${sample.index}, unchanged`), "unchanged: no attack of this set was run")),
      maps,
      exhibitLine(this, entry, nameOf));
  }

  extras() {
    if (!imageModels.find(this.model.digest)) return [];
    return [choiceButton("attention before and after", this.attention, () => this.draw({ attention: !this.attention }), { className: "chip-button single", id: "evidence-attention" })];
  }

  draw(change) {
    this.#waiting = [];
    this.#drawing?.abort();
    this.#drawing = new AbortController();
    showError(this.error, null);
    super.draw(change);
    this.#explain(AbortSignal.any([this.signal, this.#drawing.signal]));
  }

  /** A few pairs at a time: predictions of others go on between them. */
  async #explain(signal) {
    try {
      while (this.#waiting.length && !signal.aborted) await this.#look(this.#waiting.splice(0, PAIRS_AT_ONCE), signal);
    } catch (error) {
      if (signal.aborted) return;
      this.draw({ attention: false });
      showError(this.error, error);
    }
  }

  async #look(pairs, signal) {
    const served = imageModels.find(this.model.digest);
    const addresses = pairs.flatMap((pair) => pair.addresses);
    const images = await Promise.all(addresses.map(async (address, i) => ({ name: `${i}.png`, blob: await fetchBlob(address, { signal }) })));
    const predictions = await classify(images, imageModels.reference(served), { explain: true, signal });
    const figures = predictions.map(({ explanation }, i) => {
      const image = framed(addresses[i], "");
      return frame(h("div", { className: "overlaid" }, image, attentionLayer(explanation, image)), `attention ${i % 2 ? "after" : "before"}`);
    });
    pairs.forEach(({ place }, i) => place.replaceChildren(...figures.slice(2 * i, 2 * i + 2)));
  }
}

const KEPT = 160;

/** An unchanged passage: its ends, where it is long. */
function shortened(text) {
  return text.length <= KEPT ? text : `${text.slice(0, KEPT / 2)} … ${text.slice(-KEPT / 2)}`;
}

const SAID = { del: "removed: ", ins: "inserted: " };

/** The node that shows a part of a text: as it was, or marked. */
const marked = ([kind, text]) => (kind === "same" ? shortened(text) : h(kind, {}, h("span", { className: "visually-hidden" }, SAID[kind]), text));

class TextEvidence extends Evidence {
  guide = "Removed words are struck through, inserted words are marked.";

  async #fill(place, { sample, which }) {
    try {
      const { changes } = await fetchChangedText(this.evaluation.id, sample.index, which, this.signal);
      place.replaceChildren(...changes.map(marked));
    } catch (error) {
      if (!this.signal.aborted) place.replaceChildren(h("span", { className: "card-error" }, error.message));
    }
  }

  exhibit(entry) {
    const nameOf = labelNames(this.report, this.choice.model);
    const passage = h("blockquote", { className: "changed" }, "reading …");
    this.#fill(passage, entry);
    return h("li", { className: `exhibit ${entry.outcome}` }, passage,
      answersLine(entry, nameOf),
      exhibitLine(this, entry, nameOf));
  }
}

/** The section with the samples of a finished evaluation; null where nothing changed any, or where they are of pixels. */
export function evidence(evaluation, report, signal) {
  if (!runsOf(report.summary.models[0]).length || report.summary.metric === "pixel accuracy") return null; // the report shows its own
  if (report.data.kind === "text") return new TextEvidence(evaluation, report, signal).section();
  const images = new ImageEvidence(evaluation, report, signal);
  const section = images.section();
  images.controls.after(images.error);
  return section;
}
