/** The texts: what an attack changed in each, word by word, and the answers before and after. */

import { fetchChangedText } from "./api.js";
import { marked } from "./diff.js";
import { h } from "./dom.js";
import { answersLine, Evidence, exhibitLine, hasEvidence } from "./evidence.js";
import { labelNames } from "./frames.js";

class TextEvidence extends Evidence {
  async #fill(place, sample) {
    try {
      const { clean, adversarial } = await fetchChangedText(this.evaluation.id, sample.index, this.choice, this.signal);
      place.replaceChildren(...marked(clean.text, adversarial.text));
    } catch (error) {
      if (!this.signal.aborted) place.replaceChildren(h("span", { className: "card-error" }, error.message));
    }
  }

  exhibit(trial) {
    const nameOf = labelNames(this.report, this.choice.model);
    const passage = h("blockquote", { className: "changed" }, "reading …");
    this.#fill(passage, trial.sample);
    return h("li", { className: `exhibit ${trial.outcome}` }, passage,
      answersLine(trial, nameOf),
      exhibitLine(trial, this.choice, nameOf));
  }
}

/** The section with the texts of a finished evaluation; null where no attack changed any. */
export function textEvidence(evaluation, report, signal) {
  if (!hasEvidence(report)) return null;
  return new TextEvidence(evaluation, report, signal).section("Evidence", "Words that an attack took out are struck through, words that it put in are marked.");
}
